import System
import Testing

@testable import HTTPServer

/// Walks every row of the tables of ``StreamWindow``, ``ConnectionWindow`` and ``RoundTrip``.
@Suite("Receive windows")
struct ReceiveWindowTests {
    private static let mebibyte = 1024 * 1024
    private static let millisecond: UInt64 = 1_000_000

    private static func limits(_ initial: Int, _ maximum: Int) -> ServerLimits {
        var limits = ServerLimits()
        limits.initialWindow = initial
        limits.maximumWindow = maximum
        return limits
    }
    private static let small = limits(100, 350)
    private static let large = limits(mebibyte, 4 * mebibyte)

    /// Consumes bytes without a body's length and with an empty queue, and grants what the window asks for.
    private static func consume(
        _ window: inout StreamWindow, _ count: Int, at now: UInt64 = 0, waiting: Int = 0,
        missing: UInt64 = 0, _ limits: ServerLimits, _ path: StreamWindow.Path = .init()
    ) -> Int {
        let change = window.consumed(
            count, missing: missing, waiting: waiting, path, now: now, limits)
        window.resized(by: change)
        return change
    }

    @Test("A stream's window doubles with each window consumed, up to its maximum")
    func streamGrows() {
        var window = StreamWindow(0)
        for (count, increment) in [
            (99, 0), (1, 100), (199, 0), (1, 150), (350, 0), (349, 0), (1, 0),
        ] {
            #expect(Self.consume(&window, count, Self.small) == increment)
        }
        #expect(window.grown == 250)
        #expect(window.size(Self.small) == 350)
    }

    @Test(
        "A window of which more than a quarter is queued does not grow, and the count starts again")
    func queued() {
        var window = StreamWindow(0)
        #expect(Self.consume(&window, 100, waiting: 26, Self.small) == 0)
        #expect(Self.consume(&window, 99, Self.small) == 0)
        #expect(Self.consume(&window, 1, waiting: 25, Self.small) == 100)
    }

    @Test("Above 1 MiB, a window follows the bytes consumed in a round trip")
    func followsThePath() {
        let path = StreamWindow.Path(roundTrip: 50 * Self.millisecond)
        var window = StreamWindow(0)
        let (mebibyte, millisecond) = (Self.mebibyte, Self.millisecond)
        // Unknown round trip.
        #expect(Self.consume(&window, mebibyte, at: 10, Self.large) == 0)
        var now: UInt64 = 10
        for (milliseconds, change) in [
            (99, 1), (101, 0), (200, 0), (99, 2), (99, 0), (201, -2), (201, -1), (201, 0), (99, 1),
        ] as [(UInt64, Int)] {
            now += milliseconds * millisecond
            let size = window.size(Self.large)
            #expect(
                Self.consume(&window, size, at: now, Self.large, path) == change * mebibyte,
                "\(milliseconds) ms for \(size) bytes")
        }
    }

    @Test(
        "A body of known length gets what a fast path carries in a round trip, once that is known")
    func opens() {
        let path = StreamWindow.Path(roundTrip: 8 * Self.millisecond)
        let carried = 4 * Self.mebibyte + 300_000
        let limits = Self.limits(1000, 5 * Self.mebibyte)
        func opened(_ missing: Int, _ path: StreamWindow.Path) -> Int {
            var window = StreamWindow(0)
            #expect(Self.consume(&window, 1, missing: UInt64(missing), limits) == 0)
            #expect(window.awaitsRoundTrip)
            let change = Self.consume(&window, 0, missing: UInt64(missing), limits, path)
            #expect(!window.awaitsRoundTrip)
            #expect(Self.consume(&window, 0, missing: UInt64(missing), limits, path) == 0)
            return change + 1000
        }
        #expect((carried - 200_000...carried).contains(opened(1 << 30, path)))
        #expect(opened(50_000, path) == 50_000)
        #expect(opened(1000, path) == 1000)
        #expect(opened(0, path) == 1000)
        let long = StreamWindow.Path(roundTrip: 900 * Self.millisecond)
        #expect(opened(1 << 30, long) == 5 * Self.mebibyte)
        let shared = StreamWindow.Path(roundTrip: 900 * Self.millisecond, streams: 5)
        #expect(opened(1 << 30, shared) == 2 * Self.mebibyte)
    }

    @Test("Consumed bytes are returned by halves of a small window and by eighths of a large one")
    func updates() {
        var window = StreamWindow(0)
        _ = Self.consume(&window, 49, Self.small)
        #expect(window.takeUpdate(Self.small) == 0)
        window.dropped(1)
        #expect(window.takeUpdate(Self.small) == 50)
        #expect(window.takeUpdate(Self.small) == 0)
        let limits = Self.limits(16 * Self.mebibyte, 16 * Self.mebibyte)
        window.dropped(2 * Self.mebibyte - 1)
        #expect(window.takeUpdate(limits) == 0)
        window.dropped(1)
        #expect(window.takeUpdate(limits) == 2 * Self.mebibyte)
    }

    @Test("A window grows by an update at once, and shrinks by bytes that are not returned")
    func resizes() {
        var window = StreamWindow(0)
        window.resized(by: 200)
        #expect(window.takeUpdate(Self.small) == 200)
        window.resized(by: -200)
        #expect(window.takeUpdate(Self.small) == 0)
        window.dropped(249)
        #expect(window.takeUpdate(Self.small) == 0)
        window.dropped(1)
        #expect(window.takeUpdate(Self.small) == 50)
    }

    @Test("A connection's window follows twice the sum of its streams")
    func connection() {
        var window = ConnectionWindow(Self.limits(1000, 100_000))
        #expect(window.size == 100_000)
        #expect(window.streamGrew(by: 50_000) == nil)
        #expect(window.streamGrew(by: 1) == 100_002)
        window.streamShrank(by: 50_000)
        #expect(window.size == 100_002)
        #expect(window.streamGrew(by: 50_000) == nil)
        #expect(window.streamGrew(by: 1) == 100_004)
        #expect(ConnectionWindow(ServerLimits()).size == StreamWindow.eager)
    }

    @Test("A connection's window is never smaller than the initial one of RFC 9113")
    func smallest() {
        #expect(ConnectionWindow(Self.small).size == 65_535)
    }

    @Test("The round trip is measured once, and assumed to be long if that takes long")
    func roundTrip() {
        var measured = RoundTrip(1000)
        measured.expired(measured.deadline - 1)
        #expect(measured.time == nil)
        measured.acknowledged(3000)
        measured.acknowledged(9000)
        measured.expired(measured.deadline)
        #expect(measured.time == 2000)
        var long = RoundTrip(1000)
        long.expired(long.deadline)
        #expect(long.time == RoundTrip.assumed)
        long.acknowledged(11_000_000)
        #expect(long.time == 10_999_000)
        #expect(long.time == 10_999_000)
    }

    @Test(
        "All windows of a loop promise a multiple of its budget beyond the initial ones"
    )
    func loop() throws {
        var limits = ServerLimits()
        limits.receiveBudget = 1000
        let context = LoopContext(
            loop: try EventLoop(), limits: limits, statistics: ServerStatistics())
        #expect(context.grow(127_999) == 127_999)
        #expect(context.grow(2) == 1)
        #expect(context.grow(1) == 0)
        context.shrink(127_999)
        #expect(context.grow(127_999) == 127_999)
        #expect(context.grownWindows == 128_000)
    }
}
