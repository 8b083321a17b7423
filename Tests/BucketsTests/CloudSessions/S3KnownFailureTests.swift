import BucketConformance
import System
import TestSupport
import Testing

@testable import Buckets

/// What other servers of resumable uploads have done wrong on S3.
@Suite("Failures of resumable uploads on S3 that are known elsewhere", .timeLimit(.minutes(2)))
struct S3KnownFailureTests {
    private let model = S3Model()

    private func gateway(parts: UInt64 = 10_000) -> S3ModelGateway {
        let gateway = model.gateway { _, _ in .none }
        gateway.sizes.count = parts
        return gateway
    }

    private func plan(_ length: Int?) -> SessionPlan {
        let upload = UploadPlan(
            ObjectAttributes(contentType: "a/b"), size: length.map { UInt64($0) })
        return SessionPlan(upload, expires: 1_003_600)
    }

    /// Commits at a gateway, and expects the object.
    private func expectObject(_ bytes: [UInt8], of id: UploadSessionID, at gateway: S3ModelGateway)
        async throws
    {
        let result = try await gateway.service.open(id).commitAll()
        #expect(result.metadata.size == UInt64(bytes.count))
        #expect(model.state.withLock { $0.objects["n"]?.bytes } == bytes)
    }

    @Test(
        "The last bytes of an upload whose length is declared late, or never, are in the object",
        arguments: [1, 19_999, 20_000, 20_001, 64_001, 200_003], [false, true])
    func deferredLengths(_ size: Int, _ isDeclared: Bool) async throws {
        let bytes = pattern(size, seed: 1)
        try await onLoop {
            let gateways = [gateway(), gateway()]
            let id = try await gateways[0].service.begin("n", plan(nil)).id
            var (offset, round) = (0, 0)
            while offset < size {
                let end = min(size, offset + [7, 20_000, 3_500, 45_000][round % 4])
                let length = isDeclared && end == size ? size : nil
                let session = try await gateways[round % 2].service.open(id)
                offset = try await session.append(
                    Array(bytes[offset..<end]), at: offset, length: length)
                #expect(offset == end)
                round += 1
            }
            try await expectObject(bytes, of: id, at: gateways[1])
            for gateway in gateways { gateway.service.close() }
        }
    }

    @Test("Appends that end below a part lose no tail, whichever gateway takes them")
    func tails() async throws {
        let bytes = pattern(150_000, seed: 2)
        try await onLoop {
            let gateways = [gateway(), gateway(), gateway()]
            let id = try await gateways[0].service.begin("n", plan(nil)).id
            var random = SeededGenerator(5)
            var offset = 0
            while offset < bytes.count {
                let end = min(bytes.count, offset + .random(in: 1...4_999, using: &random))
                let session = try await gateways[end % 3].service.open(id)
                offset = try await session.append(Array(bytes[offset..<end]), at: offset)
                #expect(offset == end)
            }
            try await expectObject(bytes, of: id, at: gateways[0])
            #expect(model.state.withLock { $0.made.count } == 1)
            for gateway in gateways { gateway.service.close() }
        }
    }

    @Test(
        "Interrupted appends never need more parts than there are",
        arguments: [nil, 1_000_000], [true, false])
    func partNumbers(_ length: Int?, _ isSizeKnown: Bool) async throws {
        let bytes = pattern(1_000_000, seed: 3)
        try await onLoop {
            let id = try await gateway(parts: 60).service.begin("n", plan(length)).id
            var offset = 0
            var killed: [(S3ModelGateway, any SessionAppend)] = []
            // Each append is cut by a kill of its gateway, so that the numbers that it has claimed are skipped.
            for round in 0..<200 where offset < bytes.count {
                let gateway = gateway(parts: 60)
                let session = try await gateway.service.open(id)
                let found = try await session.offset()
                #expect(found >= offset)
                offset = found
                let end = min(bytes.count, offset + 5_000 + round * 500)
                let append = try await session.append(
                    AppendPlan(
                        at: UInt64(offset),
                        size: isSizeKnown ? UInt64(bytes.count - offset) : nil))
                try await append.fill(Array(bytes[offset..<end]))
                if round % 3 == 0 {
                    offset = Int(try await append.end())
                } else {
                    gateway.isDead.withLock { $0 = true }
                    killed.append((gateway, append))
                }
            }
            #expect(offset == bytes.count)
            let last = gateway(parts: 60)
            try await expectObject(bytes, of: id, at: last)
            for (gateway, append) in killed {
                await append.discard()
                gateway.service.close()
            }
            last.service.close()
        }
    }

    @Test("A thousand small appends need no more numbers than one large one")
    func smallAppends() async throws {
        let bytes = pattern(30_000, seed: 4)
        try await onLoop {
            let gateway = gateway(parts: 3)
            let session = try await gateway.service.begin("n", plan(nil))
            for offset in stride(from: 0, to: bytes.count, by: 30) {
                try await session.append(Array(bytes[offset..<offset + 30]), at: offset)
            }
            try await expectObject(bytes, of: session.id, at: gateway)
            gateway.service.close()
        }
    }

    @Test("Of two writers at one offset one is acknowledged, and its bytes are in the object")
    func twoWriters() async throws {
        for seed in 0..<40 as Range<UInt64> {
            let model = S3Model()
            try await onLoop {
                let gateways = (0..<2).map { _ in
                    model.gateway { _, _ in
                        await Task.yield()
                        return .none
                    }
                }
                let id = try await gateways[0].service.begin("n", plan(nil)).id
                let sizes = [45_000, 3_000]
                let writers = (0..<2).map { index in
                    let bytes = pattern(
                        sizes[(index + Int(seed)) % 2], seed: seed * 2 + UInt64(index))
                    return (
                        bytes,
                        Task(executorPreference: EventLoop.current) {
                            let session = try await gateways[index].service.open(id)
                            return try await session.append(bytes, at: 0)
                        }
                    )
                }
                var acknowledged: [[UInt8]] = []
                for (bytes, task) in writers {
                    if let end = try? await task.value {
                        #expect(end == bytes.count)
                        acknowledged.append(bytes)
                    }
                }
                #expect(acknowledged.count <= 1)
                try await gateways[0].service.open(id).commitAll()
                let object = model.state.withLock { $0.objects["n"]?.bytes }
                if let bytes = acknowledged.first { #expect(object == bytes) }
                for gateway in gateways { gateway.service.close() }
            }
        }
    }
}
