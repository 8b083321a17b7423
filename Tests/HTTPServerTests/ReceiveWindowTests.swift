import System
import Testing

@testable import HTTPServer

/// Walks every row of the tables of ``StreamWindow`` and ``ConnectionWindow``.
@Suite("Receive windows")
struct ReceiveWindowTests {
    private static let limits = {
        var limits = ServerLimits()
        limits.initialWindow = 100
        limits.maximumWindow = 350
        return limits
    }()

    @Test("A stream's window doubles with each window consumed, up to its maximum")
    func streamGrows() {
        var window = StreamWindow()
        for (count, increment) in [
            (99, 0), (1, 100), (199, 0), (1, 150), (350, 0), (349, 0), (1, 0),
        ] {
            let more = window.consumed(count, isQueueEmpty: true, Self.limits)
            #expect(more == increment)
            window.granted(more)
        }
        #expect(window.grown == 250)
        #expect(window.size(Self.limits) == 350)
    }

    @Test("A window whose bytes are still queued does not grow, and the count starts again")
    func queued() {
        var window = StreamWindow()
        #expect(window.consumed(100, isQueueEmpty: false, Self.limits) == 0)
        #expect(window.consumed(99, isQueueEmpty: true, Self.limits) == 0)
        #expect(window.consumed(1, isQueueEmpty: true, Self.limits) == 100)
    }

    @Test("An increment that is not granted does not change the window, and the count starts again")
    func notGranted() {
        var window = StreamWindow()
        #expect(window.consumed(100, isQueueEmpty: true, Self.limits) == 100)
        #expect(window.size(Self.limits) == 100)
        #expect(window.consumed(99, isQueueEmpty: true, Self.limits) == 0)
        #expect(window.consumed(1, isQueueEmpty: true, Self.limits) == 100)
    }

    @Test("A connection's window follows the sum of its streams")
    func connection() {
        var limits = ServerLimits()
        limits.maximumWindow = 100_000
        var window = ConnectionWindow(limits)
        #expect(window.size == 100_000)
        #expect(window.streamGrew(by: 100_000) == nil)
        #expect(window.streamGrew(by: 1) == 100_001)
        window.streamClosed(grown: 100_000)
        #expect(window.size == 100_001)
        #expect(window.streamGrew(by: 100_000) == nil)
        #expect(window.streamGrew(by: 1) == 100_002)
    }

    @Test("A connection's window is never smaller than the initial one of RFC 9113")
    func smallest() {
        #expect(ConnectionWindow(Self.limits).size == 65_535)
    }

    @Test("All windows of a loop together promise four times its budget beyond the initial windows")
    func loop() throws {
        var limits = ServerLimits()
        limits.receiveBudget = 1000
        let context = LoopContext(
            loop: try EventLoop(), limits: limits, statistics: ServerStatistics())
        #expect(context.grow(3999))
        #expect(!context.grow(2))
        #expect(context.grow(1))
        #expect(!context.grow(1))
        context.shrink(3999)
        #expect(context.grow(3999))
        #expect(context.grownWindows == 4000)
    }
}
