import EventLoop
import Glibc
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
    @Test func aTimerMayArmItselfAndDisarmOthersWhileItFires() async throws {
        let loop = try EventLoop()
        let thread = startThread { loop.run() }
        await withCheckedContinuation { waiter in
            loop.execute { _ = Rearming(loop) { waiter.resume() } }
        }
        loop.stop()
        pthread_join(thread, nil)
    }

    @Test func timersFireInTheOrderOfTheirDeadlines() async throws {
        let loop = try EventLoop()
        let thread = startThread { loop.run() }
        let order = await withCheckedContinuation { waiter in
            loop.execute {
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
        }
        #expect(order == order.sorted())
        #expect(order.count == 40)
        loop.stop()
        pthread_join(thread, nil)
    }
}
