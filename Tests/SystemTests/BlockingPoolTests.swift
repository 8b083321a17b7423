import Glibc
import Synchronization
import System
import Testing

@Suite("The blocking pool")
struct BlockingPoolTests {
    /// Waits until `condition` holds, 10 s at most.
    private func eventually(_ condition: () -> Bool) async {
        for _ in 0..<10_000 where !condition() { try? await Task.sleep(nanoseconds: 1_000_000) }
        #expect(condition())
    }

    @Test("A shutdown waits for all submitted jobs")
    func shutdown() {
        let ended = Atomic<Int>(0)
        let pool = BlockingPool(threads: 2)
        for _ in 0..<20 {
            pool.submit {
                usleep(1000)
                ended.add(1, ordering: .relaxed)
            }
        }
        pool.shutdown()
        #expect(ended.load(ordering: .relaxed) == 20)
    }

    @Test("A job may release the pool; its thread then runs the remaining jobs", arguments: [1, 3])
    func releasedByAJob(threads: Int) async {
        let mayEnd = Atomic<Bool>(false)
        let ended = Atomic<Int>(0)
        weak var released: BlockingPool?
        do {
            let pool = BlockingPool(threads: threads)
            released = pool
            pool.submit { [pool] in
                while !mayEnd.load(ordering: .acquiring) { usleep(1000) }
                withExtendedLifetime(pool) { _ = ended.add(1, ordering: .relaxed) }
            }
            for _ in 0..<3 { pool.submit { ended.add(1, ordering: .relaxed) } }
        }
        #expect(released != nil)
        mayEnd.store(true, ordering: .releasing)
        await eventually { ended.load(ordering: .relaxed) == 4 && released == nil }
    }
}
