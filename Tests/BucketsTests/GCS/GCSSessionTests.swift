import BucketConformance
import System
import TestSupport
import Testing

@testable import Buckets

/// The quantum of the service's sessions.
private let quantum = 256 * 1024

extension GCSModel {
    /// Removes what a sweep removes two weeks later.
    func sweep() async throws {
        let bucket = bucket()
        let later = CloudSessions(bucket) { SystemClock.microseconds() + 14 * 86_400_000_000 }
        _ = try await later.removeExpired(limit: 1000)
        await bucket.close()
    }

    /// The number of requests of each kind since the last call.
    func requests() -> [String: Int] {
        state.withLock { state in
            defer { state.log = [] }
            return state.log.reduce(into: [:]) { $0[$1, default: 0] += 1 }
        }
    }

    /// The object's bytes; nil if there is none.
    func bytes(_ name: String) -> [UInt8]? {
        state.withLock { $0.objects[.init(name)]?.bytes }
    }

    /// How often an object became visible.
    var commits: Int { state.withLock { $0.commits.count } }
}

@Suite("Upload sessions in Cloud Storage", .timeLimit(.minutes(5)))
struct GCSSessionTests {
    @Test(arguments: SessionConformance.all)
    func conforms(_ check: SessionConformance.Case) async throws {
        let model = GCSModel()
        try await check.run { model.bucket() }
        try await onLoop { try await model.sweep() }
        #expect(model.leftovers == [])
    }

