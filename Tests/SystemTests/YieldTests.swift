import Glibc
import System
import Testing

/// Safety: confined to its loop until the test waits for it.
private final class Notes: @unchecked Sendable {
    var isDone = false
    var order: [Int] = []
}

@Suite struct YieldTests {
    @Test func aYieldingTaskLetsOtherWorkRun() async throws {
        let loop = try EventLoop()
        let thread = startThread { loop.run() }
        let notes = Notes()
        let task = Task(executorPreference: loop) {
            // Without a turn between, the work below would never run.
            while !notes.isDone { await loop.yield() }
        }
        loop.execute { notes.isDone = true }
        await task.value
        loop.stop()
        pthread_join(thread, nil)
    }

    @Test func yieldingTasksTakeTurns() async throws {
        let loop = try EventLoop()
        let thread = startThread { loop.run() }
        let notes = Notes()
        await withCheckedContinuation { waiter in
            loop.execute {
                for number in 0..<3 {
                    Task.immediate(executorPreference: loop) {
                        for _ in 0..<4 {
                            await loop.yield()
                            notes.order.append(number)
                        }
                        if number == 2 { waiter.resume() }
                    }
                }
            }
        }
        #expect(notes.order == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2])
        loop.stop()
        pthread_join(thread, nil)
    }

    /// Four handlers that always have more to do, each for longer than a turn allows them together. A byte that one of them
    /// writes to a pipe is seen before two more of them run.
    @Test func postponedHandlersLetEventsPass() async throws {
        let loop = try EventLoop()
        let thread = startThread { loop.run() }
        let handlers: [BusyHandler] = await withCheckedContinuation { waiter in
            loop.execute {
                let pipe = PipeEnds()
                let handlers = (0..<4).map { BusyHandler(loop, pipe, number: $0) }
                pipe.whenDone = { waiter.resume(returning: handlers) }
                do { try pipe.register(loop) } catch { waiter.resume(returning: []) }
                for handler in handlers { loop.postpone(handler) }
            }
        }
        #expect(handlers.count == 4)
        let pipe = try #require(handlers.first).pipe
        #expect(pipe.settledSinceWrite.count == 20)
        #expect(pipe.settledSinceWrite.allSatisfy { $0 <= 1 }, "\(pipe.settledSinceWrite)")
        #expect(pipe.order.prefix(8) == [0, 1, 2, 3, 0, 1, 2, 3])
        loop.stop()
        pthread_join(thread, nil)
        pipe.close()
    }

    /// What arrived during a pause of the thread is processed before a timeout.
    @Test func timersWaitAfterAPause() async throws {
        let loop = try EventLoop()
        let thread = startThread { loop.run() }
        let order = await withCheckedContinuation { waiter in
            loop.execute {
                let handler = PausingHandler(loop)
                let timer = LoopTimer {
                    waiter.resume(returning: handler.order + ["timer"])
                    handler.timer = nil
                }
                handler.timer = timer
                loop.arm(timer, after: 500_000_000)
                loop.postpone(handler)
            }
        }
        #expect(order == ["paused", "settled", "timer"])
        loop.stop()
        pthread_join(thread, nil)
    }

    /// A loop that had nothing to do was not paused: its timers don't wait for the work that comes then.
    @Test func timersDoNotWaitAfterAnIdleTime() async throws {
        let loop = try EventLoop()
        let thread = startThread { loop.run() }
        usleep(1_200_000)
        let order = await withCheckedContinuation { waiter in
            loop.execute {
                let notes = Notes()
                let early = LoopTimer { notes.order.append(10) }
                let late = LoopTimer { notes.order.append(500) }
                loop.arm(early, after: 10_000_000)
                loop.arm(late, after: 500_000_000)
                Task.immediate(executorPreference: loop) {
                    // There is other work in each turn until both timers have fired.
                    var orders: [[Int]] = []
                    while notes.order.count < 2 {
                        await loop.yield()
                        if orders.last != notes.order { orders.append(notes.order) }
                    }
                    loop.disarm(early)
                    loop.disarm(late)
                    waiter.resume(returning: orders)
                }
            }
        }
        #expect(order == [[], [10], [10, 500]])
        loop.stop()
        pthread_join(thread, nil)
    }
}

/// Stops its thread once, and has more to do then.
///
/// Safety: confined to its loop.
private final class PausingHandler: EventHandler, @unchecked Sendable {
    var order: [String] = []
    var timer: LoopTimer?
    private let loop: EventLoop

    init(_ loop: EventLoop) { self.loop = loop }

    func ready(_ events: Readiness) {}

    func settle() {
        order.append(order.isEmpty ? "paused" : "settled")
        guard order.count == 1 else { return }
        usleep(1_200_000)
        loop.postpone(self)
    }
}

/// Works for as long as its share of a turn each time, and has always more to do.
///
/// Safety: confined to its loop.
private final class BusyHandler: EventHandler, @unchecked Sendable {
    let pipe: PipeEnds
    private let loop: EventLoop
    private let number: Int

    init(_ loop: EventLoop, _ pipe: PipeEnds, number: Int) {
        self.loop = loop
        self.pipe = pipe
        self.number = number
    }

    func ready(_ events: Readiness) {}

    func settle() {
        let begin = EventLoop.monotonicNow()
        while EventLoop.monotonicNow() - begin < loop.turnBudget / 4 {}
        pipe.settled(number)
        if !pipe.isDone { loop.postpone(self) }
    }
}

/// A pipe that is written to and read on a loop.
///
/// Safety: confined to its loop, and to the test once the loop has ended.
private final class PipeEnds: EventHandler, @unchecked Sendable {
    var order: [Int] = []
    var whenDone: (() -> Void)?
    /// For each byte: how many handlers ran between its writing and its reading.
    var settledSinceWrite: [Int] = []
    var isDone: Bool { settledSinceWrite.count == 20 }
    private var ends: [Int32] = [0, 0]
    private var settledWhenWritten: Int?
    private var registration: Registration?
    private weak var loop: EventLoop?

    init() { pipe(&ends) }

    func register(_ loop: EventLoop) throws {
        self.loop = loop
        registration = try loop.register(ends[0], self)
    }

    func settled(_ number: Int) {
        order.append(number)
        guard settledWhenWritten == nil, !isDone else { return }
        settledWhenWritten = order.count
        write(ends[1], "x", 1)
    }

    func ready(_ events: Readiness) {
        guard let written = settledWhenWritten else { return }
        var byte: UInt8 = 0
        read(ends[0], &byte, 1)
        settledWhenWritten = nil
        settledSinceWrite.append(order.count - written)
        guard isDone else { return }
        if let registration { loop?.deregister(registration) }
        whenDone?()
    }

    func settle() {}

    func close() { for end in ends { Glibc.close(end) } }
}
