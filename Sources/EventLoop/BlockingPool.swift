import CLinux
import Glibc

/// A few threads for work that may block on a disk, so that no loop ever does.
///
/// Safety: the queue and its flags are touched only with `mutex` held.
public final class BlockingPool: @unchecked Sendable {
    private let mutex = UnsafeMutablePointer<pthread_mutex_t>.allocate(capacity: 1)
    private let condition = UnsafeMutablePointer<pthread_cond_t>.allocate(capacity: 1)
    /// nil where a job was taken: what a job holds must not be released with `mutex` held, or later than its end.
    private var queue: [(@Sendable () -> Void)?] = []
    private var head = 0
    private var idle = 0
    private var closed = false
    private var threads: [pthread_t] = []

    /// Starts `threads` threads (at least one).
    public init(threads count: Int) {
        pthread_mutex_init(mutex, nil)
        pthread_cond_init(condition, nil)
        for _ in 0..<max(1, count) {
            // Unsafe is right: `deinit` waits for the threads, and a checked reference would fail there.
            threads.append(startThread { [unowned(unsafe) self] in work() })
        }
    }

    /// Waits for the work that was submitted, then ends the threads.
    deinit {
        shutdown()
        pthread_cond_destroy(condition)
        pthread_mutex_destroy(mutex)
        condition.deallocate()
        mutex.deallocate()
    }

    /// Finishes what was submitted and ends the threads; nothing may be submitted afterwards.
    public func shutdown() {
        pthread_mutex_lock(mutex)
        closed = true
        let ending = threads
        threads = []
        pthread_cond_broadcast(condition)
        pthread_mutex_unlock(mutex)
        for thread in ending { pthread_join(thread, nil) }
    }

    /// Queues `job`; any thread may call it.
    public func submit(_ job: @escaping @Sendable () -> Void) {
        pthread_mutex_lock(mutex)
        queue.append(job)
        let wake = idle > 0
        pthread_mutex_unlock(mutex)
        if wake { pthread_cond_signal(condition) }
    }

    /// Runs `body` on a pool thread and returns its result to the caller's executor.
    public func run<Result: Sendable, Failure: Error>(
        _ body: @escaping @Sendable () throws(Failure) -> Result
    ) async throws(Failure) -> Result {
        let loop = EventLoop.current
        let outcome: Swift.Result<Result, Failure> = await withCheckedContinuation { waiter in
            submit {
                let outcome = Swift.Result { () throws(Failure) in try body() }
                // Through the loop, where there is one: what the job wrote is then seen to come before what follows.
                if let loop {
                    loop.execute { waiter.resume(returning: outcome) }
                } else {
                    waiter.resume(returning: outcome)
                }
            }
        }
        return try outcome.get()
    }

    private func work() {
        while true {
            pthread_mutex_lock(mutex)
            while head == queue.count && !closed {
                idle += 1
                pthread_cond_wait(condition, mutex)
                idle -= 1
            }
            if head == queue.count {
                pthread_mutex_unlock(mutex)
                return
            }
            let job = queue[head]
            queue[head] = nil
            head += 1
            if head == queue.count {
                queue.removeAll(keepingCapacity: queue.capacity <= 1024)
                head = 0
            }
            pthread_mutex_unlock(mutex)
            job?()
        }
    }
}

/// Starts a thread with a main thread's stack, 8 MiB of addresses, for what recurses deeply; all signals blocked.
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
