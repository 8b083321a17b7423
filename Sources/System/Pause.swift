/// Waits once on a loop, for a callback or the cancellation of the task.
///
/// Safety: confined to the loop it was made on. A cancellation on another thread goes through the loop.
package final class Pause: @unchecked Sendable {
    private let loop: EventLoop
    private var waiter: UnsafeContinuation<Void, Never>?
    private var isOver = false

    package init() {
        guard let loop = EventLoop.current else {
            preconditionFailure("pauses are on a loop")
        }
        self.loop = loop
    }

    /// Waits for the callback passed to `begin`, or for the cancellation of the task.
    package func wait(_ begin: (@escaping () -> Void) -> Void) async {
        await suspend { waiter in
            if isOver { return waiter.resume() }
            self.waiter = waiter
            begin { [self] in finish() }
        } onCancel: {
            loop.runHere { self.finish() }
        }
    }

    /// Waits for `nanoseconds`, for ``end()``, or for the cancellation of the task.
    package func wait(atMost nanoseconds: UInt64) async {
        let timer = LoopTimer { self.finish() }
        await wait { _ in loop.arm(timer, after: nanoseconds) }
        loop.disarm(timer)
    }

    /// Waits for `nanoseconds`, or for the cancellation of the task.
    package static func sleep(_ nanoseconds: UInt64) async { await Pause().wait(atMost: nanoseconds) }

    /// Ends the wait, from any thread.
    package func end() { loop.runHere { self.finish() } }

    private func finish() {
        isOver = true
        waiter?.resume()
        waiter = nil
    }
}

extension EventLoop {
    /// Runs `work` immediately on the loop's thread, otherwise in the loop's next turn.
    package func runHere(_ work: @escaping @Sendable () -> Void) {
        if isCurrent { work() } else { execute(work) }
    }
}
