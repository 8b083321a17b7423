import Glibc
import Synchronization
import System
import Testing

/// What a waiting task and those that resume or cancel it tell each other.
///
/// Safety: `waiter` is set before `hasWaiter`, and read after it.
private final class Waiting: @unchecked Sendable {
    var waiter: UnsafeContinuation<Int, Never>?
    let hasWaiter = Atomic<Bool>(false)
    let cancelled = Atomic<Int>(0)

    func keep(_ continuation: UnsafeContinuation<Int, Never>) {
        waiter = continuation
        hasWaiter.store(true, ordering: .releasing)
    }

    /// Resumes the task on the calling thread, once it waits.
    func resume(_ value: Int) {
        while !hasWaiter.load(ordering: .acquiring) { sched_yield() }
        waiter?.resume(returning: value)
    }
}

@Suite struct SuspensionTests {
    private func onLoop<Result: Sendable>(
        _ body: @escaping @Sendable (EventLoop) async -> Result,
        beside: (Task<Result, Never>) -> Void
    ) async throws -> Result {
        let loop = try EventLoop()
        let thread = startThread { loop.run() }
        let task = Task(executorPreference: loop) { await body(loop) }
        beside(task)
        let result = await task.value
        loop.stop()
        pthread_join(thread, nil)
        return result
    }

    @Test func continuesOnItsLoop() async throws {
        let waiting = Waiting()
        let found = try await onLoop { loop in
            var began = false
            let value = await suspend {
                began = loop.isCurrent
                waiting.keep($0)
            }
            return (began, value, loop.isCurrent)
        } beside: { _ in
            waiting.resume(7)
        }
        #expect(found == (true, 7, true))
    }

    @Test func isCancelledWhileItWaits() async throws {
        let waiting = Waiting()
        let found = try await onLoop { loop in
            let value = await suspend {
                waiting.keep($0)
            } onCancel: {
                waiting.cancelled.add(1, ordering: .relaxed)
                waiting.resume(8)
            }
            return (value, loop.isCurrent, Task.isCancelled)
        } beside: { task in
            while !waiting.hasWaiter.load(ordering: .acquiring) { sched_yield() }
            task.cancel()
        }
        #expect(found == (8, true, true))
        #expect(waiting.cancelled.load(ordering: .relaxed) == 1)
    }

    @Test func isCancelledBeforeItWaits() async throws {
        let waiting = Waiting()
        let found = try await onLoop { loop in
            while !Task.isCancelled { sched_yield() }
            return await suspend { continuation in
                continuation.resume(returning: waiting.cancelled.load(ordering: .relaxed))
            } onCancel: {
                waiting.cancelled.add(1, ordering: .relaxed)
            }
        } beside: {
            $0.cancel()
        }
        #expect(found == 1, "before the body")
    }

    @Test func isCancelledAfterItWaited() async throws {
        let waiting = Waiting()
        let count = try await onLoop { loop in
            _ = await suspend {
                waiting.keep($0)
            } onCancel: {
                waiting.cancelled.add(1, ordering: .relaxed)
            }
            withUnsafeCurrentTask { $0?.cancel() }
            return waiting.cancelled.load(ordering: .relaxed)
        } beside: { _ in
            waiting.resume(9)
        }
        #expect(count == 0)
    }
}
