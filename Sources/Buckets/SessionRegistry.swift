import System

/// The upload sessions of a bucket that are in use. Each has one object that all its users share. Sessions that are
/// not in use take no memory here: their store has all their state.
final class SessionRegistry<Session: UploadSession>: Sendable {
    /// A session that exists as long as it has users.
    private struct Entry {
        weak var session: Session?
    }
    private let entries = Lock<[UploadSessionID: Entry]>([:])

    /// The object of a session. The session itself may not exist.
    /// - Parameter make: Makes the object if there is none.
    func session(_ id: UploadSessionID, _ make: () -> Session) -> Session {
        entries.withLock { entries in
            if let session = entries[id]?.session { return session }
            let session = make()
            entries[id] = Entry(session: session)
            return session
        }
    }

    /// Removes the entry of a released object, unless there is a new object for the session.
    func remove(_ id: UploadSessionID) {
        // Release it outside of the lock: if this is the last reference, its deinitializer comes back here.
        let other = entries.withLock { entries in
            let other = entries[id]?.session
            if other == nil { entries[id] = nil }
            return other
        }
        withExtendedLifetime(other) {}
    }
}

/// Lets tasks of any loop proceed one at a time, in the order of arrival.
final class AsyncTurn: Sendable {
    private struct State {
        var isTaken = false
        /// The waiting tasks by their numbers, which they get as they arrive.
        var waiters: [UInt64: CheckedContinuation<Bool, Never>] = [:]
        /// No waiter has a smaller number.
        var first: UInt64 = 0
        /// The number given last.
        var last: UInt64 = 0

        mutating func remove(_ number: UInt64) -> CheckedContinuation<Bool, Never>? {
            let waiter = waiters.removeValue(forKey: number)
            // The memory of many waiters is given back.
            if waiters.isEmpty, waiters.capacity > 64 { waiters = [:] }
            return waiter
        }
    }
    private let state = Lock(State())

    /// Waits for the turn. ``end()`` must follow if it has come.
    /// - Parameter givingUp: Whether a task that is cancelled waits no longer.
    /// - Returns: Whether it has come.
    func take(givingUp: Bool = false) async -> Bool {
        let number = state.withLock { state in
            state.last += 1
            return state.last
        }
        return await withTaskCancellationHandler {
            await withCheckedContinuation { waiter in
                let hasCome: Bool? = state.withLock { state in
                    if state.isTaken, givingUp, Task.isCancelled { return false }
                    guard state.isTaken else {
                        state.isTaken = true
                        return true
                    }
                    state.first = state.waiters.isEmpty ? number : min(state.first, number)
                    state.waiters[number] = waiter
                    return nil
                }
                if let hasCome { waiter.resume(returning: hasCome) }
            }
        } onCancel: {
            if givingUp { giveUp(number) }
        }
    }

    private func giveUp(_ number: UInt64) {
        let waiter = state.withLock { $0.remove(number) }
        waiter?.resume(returning: false)
    }

    /// Passes the turn to the next task.
    func end() {
        let next: CheckedContinuation<Bool, Never>? = state.withLock { state in
            if state.waiters.isEmpty {
                state.isTaken = false
                return nil
            }
            // The numbers of tasks that have given up are passed only once.
            while true {
                defer { state.first += 1 }
                if let next = state.remove(state.first) { return next }
            }
        }
        next?.resume(returning: true)
    }
}

/// Runs `body` in a task of its own, and waits for its end: at most `limit` nanoseconds. It continues after that.
/// - Parameter loop: Where it runs; nil for no loop.
/// - Returns: Whether it has ended.
func finishes(within limit: UInt64, on loop: EventLoop?, _ body: @escaping @Sendable () async -> Void) async -> Bool {
    var alarm: Task<Void, any Error>?
    let hasEnded = await withCheckedContinuation { done in
        let waiting = Lock<CheckedContinuation<Bool, Never>?>(done)
        Task(executorPreference: loop) {
            await body()
            waiting.withLock { $0.take() }?.resume(returning: true)
        }
        alarm = Task {
            try await Task.sleep(nanoseconds: limit)
            waiting.withLock { $0.take() }?.resume(returning: false)
        }
    }
    alarm?.cancel()
    return hasEnded
}
