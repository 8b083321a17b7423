import System
import Wire

/// The state of one session as this gateway knows it, and its conditional writes.
///
/// The gateway that made the last write owns the session. Only the owner sends bytes of the session to the service,
/// after it has declared that (``CloudSessionState/isOpen``). Another gateway becomes the owner by a write, after which
/// every write of the former owner fails. Thus no other gateway changes what an owner has acknowledged.
///
/// Safety: used by one task at a time, which its session ensures.
final class CloudSessionFile: Sendable {
    let id: UploadSessionID
    private let store: any CloudSessionStore
    private let owner: CloudSessionState.Owner
    /// Whether it is an upload in parts. The state of the other kind counts as missing.
    private let isInParts: Bool
    /// Microseconds since 1970.
    private let clock: @Sendable () -> Int64
    private struct Known {
        var state: CloudSessionState
        var version: String
        /// Whether it was only read. The next write claims it.
        var isUnclaimed = false
    }
    private struct Held {
        /// The state of the last write, or the one that the next write claims; nil if it may not be the current one.
        var own: Known?
        /// A state that was read but not claimed.
        var read: Known?
        /// The bytes of the pieces of the state with this stamp.
        var tail: (stamp: UInt64, spool: SessionSpool)?
        /// The pieces of this process for which no request can still be executed.
        var settled: Set<UInt64> = []
        var isGone = false
        /// Whether a request may be executed that the state does not record.
        var hasLostRequest = false
    }
    private let held = Lock(Held())
    /// The maximum number of attempts while other gateways claim the session too.
    private static let attempts = 8

    init(
        _ id: UploadSessionID, _ store: any CloudSessionStore, _ owner: CloudSessionState.Owner,
        isInParts: Bool = false, clock: @escaping @Sendable () -> Int64
    ) {
        self.id = id
        self.store = store
        self.owner = owner
        self.isInParts = isInParts
        self.clock = clock
    }

    private var name: String { HiddenName.state(id).text }

    /// Seconds since 1970.
    private var now: Int64 { clock() / 1_000_000 }

    var milliseconds: Int64 { clock() / 1000 }

    var isExpired: Bool { now >= id.expires }

    /// The state that the next write replaces; nil if there is none. Another gateway may have changed it meanwhile.
    var known: CloudSessionState? { held.withLock { $0.own?.state } }

    var isGone: Bool {
        let (isGone, own) = held.withLock { ($0.isGone, $0.own?.state) }
        return isGone || isExpired || own.map { now >= $0.expires } ?? false
    }

    /// The approximate size of the known state in bytes; nil if it is not known.
    var size: Int? {
        guard let state = known else { return nil }
        var size = 4096 + state.context.count + state.tail.count
        size += 128 * state.selected.count
        return size
    }

    /// The session's context, which never changes; nil if no state is known.
    var context: [UInt8]? { held.withLock { ($0.own ?? $0.read)?.state.context } }

    /// Whether a state is known, so that the session existed a moment ago.
    var isKnown: Bool { held.withLock { $0.own != nil || $0.read != nil } }

    // MARK: Reading

    func create(_ state: CloudSessionState) async throws(SessionError) {
        var state = state
        state.owner = owner
        try await write(state, replacing: nil)
    }

    /// Reads the state, for a call that claims it.
    /// - Throws: ``SessionError/notFound`` if there is none.
    func read() async throws(SessionError) {
        let found = try await fetch()
        held.withLock { $0.read = found }
    }

    private func fetch() async throws(SessionError) -> Known {
        if isExpired || held.withLock({ $0.isGone }) { throw .notFound }
        let found: HiddenObject?
        let state: CloudSessionState?
        do throws(BucketError) {
            found = try await store.readHidden(name)
            state = try found.flatMap { (found) throws(BucketError) in
                try CloudSessionState(readable: found.bytes)
            }
        } catch {
            throw .store(error)
        }
        guard let found, let state else { throw .notFound }
        try check(state)
        return Known(state: state, version: found.version)
    }

    private func check(_ state: CloudSessionState) throws(SessionError) {
        let isOver = state.end == .cancelled || now >= min(state.expires, id.expires)
        if isOver || state.isInParts != isInParts { throw .notFound }
    }

    // MARK: Claiming

    /// The current state, claimed by this gateway so that no other sends bytes, unless it has ended. One read for the
    /// owner; otherwise also a write.
    func claim() async throws(SessionError) -> CloudSessionState {
        for _ in 0..<CloudSessionFile.attempts {
            let (own, read) = held.withLock { held in
                defer { held.read = nil }
                return (held.own, held.read)
            }
            let found: Known
            if let read { found = read } else { found = try await fetch() }
            if found.state.end != nil {
                held.withLock { $0.own = nil }
                return found.state
            }
            if let own, own.version == found.version, !own.isUnclaimed, !own.state.isOpen { return found.state }
            do throws(SessionError) {
                return try await write(claimed(found.state), replacing: found.version)
            } catch {
                guard case .superseded = error else { throw error }
            }
        }
        throw .store(BucketError(.overloaded, "other gateways use the upload session, too"))
    }

    private func claimed(_ state: CloudSessionState) -> CloudSessionState {
        var next = state
        if next.owner != owner {
            next.isTakenOver = true
            held.withLock { $0.settled = [] }
        }
        next.owner = owner
        next.isOpen = false
        return next
    }

