import BucketConformance
import Synchronization
import System
import TestSupport
import Testing

@testable import Buckets

@Suite("Concurrent reads and writes", .timeLimit(.minutes(2)))
struct ReadAfterWriteTests {
    /// The last acknowledged generation of a writer, and whether it has ended.
    private final class Acknowledged: Sendable {
        let generation = Atomic<Int64>(0)
        let isOver = Atomic<Bool>(false)
        let reads = Atomic<Int>(0)
        let stale = Atomic<Int>(0)
    }

    @Test(
        "No reader returns an older state than the acknowledged one")
    func acknowledgedIsSeen() async throws {
        let directory = TemporaryDirectory()
        let bucket = try openBucket(directory.path + "/bucket")
        let known = Acknowledged()
        try await onLoop {
            let first = try await bucket.put("hot", [0]).metadata
            known.generation.store(first.generation, ordering: .sequentiallyConsistent)
        }
        try await withThrowingTaskGroup(of: Void.self) { group in
            // On separate threads, so that several readers of the index cache the object.
            for _ in 0..<3 {
                group.addTask {
                    try await onLoop {
                        while !known.isOver.load(ordering: .sequentiallyConsistent) {
                            let least = known.generation.load(ordering: .sequentiallyConsistent)
                            let read = try await bucket.stat("hot").generation
                            if read < least { known.stale.add(1, ordering: .relaxed) }
                            known.reads.add(1, ordering: .relaxed)
                        }
                    }
                }
            }
            group.addTask {
                defer { known.isOver.store(true, ordering: .sequentiallyConsistent) }
                try await onLoop {
                    for round in 0..<300 {
                        let put = try await bucket.put("hot", [UInt8(round & 255)]).metadata
                        known.generation.store(put.generation, ordering: .sequentiallyConsistent)
                    }
                }
            }
            try await group.waitForAll()
        }
        #expect(known.stale.load(ordering: .relaxed) == 0)
        #expect(known.reads.load(ordering: .relaxed) > 300)
        await bucket.close()
    }
}
