import CLinux
import Glibc
import Synchronization

/// The readiness of a descriptor, as epoll reports it.
public struct Readiness: OptionSet, Sendable {
    public let rawValue: UInt32
    public init(rawValue: UInt32) { self.rawValue = rawValue }
    /// Bytes, a connection or an end of stream can be read.
    public static let readable = Readiness(rawValue: 1)
    /// The send buffer can accept bytes again.
    public static let writable = Readiness(rawValue: 2)
    /// The peer closed, or the descriptor failed; a read shows which.
    public static let hangup = Readiness(rawValue: 4)
    /// Nothing can be sent: both directions have ended, or the descriptor failed.
    public static let broken = Readiness(rawValue: 8)
}

/// Receives the events of a registered descriptor, on the loop's thread.
public protocol EventHandler: AnyObject {
    /// Receives a change of readiness, edge-triggered: read or write until the kernel has no more.
    func ready(_ events: Readiness)
    /// Called once at the end of a batch after ``EventLoop/markDirty(_:)``, for example to flush.
    func settle()
}

/// Identifies a registered descriptor. Its number alone may already belong to a newer one.
public struct Registration: Sendable, Equatable {
    let descriptor: Int32
    let generation: UInt32

    /// A placeholder until a descriptor is registered.
    public static let none = Registration(descriptor: 0, generation: .max)
}

/// An event loop: one thread that waits on epoll and runs the handlers that became ready. It also runs timers, work
/// from other threads, and the tasks pinned to it. A turn runs, in this order:
/// 1. events, and work from other threads;
/// 2. ``settle()``: ready tasks and dirty handlers, until none is left or the turn has lasted for ``turnBudget``;
/// 3. timers, and ``settle()`` again;
/// 4. tasks that called ``yield()`` and postponed handlers, in order, for a part of ``turnBudget``.
///
/// After a pause of the thread, timers wait until handlers have read the bytes that arrived meanwhile. Only
/// ``execute(_:)``, ``enqueue(_:)`` and ``stop()`` may be called on other threads, which debug builds check.
///
/// Safety: only the loop's thread accesses mutable state, except `inbox`, which has a lock, and the atomics.
public final class EventLoop: TaskExecutor, @unchecked Sendable {
    private struct Slot {
        var generation: UInt32 = 0
        var handler: (any EventHandler)?
    }
    /// Work that waits for the next turn.
    private enum Continuation {
        case task(UnsafeContinuation<Void, Never>)
        case handler(any EventHandler)
    }
    private struct Inbox {
        var jobs: [UnownedJob] = []
        var work: [@Sendable () -> Void] = []
    }

    /// Monotonic nanoseconds, read once a turn.
    public private(set) var now = EventLoop.monotonicNow()
    /// Nanoseconds that a turn may spend on events. The rest waits for the next turn.
    public var turnBudget: UInt64 = 5_000_000
    private var sliceStart: UInt64 = 0
    private var isResuming = false
    private let epoll: Int32
    private let wakeDescriptor: Int32
    private var slots: [Slot] = []
    private var timers = TimerHeap()
    private var readyJobs: [UnownedJob] = []
    private var dirty: [any EventHandler] = []
    // The batches that run now. Reusing their memory saves 600 to 1,000 instructions of a request.
    private var runningJobs: [UnownedJob] = []
    private var settling: [any EventHandler] = []
    private var postponed: [Continuation] = []
    /// Until this time timers yield to other work. Set by a turn that begins long after the previous one and finds a
    /// timer due; without a due timer the loop may only have been idle.
    private var timersWait: UInt64 = 0
    /// In nanoseconds: the minimum time between turns that counts as a pause, and how long timers then wait at most.
    private static let pause: UInt64 = 1_000_000_000
    /// For bytes that are read ahead of their reader: at most 16 buffers of 232 KiB, 3.6 MiB.
    public let readAhead = BufferPool(size: 232 * 1024, maximum: 16)
    private let inbox = Lock(Inbox())
    private let wakePending = Atomic<Bool>(false)
    private let stopping = Atomic<Bool>(false)
    private let thread = Atomic<UInt>(0)

