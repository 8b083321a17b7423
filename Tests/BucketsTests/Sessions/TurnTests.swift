import BucketConformance
import Glibc
import System
import Testing

@testable import Buckets

@Suite("Turns", .timeLimit(.minutes(2)))
struct TurnTests {
    /// Nanoseconds of this thread.
    private func threadTime() -> UInt64 {
        var time = timespec()
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time)
        return UInt64(time.tv_sec) * 1_000_000_000 + UInt64(time.tv_nsec)
    }

    /// Has `count` tasks wait for a turn that is taken.
    private func waiters(_ count: Int, _ turn: AsyncTurn) async -> [Task<Bool, Never>] {
        let loop = EventLoop.current
        let began = Lock(0)
        let tasks = (0..<count).map { _ in
            Task(executorPreference: loop) {
                began.withLock { $0 += 1 }
                return await turn.take(givingUp: true)
            }
        }
        while began.withLock({ $0 }) < count { await Task.yield() }
        return tasks
    }

    /// What it takes to cancel so many waiters, the newest first, in nanoseconds.
    private func cancelling(_ count: Int) async -> UInt64 {
        let turn = AsyncTurn()
        let isFree = await turn.take()
        #expect(isFree)
        let tasks = await waiters(count, turn)
        let start = threadTime()
        for task in tasks.reversed() { task.cancel() }
        let time = threadTime() - start
        for task in tasks {
            let hasCome = await task.value
            #expect(!hasCome)
        }
        turn.end()
        // Nobody waits any more.
        let isFreeAgain = await turn.take(givingUp: true)
        #expect(isFreeAgain)
        return time
    }

    @Test("Ten times the waiters take ten times as long to cancel")
    func manyWaiters() async throws {
        try await onLoop {
            // The least of several, because other processes take the processor's caches meanwhile.
            var few = UInt64.max
            var many = UInt64.max
            for _ in 0..<3 {
                few = min(few, await cancelling(1000))
                many = min(many, await cancelling(10_000))
            }
            // Quadratic would be a hundred times.
            #expect(many < 40 * few, "\(many) ns instead of \(few) ns")
        }
    }

    @Test("Waiters get their turn in the order of arrival, whoever gives up between them")
    func order() async throws {
        try await onLoop {
            let turn = AsyncTurn()
            _ = await turn.take()
            let order = Lock<[Int]>([])
            let loop = EventLoop.current
            let tasks = (0..<10_000).map { number in
                Task(executorPreference: loop) {
                    guard await turn.take(givingUp: true) else { return }
                    order.withLock { $0.append(number) }
                    turn.end()
                }
            }
            await Task.yield()
            for (number, task) in tasks.enumerated() where number % 10 != 3 { task.cancel() }
            turn.end()
            for task in tasks { await task.value }
            #expect(order.withLock { $0 } == Array(stride(from: 3, to: 10_000, by: 10)))
        }
    }
}
