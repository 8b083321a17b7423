import System

/// Waits once on a loop, for a callback or the cancellation of the task.
///
/// Safety: confined to the loop it was made on. A cancellation on another thread goes through the loop.
final class Pause: @unchecked Sendable {
    private let loop: EventLoop
    private var waiter: UnsafeContinuation<Void, Never>?
    private var isOver = false

    init() {
        guard let loop = EventLoop.current else {
            preconditionFailure("a request begins on a loop")
        }
        self.loop = loop
    }

    /// Waits for the callback passed to `begin`, or for the cancellation of the task.
    func wait(_ begin: (@escaping () -> Void) -> Void) async {
        await suspend { waiter in
            if isOver { return waiter.resume() }
            self.waiter = waiter
            begin { [self] in finish() }
        } onCancel: {
            loop.runHere { self.finish() }
        }
    }

    /// Waits for `nanoseconds`, or for the cancellation of the task.
    static func sleep(_ nanoseconds: UInt64) async {
        let pause = Pause()
        let timer = LoopTimer { pause.finish() }
        await pause.wait { _ in pause.loop.arm(timer, after: nanoseconds) }
        pause.loop.disarm(timer)
    }

    private func finish() {
        isOver = true
        waiter?.resume()
        waiter = nil
    }
}

extension EventLoop {
    /// Runs `work` immediately on the loop's thread, otherwise in the loop's next turn.
    func runHere(_ work: @escaping @Sendable () -> Void) {
        if isCurrent { work() } else { execute(work) }
    }
}