    /// Creates the epoll instance and its wake-up descriptor.
    /// - Throws: ``SystemError`` if descriptors have run out.
    public init() throws(SystemError) {
        epoll = try SystemError.check("epoll_create1") { epoll_create1(Int32(EPOLL_CLOEXEC)) }
        wakeDescriptor = try SystemError.check("eventfd") {
            eventfd(0, Int32(EFD_CLOEXEC | EFD_NONBLOCK))
        }
        var event = epoll_event()
        event.events = EPOLLIN.rawValue | EPOLLET.rawValue
        event.data.u64 = UInt64.max
        epoll_ctl(epoll, EPOLL_CTL_ADD, wakeDescriptor, &event)
    }

    deinit {
        close(epoll)
        close(wakeDescriptor)
    }

    /// Monotonic nanoseconds, read from the kernel.
    public static func monotonicNow() -> UInt64 {
        var time = timespec()
        clock_gettime(CLOCK_MONOTONIC, &time)
        return UInt64(time.tv_sec) &* 1_000_000_000 &+ UInt64(time.tv_nsec)
    }

    /// Whether the caller runs on this loop's thread.
    public var isCurrent: Bool { thread.load(ordering: .relaxed) == UInt(pthread_self()) }

    /// Traps if the caller is not on the loop's thread, in release builds too.
    public func preconditionCurrent() { precondition(isCurrent, "not on the loop's thread") }

    /// Traps in debug builds if another thread runs the loop. Every function that changes state confined to a loop
    /// begins with this call. While no thread runs the loop, for example before ``run()``, its owner may use it.
    @inlinable
    public func assertCurrent() { assert(isCurrent || !isRunning, "not on the loop's thread") }

    /// Whether a thread runs the loop.
    public var isRunning: Bool { thread.load(ordering: .relaxed) != 0 }

    /// The loop whose turn runs on the calling thread; nil on any other thread.
    public static var current: EventLoop? {
        guard let pointer = pthread_getspecific(currentKey) else { return nil }
        return Unmanaged<EventLoop>.fromOpaque(pointer).takeUnretainedValue()
    }

    /// The thread's slot for ``current``; ``run()`` keeps the loop alive while it is set.
    private static let currentKey: pthread_key_t = {
        var key = pthread_key_t()
        precondition(pthread_key_create(&key, nil) == 0, "pthread_key_create: no key left")
        return key
    }()

    // MARK: Running

    /// Runs turns on the calling thread until ``stop()``.
    public func run() {
        thread.store(UInt(pthread_self()), ordering: .relaxed)
        pthread_setspecific(EventLoop.currentKey, Unmanaged.passUnretained(self).toOpaque())
        defer { pthread_setspecific(EventLoop.currentKey, nil) }
        let capacity = 256
        let events = UnsafeMutablePointer<epoll_event>.allocate(capacity: capacity)
        defer { events.deallocate() }
        while !stopping.load(ordering: .acquiring) {
            let count = epoll_wait(epoll, events, Int32(capacity), waitMilliseconds())
            beginTurn()
            for index in 0..<max(0, Int(count)) { dispatch(events[index]) }
            takeInbox()
            settle()
            // Bytes that arrived during a pause of the thread must be processed before a timeout.
            if !hasWork && count < capacity || now >= timersWait {
                // Timers arm and disarm other timers and themselves, so no access to the heap is held while they run.
                while let due = timers.takeDue(now) { due() }
                settle()
            }
            resumePostponed()
        }
        // These may hold the loop.
        dirty = []
        postponed = []
        thread.store(0, ordering: .relaxed)
    }

    /// Ends ``run()`` after the current turn. Any thread may call it.
    public func stop() {
        stopping.store(true, ordering: .releasing)
        wake()
    }

    private func beginTurn() {
        let last = now
        now = EventLoop.monotonicNow()
        sliceStart = now
        if now &- last > EventLoop.pause, timers.nextDeadline ?? .max <= now {
            timersWait = now &+ EventLoop.pause
        }
    }

    /// Whether the next turn has work even without events of epoll.
    private var hasWork: Bool { !readyJobs.isEmpty || !dirty.isEmpty || !postponed.isEmpty }

    private func waitMilliseconds() -> Int32 {
        if hasWork { return 0 }
        guard let deadline = timers.nextDeadline else { return -1 }
        let current = EventLoop.monotonicNow()
        if deadline <= current { return 0 }
        return Int32(min((deadline - current + 999_999) / 1_000_000, 3_600_000))
    }

