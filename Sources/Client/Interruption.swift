import Dispatch
import Foundation
import Synchronization

/// Ends the program on SIGINT, SIGTERM or SIGHUP: at once, unless something is open at the gateway that only this process
/// knows of. That is removed first, within ``limit``; a second signal ends the program at once.
enum Interruption {
    /// Seconds.
    private static let limit: TimeInterval = 5

    private struct State {
        var canContinue = false
        var cancel: (@Sendable () -> Void)?
        /// How many transfers have something to remove.
        var open = 0
        var signal: Int32?
    }
    private static let state = Mutex(State())
    // Safety: set once, before other threads exist.
    nonisolated(unsafe) private static var sources: [any DispatchSourceSignal] = []

    /// The ends of a pipe. The second one is closed when the program is interrupted.
    private static let wakeup: (read: Int32, write: Int32) = {
        var ends: [Int32] = [-1, -1]
        _ = pipe(&ends)
        return (ends[0], ends[1])
    }()

    /// It has an event once the program was interrupted: for what waits in poll(2).
    static var descriptor: Int32 { wakeup.read }

    static var isInterrupted: Bool { state.withLock { $0.signal != nil } }

    /// Takes over the signals.
    static func arm() {
        for number in [SIGINT, SIGTERM, SIGHUP] {
            // Who has started this program may want a signal ignored: nohup(1), a shell in the background.
            let before = signal(number, SIG_IGN)
            if unsafeBitCast(before, to: Int.self) == unsafeBitCast(SIG_IGN, to: Int.self) {
                continue
            }
            let source = DispatchSource.makeSignalSource(signal: number, queue: queue)
            source.setEventHandler { received(number) }
            source.resume()
            sources.append(source)
        }
    }

    private static let queue = DispatchQueue(label: "sluice.signals")

    /// - Parameters:
    ///   - canContinue: ``Verb/canContinue`` of the verb.
    ///   - cancel: Cancels it.
    static func begin(canContinue: Bool, _ cancel: @escaping @Sendable () -> Void) {
        state.withLock { state in
            state.canContinue = canContinue
            state.cancel = cancel
        }
    }

    private static func received(_ number: Int32) {
        let (first, now) = state.withLock { state in
            defer { state.signal = state.signal ?? number }
            return (state.signal == nil, state)
        }
        guard first else { _exit(128 + number) }
        let advice = now.canContinue ? "; the same command continues where it was." : "."
        Output.line("interrupted\(advice)")
        guard now.open > 0 else { _exit(128 + number) }
        close(wakeup.write)
        now.cancel?()
        queue.asyncAfter(deadline: .now() + limit) { _exit(128 + number) }
    }

    /// Runs a transfer that cleans up at the gateway if its task is cancelled. An interruption waits for that.
    static func deferred<Value>(_ body: () async throws -> Value) async throws -> Value {
        try state.withLock { state in
            if state.signal != nil { throw CancellationError() }
            state.open += 1
        }
        defer {
            let ended = state.withLock { state in
                state.open -= 1
                return state.open == 0 ? state.signal : nil
            }
            if let ended { _exit(128 + ended) }
        }
        return try await body()
    }
}
