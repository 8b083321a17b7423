import System
import Wire

/// What is known of an object's current version.
struct KnownObject: Sendable {
    let metadata: ObjectMetadata
    /// When the request that produced it was sent, in monotonic nanoseconds.
    let asked: UInt64
    /// The key of its bytes.
    let key: ObjectKey
    /// Whether the bytes may be kept.
    let isKept: Bool
    /// Whether the checksum of the whole object was compared.
    var isVerified = false
    /// The bytes, if they are few. Their checksums were compared.
    var bytes: [UInt8]?
}

/// The metadata of a bucket's objects, and the requests for it. Any thread may use it.
///
/// There is at most one request for each name at a time. Who comes while one is in flight may not use its answer if that
/// must be newer: it waits, and then shares the next one with all who came meanwhile.
final class KnownObjects: Sendable {
    /// A request for an object's metadata.
    final class Flight: Sendable {
        enum Outcome: Sendable {
            case known(KnownObject)
            case failed(BucketError)
            /// The request was given up, for example because its client has gone: ask again.
            case abandoned
        }
        private struct State {
            var outcome: Outcome?
            var waiters: [CheckedContinuation<Outcome, Never>] = []
        }

        /// When it was sent, in monotonic nanoseconds.
        let sent: UInt64
        private let state = Lock(State())

        init(_ sent: UInt64) { self.sent = sent }

        func wait() async -> Outcome {
            await withCheckedContinuation { waiter in
                let outcome = state.withLock { state in
                    if state.outcome == nil { state.waiters.append(waiter) }
                    return state.outcome
                }
                if let outcome { waiter.resume(returning: outcome) }
            }
        }

        fileprivate func end(_ outcome: Outcome) {
            let waiters = state.withLock { state in
                state.outcome = outcome
                defer { state.waiters = [] }
                return state.waiters
            }
            for waiter in waiters { waiter.resume(returning: outcome) }
        }
    }

    /// What a request does about a name.
    enum Step {
        case use(KnownObject)
        /// Send a request, then call ``end(_:_:_:)``. The object was known, but not new enough.
        case ask(Flight, last: KnownObject?)
        /// A request is in flight. If `isShared`, use its outcome. Otherwise begin again when it has ended.
        case wait(Flight, isShared: Bool)
    }

    /// What goes on with a name.
    private struct Activity {
        var flight: Flight?
        /// Whether the object may have changed since the flight began.
        var isOutdated = false
        /// The number of changes in progress.
        var changes = 0
    }

    private struct State {
        /// The table is in two halves. A full new half becomes the old one, whose objects are forgotten unless used.
        var new: [BytewiseString: KnownObject] = [:]
        var old: [BytewiseString: KnownObject] = [:]
        var newBytes = 0
        /// How much of `newBytes` are bytes of objects.
        var newContent = 0
        var active: [BytewiseString: Activity] = [:]
    }

    /// The size of one half in bytes.
    private let half: Int
    private let state = Lock(State())

    /// - Parameter limit: The size of the metadata in bytes.
    init(limit: Int) { half = limit / 2 }

    var count: Int { state.withLock { $0.new.count + $0.old.count } }

    /// The object, if it is known at all.
    func find(_ name: String) -> KnownObject? { state.withLock { find(BytewiseString(name), &$0) } }

    /// Decides how a request learns the current version.
    /// - Parameters:
    ///   - since: The answer must be to a request that was sent at this time or later, in monotonic nanoseconds.
    ///   - now: Monotonic nanoseconds.
    func step(_ name: String, since: UInt64, now: UInt64) -> Step {
        let name = BytewiseString(name)
        return state.withLock { state in
            let known = find(name, &state)
            if let known, known.asked >= since { return .use(known) }
            var activity = state.active[name] ?? Activity()
            if let flight = activity.flight {
                return .wait(flight, isShared: flight.sent >= since && !activity.isOutdated)
            }
            let flight = Flight(now)
            activity.flight = flight
            activity.isOutdated = false
            state.active[name] = activity
            return .ask(flight, last: known)
        }
    }

    /// Begins a request for an object of which nothing is known.
    /// - Returns: nil if something is known, or a request is in flight.
    func beginFirst(_ name: String, now: UInt64) -> Flight? {
        let name = BytewiseString(name)
        return state.withLock { state in
            guard find(name, &state) == nil else { return nil }
            var activity = state.active[name] ?? Activity()
            guard activity.flight == nil else { return nil }
            let flight = Flight(now)
            activity.flight = flight
            activity.isOutdated = false
            state.active[name] = activity
            return flight
        }
    }

    /// Whether the checksum of the whole object was compared.
    func isVerified(_ name: String, _ key: ObjectKey) -> Bool {
        state.withLock { state in
            guard let known = state.new[BytewiseString(name)] ?? state.old[BytewiseString(name)] else { return false }
            return known.isVerified && known.key == key
        }
    }

