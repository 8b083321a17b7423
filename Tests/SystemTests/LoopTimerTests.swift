import Glibc
import System
import Testing

/// A timer that arms itself a few times while it fires and disarms another. Confined to its loop.
private final class Rearming {
    private let loop: EventLoop
    private let done: () -> Void
    private var rounds: [UInt64] = []
    private var timer: LoopTimer?
    private let other = LoopTimer { Issue.record("a disarmed timer fired") }

    init(_ loop: EventLoop, _ done: @escaping () -> Void) {
        self.loop = loop
        self.done = done
        loop.arm(other, after: 60_000_000_000)
        timer = LoopTimer { self.fired() }
        timer.map { loop.arm($0, after: 0) }
    }

    private func fired() {
        guard let timer else { return }
        #expect(!timer.isArmed)
        #expect(!rounds.contains(loop.now), "it fired twice in one turn")
        rounds.append(loop.now)
        if rounds.count < 3 { return loop.arm(timer, after: 0) }
        loop.disarm(other)
        #expect(!other.isArmed)
        self.timer = nil
        done()
    }
}

@Suite struct LoopTimerTests {
    /// Calls `body` on a running loop, and waits until the continuation is resumed.
    private func withLoop<Result: Sendable>(
        _ body: @escaping @Sendable (EventLoop, CheckedContinuation<Result, Never>) -> Void
    ) async throws -> Result {
        let loop = try EventLoop()
        let thread = startThread { loop.run() }
        let result = await withCheckedContinuation { waiter in
            loop.execute { body(loop, waiter) }
        }
        loop.stop()
        pthread_join(thread, nil)
        return result
    }

    @Test func aTimerMayArmItselfAndDisarmOthersWhileItFires() async throws {
        try await withLoop { loop, waiter in _ = Rearming(loop) { waiter.resume() } }
    }

    @Test func timersFireInTheOrderOfTheirDeadlines() async throws {
        let order = try await withLoop { loop, waiter in
            var fired: [UInt64] = []
            var timers: [LoopTimer] = []
            let delays: [UInt64] = (0..<40).map { ($0 * 7919) % 40 * 100_000 }
            for delay in delays {
                let timer = LoopTimer {
                    fired.append(delay)
                    if fired.count == delays.count {
                        timers = []
                        waiter.resume(returning: fired)
                    }
                }
                timers.append(timer)
                loop.arm(timer, after: delay)
            }
        }
        #expect(order == order.sorted())
        #expect(order.count == 40)
    }

    @Test func eventsDuringAPausePrecedeTimers() async throws {
        let order = try await withLoop { loop, waiter in
            var ends: [Int32] = [0, 0]
            pipe(&ends)
            let reader = Reader(loop, ends[0])
            let timer = LoopTimer {
                reader.events.append("timer")
                reader.stop()
                Glibc.close(ends[1])
                waiter.resume(returning: reader.events)
            }
            reader.timer = timer
            loop.arm(timer, after: 1_000_000)
            write(ends[1], "x", 1)
            // The pause: both are due when the loop looks again.
            usleep(20_000)
        }
        #expect(order == ["readable", "timer"])
    }
}

/// Takes down when it may read. Confined to its loop.
private final class Reader: EventHandler {
    var events: [String] = []
    var timer: LoopTimer?
    private let loop: EventLoop
    private let descriptor: Int32
    private var registration: Registration?

    init(_ loop: EventLoop, _ descriptor: Int32) {
        self.loop = loop
        self.descriptor = descriptor
        registration = try? loop.register(descriptor, self)
    }

    func ready(_ readiness: Readiness) {
        if readiness.contains(.readable) { loop.markDirty(self) }
    }

    func settle() { events.append("readable") }

    func stop() {
        if let registration { loop.deregister(registration) }
        Glibc.close(descriptor)
        timer = nil
    }
}
