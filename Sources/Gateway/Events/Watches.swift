import Buckets
import System
import Telemetry

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

    public init() {}

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
            if state.count >= Watches.maximum { return false }
            state.count += 1
            return true
        }
        if isFree { return }
        throw Problem(
            .overloaded, "Too many requests wait for changes.", cause: "\(Watches.maximum) watches",
            field: ("retry-after", "5"))
    }

    func leave() { state.withLock { $0.count -= 1 } }
}

/// The requests that wait for changes of one bucket. A commit wakes those whose prefix it concerns.
public final class Watchers: EventObserver {
    private struct Waiter {
        let pause: Pause
        let prefix: [UInt8]
        /// The number up to which nothing concerned the prefix.
        var position: Int64
        /// Whether a commit concerned it, so that the position stays.
        var isWoken = false
    }
    private struct State {
        var waiters: [UInt64: Waiter] = [:]
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
            let names = events.events.map { Array($0.name.utf8) }
            var woken: [Pause] = []
            for (id, waiter) in state.waiters where !waiter.isWoken {
                // A lower number is of another history: its request finds out.
                if events.last < waiter.position || names.contains(where: { $0.starts(with: waiter.prefix) }) {
                    state.waiters[id]?.isWoken = true
                    woken.append(waiter.pause)
                } else {
                    state.waiters[id]?.position = events.last
                }
            }
            return woken
        }
        for pause in woken { pause.end() }
    }

    /// The number of waiting requests.
    var count: Int { state.withLock { $0.waiters.count } }

    /// The number of commits so far, for ``wait(_:after:unless:atMost:)``.
    var version: UInt64 { state.withLock { $0.version } }

    func wakeAll() {
        let pauses = state.withLock { state in
            state.version += 1
            return state.waiters.values.map(\.pause)
        }
        for pause in pauses { pause.end() }
    }

    /// Waits for a commit that concerns a prefix, or for the cancellation of the task.
    /// - Parameters:
    ///   - position: The number up to which the caller has read.
    ///   - version: Before that read. After another commit, there is no wait.
    ///   - nanoseconds: The longest wait.
    /// - Returns: The number after which to read on.
    func wait(_ prefix: [UInt8], after position: Int64, unless version: UInt64, atMost nanoseconds: UInt64) async
        -> Int64
    {
        let pause = Pause()
        let id = state.withLock { state -> UInt64? in
            guard state.version == version else { return nil }
            state.nextID += 1
            state.waiters[state.nextID] = Waiter(pause: pause, prefix: prefix, position: position)
            return state.nextID
        }
        guard let id else { return position }
        await pause.wait(atMost: nanoseconds)
        return state.withLock { $0.waiters.removeValue(forKey: id)?.position ?? position }
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
