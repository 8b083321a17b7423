import Glibc
import System
import Testing

/// Safety: confined to the loop's thread until it has ended.
private final class Ticker: @unchecked Sendable {
    var ticks = 0
    var timer: LoopTimer?
}

@Suite struct TimerTests {
    @Test func aTimerMayArmItselfAgain() throws {
        let loop = try EventLoop()
        let ticker = Ticker()
        loop.execute {
            ticker.timer = LoopTimer { [unowned ticker, unowned loop] in
                ticker.ticks += 1
                if ticker.ticks == 3 { return loop.stop() }
                loop.arm(ticker.timer!, after: 1000)
            }
            loop.arm(ticker.timer!, after: 0)
        }
        let thread = startThread { loop.run() }
        pthread_join(thread, nil)
        #expect(ticker.ticks == 3)
    }
}
