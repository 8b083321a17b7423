import Buckets
import System
import Telemetry
import Wire

/// The requests of the process that wait for changes of buckets. Lives as long as the process, beyond reloads.
public final class Watches: Sendable {
    /// The most requests at once; over it status 503.
    public static let maximum = 1000

    private struct State {
        var count = 0
        var hasEnded = false
        var buckets: [Watchers] = []
    }
    private let state = Lock(State())

    private let limit: Int

    public convenience init() { self.init(limit: Watches.maximum) }

    /// - Parameter limit: Replaces ``maximum``.
    init(limit: Int) { self.limit = limit }

    /// The number of requests that wait now.
    public var count: Int { state.withLock { $0.count } }

    /// Ends all waits, and every later one at once: the process will end.
    public func end() {
        let buckets = state.withLock { state in
            state.hasEnded = true
            return state.buckets
        }
        for watchers in buckets { watchers.wakeAll() }
    }

    /// The number of those that have nothing to read.
    var waiting: Int { state.withLock { $0.buckets }.reduce(0) { $0 + $1.count } }

    var hasEnded: Bool { state.withLock { $0.hasEnded } }

    fileprivate func add(_ watchers: Watchers) { state.withLock { $0.buckets.append(watchers) } }

    /// Counts a request until ``leave()``.
    /// - Throws: ``Problem`` with `overloaded`.
    func enter() throws(Problem) {
        let isFree = state.withLock { state in
            if state.count >= limit { return false }
            state.count += 1
            return true
        }
        if isFree { return }
        throw Problem(
            .overloaded, "Too many requests wait for changes.", cause: "\(limit) watches",
            field: ("retry-after", "5"))
    }

    func leave() { state.withLock { $0.count -= 1 } }
}

/// The requests that wait for changes of one bucket. A commit wakes those whose prefix it concerns.
public final class Watchers: EventObserver {
    /// Safety: only used with the lock held.
    private final class Waiter: @unchecked Sendable {
        let pause: Pause
        /// The number up to which nothing concerned the prefix.
        var position: Int64

        init(_ pause: Pause, _ position: Int64) {
            self.pause = pause
            self.position = position
        }
    }
    private struct State {
        /// Those that have not been woken, by prefix: a commit compares its names with each prefix once.
        var waiters: [BytewiseString: [UInt64: Waiter]] = [:]
        var nextID: UInt64 = 0
        /// Counts commits.
        var version: UInt64 = 0
    }

    let log: any EventLog
    let watches: Watches
    private let state = Lock(State())

    /// - Parameter log: The bucket's store, which records everything.
    public init(_ log: any EventLog, _ watches: Watches) {
        self.log = log
        self.watches = watches
        watches.add(self)
        log.addEventObserver(self)
    }

    public func recorded(_ events: RecordedEvents) {
        let woken = state.withLock { state -> [Pause] in
            state.version += 1
            if state.waiters.isEmpty { return [] }
            var woken: [Pause] = []
            for (prefix, waiters) in state.waiters {
                let isConcerned = events.events.contains { $0.name.utf8.starts(with: prefix.text.utf8) }
                for (id, waiter) in waiters {
                    // A lower number is of another history: its request finds out.
                    if isConcerned || events.last < waiter.position {
                        woken.append(waiter.pause)
                        if !isConcerned { state.waiters[prefix]?[id] = nil }
                    } else {
                        waiter.position = events.last
                    }
                }
                if isConcerned { state.waiters[prefix] = nil }
            }
            return woken
        }
        for pause in woken { pause.end() }
    }

    /// The number of waiting requests.
    var count: Int { state.withLock { $0.waiters.values.reduce(0) { $0 + $1.count } } }

    /// The number of commits so far, for ``wait(_:after:unless:atMost:)``.
    var version: UInt64 { state.withLock { $0.version } }

    func wakeAll() {
        let pauses = state.withLock { state in
            state.version += 1
            return state.waiters.values.flatMap { $0.values.map(\.pause) }
        }
        for pause in pauses { pause.end() }
    }

    /// Waits for a commit that concerns a prefix, or for the cancellation of the task.
    /// - Parameters:
    ///   - position: The number up to which the caller has read.
    ///   - version: Before that read. After another commit, there is no wait.
    ///   - nanoseconds: The longest wait.
    /// - Returns: The number after which to read on.
    func wait(_ prefix: String, after position: Int64, unless version: UInt64, atMost nanoseconds: UInt64) async
        -> Int64
    {
        let key = BytewiseString(prefix)
        let waiter = Waiter(Pause(), position)
        let id = state.withLock { state -> UInt64? in
            guard state.version == version else { return nil }
            state.nextID += 1
            state.waiters[key, default: [:]][state.nextID] = waiter
            return state.nextID
        }
        guard let id else { return position }
        await waiter.pause.wait(atMost: nanoseconds)
        return state.withLock { state in
            if state.waiters[key]?.removeValue(forKey: id) != nil, state.waiters[key]?.isEmpty == true {
                state.waiters[key] = nil
            }
            return waiter.position
        }
    }
}

/// Whether a bucket's changes can be watched.
public enum BucketWatch: Sendable {
    case on(Watchers)
    /// Why they can't be, and what to use instead: a sentence for clients.
    case off(String)
}

extension PrometheusRegistry {
    /// Adds the number of requests that wait for changes.
    public func addWatches(_ watches: Watches) {
        collect { text in
            text.single("sluice_watches", .gauge, "Requests that wait for changes of a bucket.", watches.count)
        }
    }
}
