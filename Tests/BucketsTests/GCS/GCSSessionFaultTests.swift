import BucketConformance
import System
import TestSupport
import Testing

@testable import Buckets

@Suite("Upload sessions in Cloud Storage, disturbed", .timeLimit(.minutes(10)))
struct GCSSessionFaultTests {
    private static let quantum = 256 * 1024

    /// Uploads through two gateways in turn, each time from the offset that the gateway reports, until all is stored.
    private func upload(
        _ bytes: [UInt8], _ buckets: [GCSBucket], pieces: Int, isAllOrNothing: Bool = false
    ) async throws {
        var id: UploadSessionID?
        var acknowledged = 0
        for round in 0..<40 {
            let bucket = buckets[round % buckets.count]
            do {
                guard let known = id else {
                    id = try await bucket.begin("n").id
                    continue
                }
                let session = try await bucket.openSession(known)
                let state = try await session.state()
                #expect(state.offset >= acknowledged, "an acknowledged byte is lost")
                acknowledged = Int(state.offset)
                if case .committed = state.end { return }
                if acknowledged < bytes.count {
                    let end = min(bytes.count, acknowledged + bytes.count / pieces + 1)
                    let append = try await session.append(
                        AppendPlan(
                            at: state.offset, size: UInt64(end - acknowledged),
                            isAllOrNothing: isAllOrNothing))
                    try await append.fill(Array(bytes[acknowledged..<end]))
                    acknowledged = Int(try await append.end())
                }
                guard acknowledged == bytes.count else { continue }
                let facts = try await session.finish()
                #expect(facts.md5 == digest(.md5, bytes))
                let result = try await session.commit(facts, Preconditions(), resultUntil: .max)
                #expect(result.metadata.md5 == digest(.md5, bytes))
                return
            } catch is SessionError {
                continue
            }
        }
        Issue.record("never done")
    }

    @Test(
        "A fault of any single request loses nothing, commits once and leaves nothing",
        arguments: GCSModel.Fault.allCases, [100, 700_000])
    func singleFault(_ fault: GCSModel.Fault, _ size: Int) async throws {
        let bytes = pattern(size, seed: 4)
        for attempts in [1, 3] {
            for isAllOrNothing in [false, true] {
                for number in 1...30 {
                    let model = GCSModel()
                    model.state.withLock {
                        $0.fault = { count, _ in count == number ? fault : nil }
                    }
                    try await onLoop {
                        let buckets = [
                            model.bucket(attempts: attempts), model.bucket(attempts: attempts),
                        ]
                        try await upload(
                            bytes, buckets, pieces: 2, isAllOrNothing: isAllOrNothing)
                        for bucket in buckets { await bucket.close() }
                        try await model.sweep()
                    }
                    let what = "\(fault), request \(number), \(attempts) attempts"
                    #expect(model.bytes("n") == bytes, "\(what)")
                    #expect(model.commits == 1, "\(what)")
                    #expect(model.leftovers == [], "\(what)")
                    if model.requests().count < number { break }
                }
            }
        }
    }

    /// A generator that gives the same numbers for the same seed.
    private struct Random {
        private var state: UInt64
        init(_ seed: Int) { state = UInt64(seed) &* 0x9e37_79b9_7f4a_7c15 | 1 }
        mutating func next(_ bound: Int) -> Int {
            state = state &* 6_364_136_223_846_793_005 &+ 1_442_695_040_888_963_407
            return Int(state >> 33) % bound
        }
    }

    /// What a test knows of a session: the bytes are always the same, so that only their number matters.
    private struct Known {
        var acknowledged = 0
        /// The greatest offset that was ever sent.
        var sent = 0
    }

