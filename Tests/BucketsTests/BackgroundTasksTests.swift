import Glibc
import Synchronization
import System
import TestSupport
import Testing

@testable import Buckets

@Suite("Background work of a bucket", .timeLimit(.minutes(1)))
struct BackgroundTasksTests {
    @Test("Work begun on another thread runs on the upload's loop")
    func fromAnotherThread() async throws {
        let tasks = BackgroundTasks()
        let ran = Atomic<Int>(0)
        try await TestLoop.run { tasks.begin() }
        let thread = startThread {
            tasks.run { ran.store(TestLoop.loop.isCurrent ? 1 : 2, ordering: .relaxed) }
            tasks.end()
        }
        pthread_join(thread, nil)
        await tasks.finish()
        #expect(ran.load(ordering: .relaxed) == 1)
    }
}
