import BucketConformance
import System
import TestSupport
import Testing

@testable import Buckets

/// An upload in three parts by a client that tries again, with a fault at one request.
///
/// Safety: confined to its loop.
private final class PartsFault: @unchecked Sendable {
    private let index: Int
    private let fault: S3ModelFault
    private let isKilled: Bool
    private let model = S3Model()
    private var gateway: S3ModelGateway?
    private var count = 0
    private var late: (() -> Void)?
    private(set) var log: [String] = []
    /// Whether there was a request with this index.
    private(set) var isHit = false
    private static let name = "n"

    init(_ index: Int, _ fault: S3ModelFault, isKilled: Bool) {
        self.index = index
        self.fault = fault
        self.isKilled = isKilled
    }

    private func makeGateway() -> S3ModelGateway {
        model.gateway { [self] what, late in
            defer { count += 1 }
            guard count == index else {
                log.append(what)
                return .none
            }
            isHit = true
            log.append("\(what): \(fault)")
            if fault == .late { self.late = late }
            if isKilled {
                gateway?.isDead.withLock { $0 = true }
                gateway = makeGateway()
            }
            return fault
        }
    }

    private func untilDone(_ body: () async throws -> Void) async throws {
        for _ in 0..<8 {
            do {
                return try await body()
            } catch SessionError.store(let error) {
                #expect(error.code == .unavailable, "\(error), after \(log)")
            } catch SessionError.superseded {
                // Killed, and the next gateway has taken over.
            }
        }
        Issue.record("it does not end: \(log)")
    }

    func run(isCancelled: Bool) async throws {
        gateway = makeGateway()
        let parts = (0..<3).map { pattern([70_000, 5_000, 10][$0], seed: UInt64($0)) }
        let plan = SessionPlan(UploadPlan(ObjectAttributes(contentType: "a/b")), expires: 1_003_600)
        var upload: (id: UploadSessionID, key: [UInt8])?
        try await untilDone {
            let begun = try await gateway!.service.beginParts(Self.name, plan, gateway!)
            upload = (begun.id, begun.key)
        }
        guard let upload else { return }
        func open() throws -> CloudParts {
            try gateway!.service.openParts(upload.id, Self.name, key: upload.key, gateway!)
        }
        for number in [3, 1, 2] {
            try await untilDone { try await open().send(number, parts[number - 1]) }
        }
        try await untilDone {
            do throws(SessionError) {
                let upload = try gateway!.service.openParts(upload.id, Self.name, key: upload.key, gateway!)
                if isCancelled { return try await upload.cancel() }
                do throws(SessionError) {
                    try await upload.select((1...3).map { SelectedPart($0) })
                } catch {
                    guard case .finished = error else { throw error }
                }
                let facts = ContentFacts(size: 75_010, md5: nil, crc32c: nil)
                let result = try await upload.commit(facts, Preconditions(), resultUntil: .max)
                #expect(result.metadata.size == 75_010)
            } catch {
                guard isCancelled, case .notFound = error else { throw error }
            }
        }
        late?()
        let (made, object) = model.state.withLock { ($0.made.values.reduce(0, +), $0.objects[Self.name]) }
        #expect(made == (isCancelled ? 0 : 1), "\(log)")
        #expect(object?.bytes == (isCancelled ? nil : parts.flatMap { $0 }), "\(log)")
        gateway?.service.close()
        model.now.withLock { $0 = 1_010_000 }
        let sweeper = makeGateway()
        for _ in 0..<3 { _ = try? await sweeper.service.removeExpired(limit: 100) }
        // A creation whose response is lost with its process leaves an empty upload.
        let left = model.state.withLock { $0.uploads.filter { !$0.value.parts.isEmpty }.count }
        #expect(left == 0, "\(log)")
        #expect(model.leftovers.allSatisfy { $0.hasPrefix("upload") }, "\(log)")
    }
}

@Suite("Uploads in parts on a model of S3", .timeLimit(.minutes(5)))
struct S3PartsModelTests {
    private let plan = SessionPlan(UploadPlan(), expires: 1_003_600)

    @Test(
        "A fault at any single request loses no part, makes nothing twice and leaves no bytes",
        arguments: [false, true])
    func singleFaults(isCancelled: Bool) async throws {
        try await onLoop {
            var requests = 0
            for fault in S3ModelFault.allCases where fault != .none {
                for isKilled in [false, true] {
                    for index in 0... {
                        let run = PartsFault(index, fault, isKilled: isKilled)
                        try await run.run(isCancelled: isCancelled)
                        guard run.isHit else { break }
                        requests += 1
                    }
                }
            }
            #expect(requests > 30)
        }
    }