    @Test("Two gateways, kills, late ends and faults agree with a model", arguments: 0..<24)
    func random(seed: Int) async throws {
        let model = GCSModel()
        let bytes = pattern(2_500_000, seed: UInt64(seed))
        try await onLoop {
            var random = Random(seed)
            var buckets = [model.bucket(), model.bucket()]
            var dead: [(append: any SessionAppend, bucket: GCSBucket)] = []
            let id = try await buckets[0].begin("n").id
            var known = Known()
            for _ in 0..<60 where known.acknowledged < bytes.count {
                let index = random.next(2)
                disturb(model, &random)
                let size = [1000, 100_000, 400_000, 900_000][random.next(4)]
                do {
                    let session = try await buckets[index].openSession(id)
                    let offset = try await session.offset()
                    #expect(offset >= known.acknowledged, "an acknowledged byte is lost")
                    #expect(offset <= known.sent)
                    known.acknowledged = offset
                    let end = min(bytes.count, offset + size)
                    let isWhole = random.next(5) == 0
                    let append = try await session.append(
                        AppendPlan(
                            at: UInt64(offset),
                            size: random.next(3) == 0 ? nil : UInt64(end - offset),
                            isAllOrNothing: isWhole))
                    known.sent = max(known.sent, end)
                    let cut = random.next(3) == 0 ? offset + random.next(end - offset + 1) : end
                    try await append.fill(Array(bytes[offset..<cut]))
                    switch random.next(6) {
                    case 0:
                        // It is killed here, and ends much later, if ever.
                        dead.append((append, buckets[index]))
                        buckets[index] = model.bucket()
                    case 1 where !isWhole:
                        _ = try await session.finish()
                        known.acknowledged = try await session.offset()
                        #expect(known.acknowledged == cut)
                    case 2: await append.discard()
                    default:
                        let ended = Int(try await append.end())
                        #expect(ended == cut)
                        known.acknowledged = ended
                    }
                    if !dead.isEmpty, random.next(4) == 0 {
                        let late = dead.removeFirst()
                        if let ended = try? await late.append.end() {
                            // Nobody has claimed the session meanwhile.
                            #expect(Int(ended) >= known.acknowledged)
                            known.acknowledged = Int(ended)
                        }
                        await late.bucket.close()
                    }
                } catch is SessionError {
                    continue
                }
            }
            model.state.withLock { ($0.fault, $0.persists) = ({ _, _ in nil }, nil) }
            for bucket in buckets { try await finish(bucket, id, bytes, known) }
            for late in dead {
                _ = try? await late.append.end()
                await late.bucket.close()
            }
            for bucket in buckets { await bucket.close() }
            try await model.sweep()
        }
        #expect(model.bytes("n") == bytes)
        #expect(model.commits == 1)
        #expect(model.leftovers == [])
    }

    /// Has one of the next requests fail, or none.
    private func disturb(_ model: GCSModel, _ random: inout Random) {
        let fails = random.next(4) == 0 ? random.next(6) + 1 : 0
        let fault = GCSModel.Fault.allCases[random.next(4)]
        let keepsLittle = random.next(3) == 0
        model.state.withLock { state in
            let from = state.log.count
            state.fault = { count, _ in count == from + fails ? fault : nil }
            state.persists = keepsLittle ? Self.quantum : nil
        }
    }

    private func finish(
        _ bucket: GCSBucket, _ id: UploadSessionID, _ bytes: [UInt8], _ known: Known
    ) async throws {
        let session = try await bucket.openSession(id)
        let state = try await session.state()
        #expect(state.offset >= known.acknowledged)
        if state.end == nil, state.offset < bytes.count {
            try await session.append(Array(bytes[Int(state.offset)...]), at: Int(state.offset))
        }
        let result = try await session.commitAll()
        #expect(result.metadata.md5 == digest(.md5, bytes))
    }

    @Test("Of two gateways that commit at once, both report the one object", arguments: 0..<12)
    func twoCommitters(seed: Int) async throws {
        let model = GCSModel()
        let bytes = pattern(seed % 2 == 0 ? 300_000 : 1000, seed: 1)
        try await onLoop {
            let buckets = [model.bucket(), model.bucket()]
            let first = try await buckets[0].begin("n")
            try await first.append(bytes, at: 0)
            let facts = try await first.finish()
            let id = first.id
            let loop = EventLoop.current
            let tasks = buckets.map { bucket in
                Task(executorPreference: loop) {
                    let session = try await bucket.openSession(id)
                    return try await session.commit(facts, Preconditions(), resultUntil: .max)
                }
            }
            var results: [CommitResult] = []
            for task in tasks { results.append(try await task.value) }
            #expect(Set(results.map(\.metadata.generation)).count == 1)
            #expect(results.count { !$0.isRepeated } == 1)
            for bucket in buckets { await bucket.close() }
            try await model.sweep()
        }
        #expect(model.commits == 1)
        #expect(model.leftovers == [])
    }

