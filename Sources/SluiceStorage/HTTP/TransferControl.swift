import Dispatch
import Foundation
import Synchronization

/// Pauses and cancels one operation. Its methods can be called from any thread.
final class TransferControl: Sendable {
    private enum Phase { case running, pausing, paused, cancelled }
    private struct State {
        var phase = Phase.running
        var waiter: Waiter?
        var next = 0
        var handlers: [Int: @Sendable () -> Void] = [:]
    }
    private let state = Mutex(State())
    /// For pauses and limits. Serial, so that it never needs more than one thread.
    static let timers = DispatchQueue(label: "SluiceStorage.timers")

    /// Stops at the next checkpoint.
    func pause() {
        wake { if $0.phase == .running { $0.phase = .pausing } }
    }

    /// Continues.
    func resume() {
        wake { if $0.phase != .cancelled { $0.phase = .running } }
    }

    /// Stops now.
    func cancel() {
        let handlers = state.withLock { state in
            state.phase = .cancelled
            defer { state.handlers = [:] }
            return Array(state.handlers.values)
        }
        for handler in handlers { handler() }
        wake { _ in }
    }

    private func wake(_ change: (inout State) -> Void) {
        let waiter = state.withLock { state in
            change(&state)
            return state.waiter
        }
        waiter?.wake()
    }

    var isCancelled: Bool { state.withLock { $0.phase == .cancelled } }

    /// Calls `handler` when the operation is cancelled, at once if it is.
    func onCancel(_ handler: @escaping @Sendable () -> Void) -> Int {
        let token: Int? = state.withLock { state in
            guard state.phase != .cancelled else { return nil }
            state.next += 1
            state.handlers[state.next] = handler
            return state.next
        }
        if token == nil { handler() }
        return token ?? 0
    }

    func removeHandler(_ token: Int) {
        state.withLock { state in _ = state.handlers.removeValue(forKey: token) }
    }

    /// Waits while the operation is paused.
    /// - Parameters:
    ///   - paused: Called when it has stopped.
    ///   - resumed: Called when the transfer resumes after that.
    /// - Throws: `cancelled`.
    func checkpoint(paused: () -> Void = {}, resumed: () -> Void = {}) async throws(StorageError) {
        var wasPaused = false
        while true {
            let waiter = Waiter()
            let phase = state.withLock { state in
                if state.phase == .pausing { state.phase = .paused }
                state.waiter = state.phase == .paused ? waiter : nil
                return state.phase
            }
            switch phase {
            case .cancelled: throw .cancelled
            case .running, .pausing:
                if wasPaused { resumed() }
                return
            case .paused:
                if !wasPaused { paused() }
                wasPaused = true
                await waiter.wait()
            }
        }
    }

    /// Runs `body`, but waits no longer than some seconds, and no longer than until a cancellation.
    /// - Returns: nil if `body` has not ended by then. Its task is cancelled.
    func limited<Value: Sendable>(
        _ seconds: TimeInterval, _ body: @escaping @Sendable () async -> Value
    ) async -> Value? {
        let waiter = Waiter()
        let result = Found<Value>()
        let task = Task.detached {
            let value = await body()
            result.value.withLock { $0 = value }
            waiter.wake()
        }
        let handler = onCancel { waiter.wake() }
        await waiter.wait(atMost: seconds)
        removeHandler(handler)
        // Read before the cancellation, to which `body` may react with its own value.
        defer { task.cancel() }
        return result.value.withLock { $0 }
    }

    /// Waits for some seconds, or until the operation is to pause, resume or be cancelled.
    func sleep(_ seconds: TimeInterval) async {
        let waiter = Waiter()
        let isRunning = state.withLock { state in
            state.waiter = waiter
            return state.phase == .running
        }
        if isRunning {
            await waiter.wait(atMost: seconds)
        }
        state.withLock { $0.waiter = nil }
    }
}

/// The result of a limited piece of work.
private final class Found<Value: Sendable>: Sendable {
    let value = Mutex<Value?>(nil)
}

/// Wakes one waiting task, also if it is woken before it waits.
final class Waiter: Sendable {
    private let state = Mutex((isWoken: false, waiting: CheckedContinuation<Void, Never>?.none))

    func wait() async {
        await withCheckedContinuation { continuation in
            let isWoken = state.withLock { state in
                if !state.isWoken { state.waiting = continuation }
                return state.isWoken
            }
            if isWoken { continuation.resume() }
        }
    }

    /// Waits at most some seconds, and then removes the timer.
    func wait(atMost seconds: TimeInterval) async {
        let timer = DispatchSource.makeTimerSource(queue: TransferControl.timers)
        timer.setEventHandler { self.wake() }
        timer.schedule(deadline: .now() + seconds)
        timer.resume()
        await wait()
        timer.cancel()
    }

    func wake() {
        let waiting = state.withLock { state in
            state.isWoken = true
            defer { state.waiting = nil }
            return state.waiting
        }
        waiting?.resume()
    }
}