    /// The state that the next write replaces, if its offset is `offset`; nil for any offset. It may be out of date: then the write fails.
    func trusted(at offset: UInt64?) throws(SessionError) -> CloudSessionState? {
        guard let own = held.withLock({ $0.own?.state }), !own.isOpen, own.offset == offset ?? own.offset else {
            return nil
        }
        try check(own)
        return own
    }

    /// Reads the state for an append that begins with a write, which then claims it. It is claimed now if the owner may
    /// be sending bytes, or if a write of this process may still be executed.
    func readForAppend() async throws(SessionError) -> CloudSessionState {
        let found: Known
        if let read = held.withLock({ $0.read }) { found = read } else { found = try await fetch() }
        held.withLock { $0.read = found }
        if found.state.end != nil || found.state.isOpen || found.state.owner == owner { return try await claim() }
        let next = claimed(found.state)
        held.withLock { $0.own = Known(state: next, version: found.version, isUnclaimed: true) }
        return next
    }

    /// Claims a state that was only read.
    func takeOver() async throws(SessionError) {
        if held.withLock({ $0.own?.isUnclaimed }) == true { try await update { _ in } }
    }

    // MARK: Pieces of the tail

    /// The maximum size of a tail that is kept in a file: 16 MiB, two parts of the usual size.
    private static let tailLimit: UInt64 = 16 << 20

    /// Keeps the bytes of the pieces of the last written state in a file, so that the owner need not read them back.
    func keepTail(_ spool: SessionSpool) {
        guard spool.count <= CloudSessionFile.tailLimit else { return }
        held.withLock { held in held.tail = held.own.map { ($0.state.stamp, spool) } }
    }

    /// The bytes of the pieces of the known state, if they are kept. The caller may change the file.
    func takeTail() -> SessionSpool? {
        held.withLock { held in
            let (tail, stamp) = (held.tail, held.own?.state.stamp)
            held.tail = nil
            return tail.flatMap { $0.stamp == stamp ? $0.spool : nil }
        }
    }

    /// Whether this process may write the piece again: no earlier request can still be executed, also of another gateway.
    func isSettled(_ piece: UInt64) -> Bool { held.withLock { $0.settled.contains(piece) } }

    /// Sets ``isSettled(_:)`` around a request that writes the piece.
    func settle(_ piece: UInt64, _ isSettled: Bool) {
        held.withLock { held in
            if isSettled { held.settled.insert(piece) } else { held.settled.remove(piece) }
        }
    }

    // MARK: Writing

    /// Makes the next write record that an unknown request may be executed (``CloudSessionState/isTakenOver``).
    func noteLostRequest() { held.withLock { $0.hasLostRequest = true } }

    /// Ends the session, which no longer exists when this returns. Its leftovers at the service may.
    /// - Returns: The state before.
    func cancel() async throws(SessionError) -> CloudSessionState {
        for _ in 0..<CloudSessionFile.attempts {
            let found = try await fetch()
            var next = found.state
            if next.owner != owner { next.isTakenOver = true }
            next.end = .cancelled
            do throws(SessionError) {
                try await write(next, replacing: found.version)
                return found.state
            } catch {
                guard case .superseded = error else { throw error }
            }
        }
        throw .store(BucketError(.overloaded, "other gateways use the upload session, too"))
    }

    /// Ends a session whose bytes the service has lost, for example by a lifecycle rule, and returns the error to
    /// throw.
    func endWithoutParts() async -> SessionError {
        do throws(SessionError) { try await update { $0.end = .cancelled } } catch { return error }
        return .notFound
    }

    /// Changes the state of the last own write.
    /// - Throws: ``SessionError/superseded`` if another gateway has changed it.
    @discardableResult
    func update(_ change: (inout CloudSessionState) -> Void) async throws(SessionError)
        -> CloudSessionState
    {
        guard let own = held.withLock({ $0.own }) else { throw .superseded }
        var next = own.state
        change(&next)
        return try await write(next, replacing: own.version)
    }

    /// Writes a state. If the result is unknown, the state is read back. A write that is not found may still be
    /// executed later: the next call claims the session, after which the late write fails.
    @discardableResult
    private func write(_ state: CloudSessionState, replacing version: String?)
        async throws(SessionError) -> CloudSessionState
    {
        var next = state
        next.owner = owner
        if held.withLock({ $0.hasLostRequest }) { next.isTakenOver = true }
        next.stamp = UInt64.random(in: 0 ... .max)
        let bytes = next.bytes
        var failure = SessionError.superseded
        held.withLock { held in
            held.own = nil
            held.tail = nil
        }
        do throws(BucketError) {
            if let written = try await store.writeHidden(name, bytes, replacing: version) {
                adopt(next, written)
                return next
            }
        } catch {
            failure = .store(error)
        }
        if let found = try? await store.readHidden(name), found.bytes == bytes {
            adopt(next, found.version)
            return next
        }
        held.withLock { $0.settled = [] }
        throw failure
    }

    private func adopt(_ state: CloudSessionState, _ version: String) {
        held.withLock { held in
            held.read = nil
            held.own = Known(state: state, version: version)
            if state.end == .cancelled { held.isGone = true }
        }
    }
}