    private func dispatch(_ event: epoll_event) {
        let data = event.data.u64
        if data == UInt64.max {
            var value: UInt64 = 0
            _ = read(wakeDescriptor, &value, 8)
            return
        }
        let descriptor = Int(data & 0xffff_ffff)
        let slot = slots[descriptor]
        guard slot.generation == UInt32(data >> 32), let handler = slot.handler else { return }
        var readiness: Readiness = []
        if event.events & (EPOLLIN.rawValue) != 0 { readiness.insert(.readable) }
        if event.events & EPOLLOUT.rawValue != 0 { readiness.insert(.writable) }
        if event.events & (EPOLLHUP.rawValue | EPOLLERR.rawValue | EPOLLRDHUP.rawValue) != 0 {
            readiness.insert(.hangup)
        }
        if event.events & (EPOLLHUP.rawValue | EPOLLERR.rawValue) != 0 { readiness.insert(.broken) }
        handler.ready(readiness)
    }

    private func takeInbox() {
        wakePending.store(false, ordering: .sequentiallyConsistent)
        let taken = inbox.withLock { box in
            let copy = box
            box.jobs.removeAll(keepingCapacity: false)
            box.work.removeAll(keepingCapacity: false)
            return copy
        }
        readyJobs.append(contentsOf: taken.jobs)
        for work in taken.work { work() }
    }

    /// Runs ready tasks and dirty handlers until none is left, for a bounded number of rounds and a bounded time.
    private func settle() {
        var rounds = 0
        while rounds < 32 && !(readyJobs.isEmpty && dirty.isEmpty) && (rounds == 0 || !isTurnSpent) {
            rounds += 1
            if !readyJobs.isEmpty {
                swap(&runningJobs, &readyJobs)
                for job in runningJobs { job.runSynchronously(on: asUnownedTaskExecutor()) }
                runningJobs.removeAll(keepingCapacity: true)
            }
            if !dirty.isEmpty {
                swap(&settling, &dirty)
                for handler in settling { handler.settle() }
                settling.removeAll(keepingCapacity: true)
            }
        }
    }

    /// Resumes a task that waits on this loop, and runs it until it waits again or ends.
    public func resumeNow(_ waiter: UnsafeContinuation<Void, Never>) {
        assertCurrent()
        let count = readyJobs.count
        waiter.resume()
        precondition(readyJobs.count == count + 1, "the task waits on another executor")
        readyJobs.removeLast().runSynchronously(on: asUnownedTaskExecutor())
    }

    // MARK: Slices

    /// Whether the turn, or the slice of a resumed task, has used up its time. Divisible work then calls ``yield()``.
    public var isTurnSpent: Bool {
        EventLoop.monotonicNow() &- sliceStart >= (isResuming ? turnBudget / 4 : turnBudget)
    }

    /// Suspends the calling task until a later turn, after events, timers and tasks that yielded earlier.
    public func yield() async {
        preconditionCurrent()
        await suspend { postponed.append(.task($0)) }
    }

    /// Yields if the turn is spent; does nothing if the task is not on a loop.
    public static func giveWay() async {
        if let loop = EventLoop.current, loop.isTurnSpent { await loop.yield() }
    }

    /// Resumes the tasks that yielded and settles the postponed handlers, in order, while there is time, and always at
    /// least one. Work that is postponed again waits behind the others for the next turn.
    private func resumePostponed() {
        if postponed.isEmpty { return }
        let begin = EventLoop.monotonicNow()
        isResuming = true
        defer { isResuming = false }
        var waiting: [Continuation] = []
        swap(&waiting, &postponed)
        var resumed = 0
        repeat {
            sliceStart = EventLoop.monotonicNow()
            switch waiting[resumed] {
            case .task(let task): task.resume()
            case .handler(let handler): handler.settle()
            }
            resumed += 1
            settle()
        } while resumed < waiting.count && EventLoop.monotonicNow() &- begin < turnBudget / 4
        postponed.insert(contentsOf: waiting[resumed...], at: 0)
    }

    /// Calls `handler.settle()` in a later turn, after its events and tasks and handlers postponed earlier: for a
    /// handler that has used its share of a turn. A handler must not be postponed twice, nor also marked dirty.
    public func postpone(_ handler: any EventHandler) {
        assertCurrent()
        postponed.append(.handler(handler))
    }

