import System

/// The upload sessions of a bucket that are in use, each with one object shared by all users. Idle sessions take no
/// memory: their store has their state.
final class SessionRegistry<Session: PendingUpload>: Sendable {
    private struct Entry {
        weak var session: Session?
    }
    private let entries = Lock<[UploadSessionID: Entry]>([:])

    /// The object of a session, made by `make` if there is none. The session itself may not exist.
    func session(_ id: UploadSessionID, _ make: () -> Session) -> Session {
        entries.withLock { entries in
            if let session = entries[id]?.session { return session }
            let session = make()
            entries[id] = Entry(session: session)
            return session
        }
    }

    /// Removes the entry of a released object, unless the session has a new one.
    func remove(_ id: UploadSessionID) {
        // Release it outside the lock: the deinitializer of the last reference comes back here.
        let other = entries.withLock { entries in
            let other = entries[id]?.session
            if other == nil { entries[id] = nil }
            return other
        }
        withExtendedLifetime(other) {}
    }
}

/// Lets tasks of any loop proceed one at a time, in order of arrival.
final class AsyncTurn: Sendable {
    private struct State {
        var isTaken = false
        /// The waiting tasks by number, in order of arrival.
        var waiters: [UInt64: CheckedContinuation<Bool, Never>] = [:]
        /// No waiter has a smaller number.
        var first: UInt64 = 0
        /// The number given last.
        var last: UInt64 = 0

        mutating func remove(_ number: UInt64) -> CheckedContinuation<Bool, Never>? {
            let waiter = waiters.removeValue(forKey: number)
            // Free the memory of many waiters.
            if waiters.isEmpty, waiters.capacity > 64 { waiters = [:] }
            return waiter
        }
    }
    private let state = Lock(State())

    /// Waits for the turn, and returns whether it has come; if so, ``end()`` must follow.
    /// - Parameter givingUp: Whether a cancelled task stops waiting.
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

    func end() {
        let next: CheckedContinuation<Bool, Never>? = state.withLock { state in
            if state.waiters.isEmpty {
                state.isTaken = false
                return nil
            }
            // Numbers of tasks that stopped waiting are passed only once.
            while true {
                defer { state.first += 1 }
                if let next = state.remove(state.first) { return next }
            }
        }
        next?.resume(returning: true)
    }
}

/// Runs `body` in its own task, and waits for its end for at most `limit` nanoseconds; it continues after that.
/// - Parameter loop: The loop of the task; nil for none.
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