    @Test("Two gateways that receive parts and complete at once make one object", arguments: 0..<40)
    func twoGateways(seed: UInt64) async throws {
        let model = S3Model()
        try await onLoop {
            let random = Lock(SeededGenerator(seed + 1))
            func gateway() -> S3ModelGateway {
                model.gateway { _, _ in
                    for _ in 0..<random.withLock({ Int.random(in: 0..<4, using: &$0) }) { await Task.yield() }
                    return .none
                }
            }
            let gateways = [gateway(), gateway()]
            let begun = try await gateways[0].service.beginParts("n", plan, gateways[0])
            let uploads = try gateways.map {
                try $0.service.openParts(begun.id, "n", key: begun.key, $0)
            }
            try await withThrowingTaskGroup(of: Void.self) { group in
                for number in 1...4 {
                    group.addTask(executorPreference: EventLoop.current) {
                        try await uploads[number % 2].send(number, pattern(6000, seed: UInt64(number)))
                    }
                }
                try await group.waitForAll()
            }
            let results = try await withThrowingTaskGroup(of: CommitResult.self) { group in
                for upload in uploads {
                    group.addTask(executorPreference: EventLoop.current) {
                        for _ in 0..<20 {
                            do throws(SessionError) {
                                try await upload.select((1...4).map { SelectedPart($0) })
                            } catch {
                                guard case .finished = error else { throw error }
                            }
                            let facts = ContentFacts(size: 24_000, md5: nil, crc32c: nil)
                            do throws(SessionError) {
                                return try await upload.commit(facts, Preconditions(), resultUntil: .max)
                            } catch {
                                guard case .store(let cause) = error, cause.isRetryable else { throw error }
                            }
                        }
                        throw SessionError.superseded
                    }
                }
                return try await group.reduce(into: []) { $0.append($1) }
            }
            #expect(Set(results.map(\.metadata.generation)).count == 1)
            #expect(results.count { !$0.isRepeated } == 1)
            let (made, object) = model.state.withLock { ($0.made.values.map { $0 }, $0.objects["n"]) }
            #expect(made == [1])
            #expect(object?.bytes == (1...4).flatMap { pattern(6000, seed: UInt64($0)) })
            for gateway in gateways { gateway.service.close() }
        }
    }

    @Test("A selection is repeated if another gateway takes the upload over meanwhile")
    func takenOver() async throws {
        let model = S3Model()
        try await onLoop {
            let other = model.gateway { _, _ in .none }
            let rest = Lock(3)
            let begun = try await other.service.beginParts("n", plan, other)
            let gateway = model.gateway { what, _ in
                guard what == "list parts" else { return .none }
                rest.withLock { $0 -= 1 }
                if rest.withLock({ $0 < 0 }) { return .none }
                _ = try? await other.service.openParts(begun.id, "n", key: begun.key, other).state()
                return .none
            }
            let upload = try gateway.service.openParts(begun.id, "n", key: begun.key, gateway)
            try await upload.send(1, pattern(6000, seed: 1))
            let result = try await upload.commitAll([1])
            #expect(result.metadata.size == 6000)
            #expect(rest.withLock { $0 } == -1)
        }
    }

    @Test("Parts are listed beyond a page, also up to a limit")
    func pages() async throws {
        let model = S3Model()
        try await onLoop {
            let gateway = model.gateway { _, _ in .none }
            let upload = try await gateway.service.beginParts("n", plan, gateway)
            for number in 1...5 { try await upload.send(number, pattern(6000, seed: UInt64(number))) }
            gateway.partsPage = 2
            #expect(try await upload.parts(after: 0, limit: 100).map(\.number) == [1, 2, 3, 4, 5])
            #expect(try await upload.parts(after: 1, limit: 3).map(\.number) == [2, 3, 4])
            #expect(try await upload.parts(after: 5, limit: 3).map(\.number) == [])
        }
    }

    @Test("A lost response to the completion is found again, with the result")
    func lostCompletion() async throws {
        let model = S3Model()
        try await onLoop {
            let lost = Lock(true)
            let gateway = model.gateway { what, _ in
                what == "complete" && lost.withLock { $0 } ? .after : .none
            }
            // It can't look for the object either.
            let blind = model.gateway { what, _ in
                ["complete", "head"].contains(what) && lost.withLock { $0 } ? .after : .none
            }
            for (name, gateway) in [("a", gateway), ("b", blind)] {
                lost.withLock { $0 = true }
                let upload = try await gateway.service.beginParts(name, plan, gateway)
                try await upload.send(1, [1, 2, 3])
                if name == "a" {
                    #expect(try await !upload.commitAll([1]).isRepeated)
                } else {
                    await #expect(throws: SessionError.self) { try await upload.commitAll([1]) }
                    lost.withLock { $0 = false }
                    // Another selection could differ from the object.
                    await #expect(throws: SessionError.self) { try await upload.select([SelectedPart(2)]) }
                }
                guard case .committed(let known) = try await upload.state().end else {
                    Issue.record("it is not committed")
                    continue
                }
                #expect(known.metadata.size == 3)
                #expect(model.state.withLock { $0.objects[name]?.bytes } == [1, 2, 3])
                try await upload.cancel()
            }
            #expect(model.leftovers == [])
        }
    }