    /// Calls `handler.settle()` at the end of this batch. A handler must not be marked twice.
    public func markDirty(_ handler: any EventHandler) {
        assertCurrent()
        dirty.append(handler)
    }

    // MARK: Work from other threads

    /// Runs `work` on the loop's thread in its next turn. Any thread may call it.
    public func execute(_ work: @escaping @Sendable () -> Void) {
        inbox.withLock { $0.work.append(work) }
        wake()
    }

    /// Receives the next job of a task (`TaskExecutor`).
    public func enqueue(_ job: consuming ExecutorJob) {
        let job = UnownedJob(job)
        if isCurrent {
            readyJobs.append(job)
        } else {
            inbox.withLock { $0.jobs.append(job) }
            wake()
        }
    }

    private func wake() {
        if wakePending.exchange(true, ordering: .sequentiallyConsistent) { return }
        var one: UInt64 = 1
        _ = write(wakeDescriptor, &one, 8)
    }

    // MARK: Descriptors

    /// Watches a descriptor for reading and writing, edge-triggered. Keeps `handler` until ``deregister(_:)``.
    /// - Throws: ``SystemError`` if epoll refuses the descriptor.
    public func register(_ descriptor: Int32, _ handler: any EventHandler) throws(SystemError)
        -> Registration
    {
        let all = EPOLLIN.rawValue | EPOLLOUT.rawValue | EPOLLRDHUP.rawValue
        return try register(descriptor, handler, events: all | EPOLLET.rawValue)
    }

    /// Watches a descriptor, level-triggered: readiness is reported in every turn in which it holds. For code that does
    /// not read or write until the kernel has no more.
    /// - Throws: ``SystemError`` if epoll rejects the descriptor.
    public func registerLevel(
        _ descriptor: Int32, _ handler: any EventHandler, for interest: Readiness
    ) throws(SystemError) -> Registration {
        try register(descriptor, handler, events: EventLoop.level(interest))
    }

    /// Changes the events for which a level-triggered descriptor is watched.
    public func change(_ registration: Registration, to interest: Readiness) {
        assertCurrent()
        guard slots[Int(registration.descriptor)].generation == registration.generation else {
            return
        }
        var event = event(registration, EventLoop.level(interest))
        epoll_ctl(epoll, EPOLL_CTL_MOD, registration.descriptor, &event)
    }

    private static func level(_ interest: Readiness) -> UInt32 {
        (interest.contains(.readable) ? EPOLLIN.rawValue : 0) | (interest.contains(.writable) ? EPOLLOUT.rawValue : 0)
    }

    private func event(_ registration: Registration, _ events: UInt32) -> epoll_event {
        var event = epoll_event()
        event.events = events
        event.data.u64 = UInt64(registration.generation) << 32 | UInt64(UInt32(registration.descriptor))
        return event
    }

    private func register(_ descriptor: Int32, _ handler: any EventHandler, events: UInt32)
        throws(SystemError) -> Registration
    {
        assertCurrent()
        let index = Int(descriptor)
        while slots.count <= index { slots.append(Slot()) }
        slots[index].generation &+= 1
        let registration = Registration(
            descriptor: descriptor, generation: slots[index].generation)
        var event = event(registration, events)
        _ = try SystemError.check("epoll_ctl") {
            epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event)
        }
        slots[index].handler = handler
        return registration
    }

    /// Deregisters a descriptor, before it is closed. Its remaining events of this batch are dropped, even if its
    /// number already belongs to a new descriptor.
    public func deregister(_ registration: Registration) {
        assertCurrent()
        let index = Int(registration.descriptor)
        guard slots[index].generation == registration.generation else { return }
        slots[index].handler = nil
        slots[index].generation &+= 1
        epoll_ctl(epoll, EPOLL_CTL_DEL, registration.descriptor, nil)
    }

    // MARK: Timers

    /// Arms `timer` for `nanoseconds` from now, replacing its deadline. It never fires in the current turn.
    public func arm(_ timer: LoopTimer, after nanoseconds: UInt64) {
        assertCurrent()
        timers.set(timer, deadline: now &+ max(1, nanoseconds))
    }

    /// Disarms `timer` if it is armed.
    public func disarm(_ timer: LoopTimer) {
        assertCurrent()
        timers.remove(timer)
    }
}
