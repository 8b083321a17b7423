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
}
