import BucketConformance
import Glibc
import Synchronization
import System
import TestSupport
import Testing

@testable import Buckets

@Suite("Random steps on two caches", .timeLimit(.minutes(60)))
struct CacheModelTests {
    @Test("Each response is one that the service could have given")
    func run() async throws {
        func number(_ name: String) -> UInt64? { getenv(name).flatMap { UInt64(String(cString: $0)) } }
        let runs = number("SLUICE_MODEL_RUNS") ?? 24
        let first = number("SLUICE_MODEL_SEED") ?? 1
        let reads = Atomic<Int>(0)
        try await onTwoLoops { loops in
            for seed in first..<first + runs {
                let model = await CacheModel(seed, loops)
                let isDone = Atomic<Bool>(false)
                let run = Task(executorPreference: loops[0]) {
                    await model.run(200)
                    isDone.store(true, ordering: .relaxed)
                }
                await eventually { isDone.load(ordering: .relaxed) }
                reads.add(model.reads.load(ordering: .relaxed), ordering: .relaxed)
                guard isDone.load(ordering: .relaxed), model.failures.isEmpty else {
                    run.cancel()
                    for step in model.lastSteps { print("    \(step)") }
                    for side in model.sides { print("    \(side.fixture.options)") }
                    Issue.record("SLUICE_MODEL_SEED=\(seed): \(model.failures.prefix(3))")
                    if isDone.load(ordering: .relaxed) { continue }
                    break
                }
            }
        }
        print("\(runs) runs from \(first) with \(reads.load(ordering: .relaxed)) reads")
    }
}
