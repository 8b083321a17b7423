import CLinux
import Glibc

/// A few threads for work that may block on a disk, which must not run on a loop.
public final class BlockingPool: Sendable {
    private let queue = JobQueue()
    private let threads: Lock<[pthread_t]>

    /// Starts `threads` threads (at least one).
    public init(threads count: Int) {
        // The threads hold the queue, not the pool: a job may release the pool.
        threads = Lock((0..<max(1, count)).map { [queue] _ in startThread { queue.work() } })
    }

    deinit { shutdown() }

    /// Runs all submitted jobs, then ends the threads and waits for them. Nothing may be submitted afterwards. If a job
    /// releases the last reference, this runs on a pool thread and does not wait for that thread, which runs the
    /// remaining jobs after the current one.
    public func shutdown() {
        queue.close()
        let ending = threads.withLock { threads in
            defer { threads = [] }
            return threads
        }
        for thread in ending {
            if pthread_equal(thread, pthread_self()) != 0 {
                pthread_detach(thread)
            } else {
                pthread_join(thread, nil)
            }
        }
    }

    /// Queues `job`; any thread may call it.
    public func submit(_ job: @escaping @Sendable () -> Void) { queue.append(job) }

    /// Runs `body` on a pool thread and returns its result to the caller's executor.
    public func run<Result: Sendable, Failure: Error>(
        _ body: @escaping @Sendable () throws(Failure) -> Result
    ) async throws(Failure) -> Result {
        let loop = EventLoop.current
        let outcome: Swift.Result<Result, Failure> = await withCheckedContinuation { waiter in
            submit {
                let outcome = Swift.Result { () throws(Failure) in try body() }
                // The loop's lock orders the job's writes before the continuation.
                if let loop {
                    loop.execute { waiter.resume(returning: outcome) }
                } else {
                    waiter.resume(returning: outcome)
                }
            }
        }
        return try outcome.get()
    }
}

/// Jobs in the order of their submission, for the threads of one pool.
///
/// Safety: the jobs and flags are accessed only with `mutex` held.
private final class JobQueue: @unchecked Sendable {
    private let mutex = UnsafeMutablePointer<pthread_mutex_t>.allocate(capacity: 1)
    private let condition = UnsafeMutablePointer<pthread_cond_t>.allocate(capacity: 1)
    /// nil once a job is taken: its captures must be released when it ends, and without `mutex` held.
    private var jobs: [(@Sendable () -> Void)?] = []
    private var head = 0
    private var idle = 0
    private var isClosed = false

    init() {
        pthread_mutex_init(mutex, nil)
        pthread_cond_init(condition, nil)
    }

    deinit {
        pthread_cond_destroy(condition)
        pthread_mutex_destroy(mutex)
        condition.deallocate()
        mutex.deallocate()
    }

    func append(_ job: @escaping @Sendable () -> Void) {
        pthread_mutex_lock(mutex)
        jobs.append(job)
        let wake = idle > 0
        pthread_mutex_unlock(mutex)
        if wake { pthread_cond_signal(condition) }
    }

    /// Ends ``work()`` on all threads once no job is left.
    func close() {
        pthread_mutex_lock(mutex)
        isClosed = true
        pthread_cond_broadcast(condition)
        pthread_mutex_unlock(mutex)
    }

    /// Runs jobs until ``close()``.
    func work() {
        while true {
            pthread_mutex_lock(mutex)
            while head == jobs.count && !isClosed {
                idle += 1
                pthread_cond_wait(condition, mutex)
                idle -= 1
            }
            if head == jobs.count {
                pthread_mutex_unlock(mutex)
                return
            }
            let job = jobs[head]
            jobs[head] = nil
            head += 1
            if head == jobs.count {
                jobs.removeAll(keepingCapacity: jobs.capacity <= 1024)
                head = 0
            }
            pthread_mutex_unlock(mutex)
            job?()
        }
    }
}

/// Starts a thread with all signals blocked and, for deep recursion, a main thread's stack size of 8 MiB.
public func startThread(_ body: @escaping @Sendable () -> Void) -> pthread_t {
    final class Box {
        let body: @Sendable () -> Void
        init(_ body: @escaping @Sendable () -> Void) { self.body = body }
    }
    var attributes = pthread_attr_t()
    pthread_attr_init(&attributes)
    pthread_attr_setstacksize(&attributes, 8 << 20)
    var all = sigset_t()
    var previous = sigset_t()
    sigfillset(&all)
    pthread_sigmask(SIG_SETMASK, &all, &previous)
    var thread = pthread_t()
    let argument = Unmanaged.passRetained(Box(body)).toOpaque()
    let failure = pthread_create(
        &thread, &attributes,
        { pointer in
            let box = Unmanaged<Box>.fromOpaque(pointer!).takeRetainedValue()
            box.body()
            return nil
        }, argument)
    precondition(failure == 0, "pthread_create: \(String(cString: strerror(failure)))")
    pthread_sigmask(SIG_SETMASK, &previous, nil)
    pthread_attr_destroy(&attributes)
    return thread
}