    @Test("A service whose list of parts does not go on is not asked forever")
    func repeatedList() async throws {
        let model = S3Model()
        try await onLoop {
            let lists = Lock(0)
            let gateway = model.gateway { what, _ in
                if what == "list parts" { lists.withLock { $0 += 1 } }
                return .none
            }
            let upload = try await gateway.service.beginParts("n", plan, gateway)
            for number in 1...5 { try await upload.send(number, pattern(6000, seed: 1)) }
            gateway.repeatsParts = true
            let error = await #expect(throws: SessionError.self) {
                try await upload.select([SelectedPart(1), SelectedPart(5)])
            }
            let isRight = if case .store(let cause)? = error { cause.code == .unavailable } else { false }
            #expect(isRight)
            #expect(lists.withLock { $0 } == 2)
            gateway.partsPage = 0
            await #expect(throws: SessionError.self) { try await upload.select([SelectedPart(1)]) }
            #expect(lists.withLock { $0 } == 3)
            (gateway.repeatsParts, gateway.partsPage) = (false, 2)
            let result = try await upload.commitAll([1, 5])
            #expect(result.metadata.size == 12_000)
        }
    }

    @Test("A selection stops parts in progress, and waits for one that is being stored")
    func stopped() async throws {
        let model = S3Model()
        try await onLoop {
            let gateway = model.gateway { what, _ in
                // Long enough for a selection that does not wait.
                if what == "part 2" { for _ in 0..<2000 { await Task.yield() } }
                return .none
            }
            let upload = try await gateway.service.beginParts("n", plan, gateway)
            try await upload.send(1, pattern(6000, seed: 1))
            let stopped = try await upload.beginPart(1, PartPlan(size: 100_000))
            try await stopped.fill(pattern(1000, seed: 2))
            let resumed = Lock(false)
            let kept = try await upload.beginPart(2, PartPlan(size: 70_000))
            try await kept.fill(pattern(70_000, seed: 3))
            _ = try await kept.finish()
            let keeping = Task(executorPreference: EventLoop.current) { try await kept.keep() }
            await Task.yield()
            stopped.whenWritable { resumed.withLock { $0 = true } }
            try await upload.select([SelectedPart(1), SelectedPart(2)])
            #expect(try await keeping.value.size == 70_000)
            #expect(resumed.withLock { $0 })
            for _ in 0..<2 {
                let error = await #expect(throws: SessionError.self) { try await stopped.fill([1]) }
                let isRight = if case .superseded? = error { true } else { false }
                #expect(isRight)
            }
            await #expect(throws: SessionError.self) { try await stopped.finish() }
            await #expect(throws: SessionError.self) { try await stopped.keep() }
            // Later parts are new ones.
            try await upload.send(3, [1])
            let result = try await upload.commit(try await upload.finish(), Preconditions(), resultUntil: .max)
            #expect(result.metadata.size == 76_000)
        }
    }

    @Test("Sessions with appends and uploads in parts are not taken for each other")
    func kinds() async throws {
        let model = S3Model()
        try await onLoop {
            let gateway = model.gateway { _, _ in .none }
            let service = gateway.service
            let session = try await service.begin("n", plan)
            let upload = try await service.beginParts("n", plan, gateway)
            await #expect(throws: SessionError.self) { _ = try await service.open(upload.id) }
            let wrong = try service.openParts(session.id, "n", key: Array("upload-9".utf8), gateway)
            for _ in 0..<2 {
                await #expect(throws: SessionError.self) { try await wrong.select([SelectedPart(1)]) }
                await #expect(throws: SessionError.self) { try await wrong.cancel() }
                await #expect(throws: SessionError.self) { try await wrong.state() }
            }
            #expect(try await service.open(session.id).state().offset == 0)
            #expect(try await upload.state().offset == 0)
            #expect(try await service.list(after: nil, limit: 9).count == 2)
            try await upload.cancel()
            try await session.cancel()
            #expect(model.leftovers == [])
        }
    }

    @Test("The declared length is that of the selected parts")
    func declaredLength() async throws {
        let model = S3Model()
        try await onLoop {
            let gateway = model.gateway { _, _ in .none }
            let plan = SessionPlan(UploadPlan(size: 6010), expires: 1_003_600)
            let upload = try await gateway.service.beginParts("n", plan, gateway)
            try await upload.send(1, pattern(6000, seed: 1))
            try await upload.send(2, pattern(10, seed: 1))
            let error = await #expect(throws: SessionError.self) { try await upload.select([SelectedPart(1)]) }
            let isRight = if case .lengthMismatch(6010)? = error { true } else { false }
            #expect(isRight)
            await #expect(throws: SessionError.self) {
                let facts = ContentFacts(size: 0, md5: nil, crc32c: nil)
                _ = try await upload.commit(facts, Preconditions(), resultUntil: .max)
            }
            try await upload.commitAll([1, 2])
        }
    }
}