    @Test(
        "An object that was deleted before its result was written is not made again",
        arguments: [100, 700_000], [GCSModel.Fault.refused, .lost])
    func deletedMeanwhile(_ size: Int, _ fault: GCSModel.Fault) async throws {
        let model = GCSModel()
        try await onLoop {
            let buckets = [model.bucket(attempts: 1), model.bucket()]
            let first = try await buckets[0].begin("n")
            try await first.append(pattern(size, seed: 1), at: 0)
            let facts = try await first.finish()
            model.state.withLock { state in
                state.log = []
                state.before = { kind, state in
                    // Nothing of the first gateway arrives after the move.
                    if kind == "move" { state.fault = { _, _ in fault } }
                }
            }
            await #expect(throws: SessionError.self) {
                try await first.commit(facts, Preconditions(), resultUntil: .max)
            }
            #expect(model.bytes("n")?.count == size)
            model.state.withLock { state in
                (state.fault, state.before) = ({ _, _ in nil }, { _, _ in })
                state.objects[.init("n")] = nil
            }
            for bucket in buckets {
                let session = try await bucket.openSession(first.id)
                do throws(SessionError) {
                    _ = try await session.commit(facts, Preconditions(), resultUntil: .max)
                    Issue.record("it is made again")
                } catch {
                    guard case .store(let cause) = error else { throw error }
                    #expect(cause.code == .preconditionFailed)
                }
            }
            #expect(model.bytes("n") == nil)
            try await first.cancel()
            for bucket in buckets { await bucket.close() }
        }
        #expect(model.commits == 1)
        #expect(model.leftovers == [])
    }

    @Test(
        "A commit whose result was not written is found when the state is read, and is not closed",
        arguments: [100, 700_000])
    func unwrittenResult(_ size: Int) async throws {
        let model = GCSModel()
        try await onLoop {
            let buckets = [model.bucket(attempts: 1), model.bucket()]
            let first = try await buckets[0].begin("n")
            try await first.append(pattern(size, seed: 1), at: 0)
            model.state.withLock { state in
                state.before = { kind, state in
                    if kind == "move" { state.fault = { _, _ in .lost } }
                }
            }
            await #expect(throws: SessionError.self) { try await first.commitAll() }
            model.state.withLock { ($0.fault, $0.before) = ({ _, _ in nil }, { _, _ in }) }
            let session = try await buckets[1].openSession(first.id)
            await #expect(throws: SessionError.self) {
                try await session.close([1], until: .max)
            }
            guard case .committed(let result)? = try await session.state().end else {
                Issue.record("not committed")
                return
            }
            #expect(result.metadata.size == UInt64(size))
            try await first.cancel()
            for bucket in buckets { await bucket.close() }
        }
        #expect(model.bytes("n")?.count == size)
        #expect(model.commits == 1)
        #expect(model.leftovers == [])
    }

    @Test(
        "An upload that ends before bytes that a killed gateway has sent fails for good",
        arguments: [0, 5])
    func shorter(_ more: Int) async throws {
        let model = GCSModel()
        let bytes = pattern(1_700_000, seed: 1)
        try await onLoop {
            let buckets = [model.bucket(attempts: 1), model.bucket()]
            let first = try await buckets[0].begin("n")
            try await first.append(Array(bytes[..<300_000]), at: 0)
            model.state.withLock { state in
                state.before = { kind, state in
                    if kind == "chunk" { state.fault = { _, _ in .lost } }
                }
            }
            await #expect(throws: (any Error).self) {
                try await first.append(Array(bytes[300_000...]), at: 300_000)
            }
            model.state.withLock { ($0.fault, $0.before) = ({ _, _ in nil }, { _, _ in }) }
            let session = try await buckets[1].openSession(first.id)
            let offset = try await session.offset()
            try await session.append(Array(bytes[offset..<offset + more]), at: offset)
            do throws(SessionError) {
                let facts = try await session.finish()
                _ = try await session.commit(facts, Preconditions(), resultUntil: .max)
                Issue.record("stored")
            } catch {
                guard case .otherBytes = error else { throw error }
            }
            try await session.cancel()
            for bucket in buckets { await bucket.close() }
        }
        #expect(model.bytes("n") == nil)
        #expect(model.leftovers == [])
    }
}