    func noteVerified(_ name: String, _ key: ObjectKey) {
        let name = BytewiseString(name)
        state.withLock { state in
            guard find(name, &state)?.key == key else { return }
            state.new[name]?.isVerified = true
        }
    }

    /// Keeps the bytes of a small object, so that no file is read for it. They take at most a quarter of the memory.
    func keep(_ bytes: [UInt8], of name: String, _ key: ObjectKey) {
        let name = BytewiseString(name)
        state.withLock { state in
            guard var known = find(name, &state), known.key == key, known.bytes == nil else { return }
            known.bytes = bytes
            keep(name, known, &state)
        }
    }

    /// Ends a request. Its answer is kept, unless the object may have changed meanwhile.
    /// - Returns: The outcome, with what was known of the same version.
    @discardableResult func end(_ name: String, _ flight: Flight, _ outcome: Flight.Outcome) -> Flight.Outcome {
        let key = BytewiseString(name)
        let outcome = state.withLock { state -> Flight.Outcome in
            guard var activity = state.active[key], activity.flight === flight else { return outcome }
            activity.flight = nil
            let mayKeep = !activity.isOutdated && activity.changes == 0
            state.active[key] = activity.changes == 0 ? nil : activity
            switch outcome {
            case .known(let known):
                if mayKeep { return .known(keep(key, known, &state)) }
            case .failed(let error) where error.code == .objectNotFound: forget(key, &state)
            case .failed, .abandoned: break
            }
            return outcome
        }
        flight.end(outcome)
        return outcome
    }

    /// Marks the beginning of a change. Until its end nothing is kept about the name.
    func beginChange(_ name: String) {
        let name = BytewiseString(name)
        state.withLock { state in
            var activity = state.active[name] ?? Activity()
            activity.changes += 1
            activity.isOutdated = true
            state.active[name] = activity
            forget(name, &state)
        }
    }

    /// Marks the end of a change, whatever its result: a change whose response was lost may have been made.
    func endChange(_ name: String) {
        let name = BytewiseString(name)
        state.withLock { state in
            guard var activity = state.active[name] else { return }
            activity.changes -= 1
            activity.isOutdated = true
            state.active[name] = activity.changes == 0 && activity.flight == nil ? nil : activity
            forget(name, &state)
        }
    }

    /// Forgets an object.
    /// - Parameter version: Only if this version is known; nil for any.
    func forget(_ name: String, _ version: KnownObject? = nil) {
        let key = BytewiseString(name)
        state.withLock { state in
            if let version {
                guard let known = find(key, &state), known.key == version.key, known.asked == version.asked else {
                    return
                }
            } else if state.active[key] != nil {
                state.active[key]?.isOutdated = true
            }
            forget(key, &state)
        }
    }

    func forgetAll() {
        // Released without the lock.
        _ = state.withLock { state in
            for name in state.active.keys { state.active[name]?.isOutdated = true }
            defer { (state.new, state.old, state.newBytes, state.newContent) = ([:], [:], 0, 0) }
            return (state.new, state.old)
        }
    }

    private func find(_ name: BytewiseString, _ state: inout State) -> KnownObject? {
        if let known = state.new[name] { return known }
        guard let known = state.old.removeValue(forKey: name) else { return nil }
        keep(name, known, &state)
        return known
    }

    private func forget(_ name: BytewiseString, _ state: inout State) {
        if let known = state.new.removeValue(forKey: name) {
            state.newBytes -= KnownObjects.size(name, known)
            state.newContent -= known.bytes?.count ?? 0
        }
        state.old[name] = nil
    }

    /// What an object takes in memory, in bytes.
    private static func size(_ name: BytewiseString, _ known: KnownObject) -> Int {
        512 + 2 * name.utf8.count + known.metadata.attributes.pairBytes + (known.bytes?.count ?? 0)
    }

    /// - Returns: The object, with what was known of the same version.
    @discardableResult private func keep(_ name: BytewiseString, _ known: KnownObject, _ state: inout State)
        -> KnownObject
    {
        var known = known
        let last = state.new[name]
        if let last = last ?? state.old[name], last.key == known.key {
            known.isVerified = known.isVerified || last.isVerified
            known.bytes = known.bytes ?? last.bytes
        }
        if state.newContent - (last?.bytes?.count ?? 0) + (known.bytes?.count ?? 0) > half / 4 { known.bytes = nil }
        state.new[name] = known
        state.newBytes += KnownObjects.size(name, known) - (last.map { KnownObjects.size(name, $0) } ?? 0)
        state.newContent += (known.bytes?.count ?? 0) - (last?.bytes?.count ?? 0)
        state.old[name] = nil
        if state.newBytes > half {
            (state.old, state.new, state.newBytes, state.newContent) = (state.new, [:], 0, 0)
        }
        return known
    }
}