    @Test("An append costs two writes of the state beside its bytes, at its owner")
    func costs() async throws {
        let model = GCSModel()
        try await onLoop {
            let bucket = model.bucket()
            let bytes = pattern(3 * quantum + 10, seed: 1)
            let session = try await bucket.begin("n")
            #expect(model.requests() == ["state": 1])
            try await session.append(Array(bytes[..<quantum]), at: 0)
            #expect(model.requests() == ["resumable": 1, "state": 2, "chunk": 1])
            try await session.append(Array(bytes[quantum..<2 * quantum]), at: quantum)
            #expect(model.requests() == ["state": 2, "chunk": 1])
            // What fits into the tail is only written to the state.
            try await session.append(
                Array(bytes[(2 * quantum)..<(2 * quantum + 5)]), at: 2 * quantum)
            #expect(model.requests() == ["state": 1])
            _ = try await session.state()
            #expect(model.requests() == ["read": 1])
            try await session.append(Array(bytes[(2 * quantum + 5)...]), at: 2 * quantum + 5)
            #expect(model.requests() == ["state": 2, "chunk": 1])
            // Another gateway reads and claims.
            let other = model.bucket()
            let again = try await other.openSession(session.id)
            #expect(try await again.offset() == bytes.count)
            #expect(model.requests() == ["read": 1, "state": 1])
            try await again.commitAll()
            #expect(
                model.requests() == [
                    "read": 2, "stat": 2, "state": 2, "last": 1, "move": 1,
                ])
            let found = try await bucket.get("n")
            #expect(found == bytes)
            await bucket.close()
            await other.close()
        }
    }

    @Test("A small object is stored by two requests, and nothing was sent before")
    func small() async throws {
        let model = GCSModel()
        try await onLoop {
            let bucket = model.bucket()
            let session = try await bucket.begin("n")
            try await session.append(pattern(quantum - 1, seed: 1), at: 0)
            _ = model.requests()
            try await session.commitAll()
            #expect(
                model.requests() == ["read": 2, "stat": 1, "state": 2, "multipart": 1, "move": 1])
            await bucket.close()
        }
    }

    /// Leaves an append that a killed gateway has not ended: the service keeps its bytes, and the state has none.
    private func leave(_ bytes: [UInt8], _ session: any UploadSession, at offset: Int) async throws
        -> any SessionAppend
    {
        let append = try await session.append(
            AppendPlan(at: UInt64(offset), size: UInt64(bytes.count + 1)))
        try await append.fill(bytes)
        return append
    }

    private func kept(_ model: GCSModel) -> Int {
        model.state.withLock { $0.sessions.values.map(\.bytes.count).max() ?? 0 }
    }

    @Test("Bytes that a killed gateway has sent are not sent again", arguments: [false, true])
    func ahead(isOther: Bool) async throws {
        let model = GCSModel()
        try await onLoop {
            let (dead, bucket) = (model.bucket(), model.bucket())
            let bytes = pattern(80 * quantum + 100, seed: 1)
            let first = try await dead.begin("n")
            try await first.append(Array(bytes[..<100]), at: 0)
            // Chunks of 16 MiB are complete at the service before the append ends.
            let lost = try await leave(Array(bytes[100..<70 * quantum]), first, at: 100)
            await eventually { kept(model) == 64 * quantum }
            let session = try await bucket.openSession(first.id)
            #expect(try await session.offset() == 100)
            var rest = Array(bytes[100...])
            if isOther { rest[1000] ^= 1 }
            try await session.append(rest, at: 100)
            if isOther {
                // The service has other bytes than those that were acknowledged.
                let error = await #expect(throws: SessionError.self) {
                    try await session.commitAll()
                }
                let isRight = if case .otherBytes? = error { true } else { false }
                #expect(isRight, "\(error as Any)")
                #expect(model.commits == 0)
                try await session.close([1], until: seconds(fromNow: 100))
            } else {
                try await session.commitAll()
                let found = model.bytes("n")
                #expect(found == bytes)
            }
            await #expect(throws: SessionError.self) { try await lost.end() }
            await dead.close()
            await bucket.close()
            try await model.sweep()
        }
        #expect(model.leftovers == [])
    }

    @Test("A chunk that arrives late changes nothing")
    func lateChunk() async throws {
        let model = GCSModel()
        try await onLoop {
            let (old, new) = (model.bucket(attempts: 1), model.bucket())
            let bytes = pattern(4 * quantum, seed: 2)
            let first = try await old.begin("n")
            try await first.append(Array(bytes[..<quantum]), at: 0)
            model.state.withLock { $0.delaysChunks = true }
            await #expect(throws: SessionError.self) {
                try await first.append(Array(bytes[quantum..<3 * quantum]), at: quantum)
            }
            model.state.withLock { $0.delaysChunks = false }
            let session = try await new.openSession(first.id)
            #expect(try await session.offset() == quantum)
            try await session.append(Array(bytes[quantum..<2 * quantum]), at: quantum)
            model.deliverLate()
            #expect(kept(model) == 3 * quantum)
            try await session.append(Array(bytes[(2 * quantum)...]), at: 2 * quantum)
            try await session.commitAll()
            let found = model.bytes("n")
            #expect(found == bytes)
            await old.close()
            await new.close()
        }
    }

    @Test("An append that is cut keeps what it received, also where the service keeps only a part")
    func cut() async throws {
        let model = GCSModel()
        try await onLoop {
            for (index, isKnown) in [true, false].enumerated() {
                let bucket = model.bucket()
                let bytes = pattern(7 * quantum + 9, seed: UInt64(index))
                let session = try await bucket.begin("n")
                model.state.withLock { $0.persists = quantum }
                let size = isKnown ? UInt64(bytes.count * 2) : nil
                let append = try await session.append(AppendPlan(at: 0, size: size))
                try await append.fill(bytes)
                #expect(try await append.end() == UInt64(bytes.count))
                try await session.commitAll()
                let found = model.bytes("n")
                #expect(found == bytes)
                await bucket.close()
            }
        }
    }

    @Test("Nothing of an append that is all or nothing is sent before its end")
    func allOrNothing() async throws {
        let model = GCSModel()
        try await onLoop {
            let bucket = model.bucket()
            let bytes = pattern(3 * quantum + 5, seed: 3)
            let session = try await bucket.begin("n")
            _ = model.requests()
            let plan = AppendPlan(at: 0, size: UInt64(bytes.count), isAllOrNothing: true)
            let discarded = try await session.append(plan)
            try await discarded.fill(bytes)
            await discarded.discard()
            #expect(model.requests() == [:])
            let append = try await session.append(plan)
            try await append.fill(bytes)
            #expect(try await append.end() == UInt64(bytes.count))
            #expect(model.requests() == ["resumable": 1, "state": 2, "chunk": 1])
            try await session.commitAll()
            let found = model.bytes("n")
            #expect(found == bytes)
            await bucket.close()
        }
    }

    @Test("Cancelling and closing free the service's session before they return")
    func freed() async throws {
        let model = GCSModel()
        try await onLoop {
            let bucket = model.bucket()
            for isClosed in [false, true] {
                let session = try await bucket.begin("n")
                try await session.append(pattern(2 * quantum, seed: 1), at: 0)
                if isClosed {
                    try await session.close([], until: seconds(fromNow: 100))
                } else {
                    try await session.cancel()
                }
                #expect(kept(model) == 0)
            }
            await bucket.close()
            try await model.sweep()
        }
        #expect(model.leftovers == [])
        #expect(model.commits == 0)
    }

    @Test("An expired session is removed with its bytes, also by two gateways at once")
    func swept() async throws {
        let model = GCSModel()
        try await onLoop {
            let buckets = [model.bucket(), model.bucket()]
            for size in [10, quantum * 3] {
                let session = try await buckets[0].begin("n", lifetime: 100)
                try await session.append(pattern(size, seed: 1), at: 0)
            }
            let kept = try await buckets[0].begin("n", lifetime: 5 * 3600)
            let removed = await withTaskGroup(of: Int?.self) { group in
                for bucket in buckets {
                    let later = CloudSessions(bucket) { SystemClock.microseconds() + 200_000_000 }
                    group.addTask(executorPreference: EventLoop.current) {
                        try? await later.removeExpired(limit: 10)
                    }
                }
                return await group.reduce(0) { $0 + ($1 ?? 0) }
            }
            #expect(removed >= 2)
            #expect(model.leftovers == [HiddenName.state(kept.id).text])
            for bucket in buckets { await bucket.close() }
        }
    }

    @Test("A writer that is faster than the commit wins, or is replaced, but is never unseen")
    func overtaken() async throws {
        for size in [10, 2 * quantum] {
            for isPinned in [false, true] {
                let model = GCSModel()
                try await onLoop {
                    let bucket = model.bucket()
                    let session = try await bucket.begin("n")
                    try await session.append(pattern(size, seed: 1), at: 0)
                    let facts = try await session.finish()
                    // Another object appears after the intent was written.
                    let isDone = Lock(false)
                    model.state.withLock { state in
                        state.before = { kind, state in
                            guard kind == "move",
                                isDone.withLock({ done in
                                    defer { done = true }
                                    return !done
                                })
                            else { return }
                            state.put("n", [7])
                        }
                    }
                    var conditions = Preconditions()
                    if isPinned { conditions.generation = 0 }
                    if isPinned {
                        let error = await #expect(throws: SessionError.self) {
                            try await session.commit(facts, conditions, resultUntil: .max)
                        }
                        let cause =
                            if case .store(let cause)? = error { cause.code } else {
                                nil as BucketError.Code?
                            }
                        #expect(cause == .preconditionFailed)
                        #expect(model.bytes("n") == [7])
                        try await session.cancel()
                    } else {
                        let result = try await session.commit(facts, conditions, resultUntil: .max)
                        #expect(result.replaced)
                        #expect(model.bytes("n")?.count == size)
                        let again = try await session.commit(facts, conditions, resultUntil: .max)
                        #expect(again.metadata == result.metadata)
                    }
                    await bucket.close()
                    try await model.sweep()
                }
                #expect(model.leftovers == [])
            }
        }
    }
}
