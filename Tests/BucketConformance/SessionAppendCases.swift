import Buckets
import OpenSSL
import System

extension SessionConformance {
    static let appendCases: [Case] = [
        Case("one append creates the same object as an upload in one request") { store in
            for size in [1, 4096, 4097, 65_536, 300_000] { try await same(store, size, pieces: 1) }
        },
        Case("so do many appends") { store in
            for (size, pieces) in [(10, 10), (5000, 7), (300_000, 3), (70_000, 64)] {
                try await same(store, size, pieces: pieces)
            }
        },
        Case("an empty object is created with and without an append") { store in
            for appends in [0, 1] {
                let name = "empty/\(appends)"
                let session = try await store.driver.begin(name, length: 0)
                if appends > 0 { try await session.append([], at: 0) }
                let result = try await session.commitAll()
                try expectEqual(result.metadata.size, 0, "the size")
                try expectEqual(try await store.driver.get(name), [], "the bytes")
            }
        },
        Case("an append at a wrong offset fails and reports the durable offset", offsets),
        Case("a reported offset is valid after the driver was reopened", reopened),
        Case(
            "what is remembered of a session comes back, on the same and a new driver", remembered),
        Case("a newer append stops the older one and keeps its bytes", twoAppenders),
        Case("so does an append on another loop", twoLoops),
        Case("reading the state stops an append, so that the offset stays correct") { store in
            let session = try await store.driver.begin("n")
            let append = try await session.append(AppendPlan(at: 0))
            try await append.fill(pattern(100_000, seed: 1))
            try expectEqual(try await session.offset(), 100_000, "the offset")
            try await expectSuperseded { try append.write([1].span.bytes) }
            try await expectSuperseded { try await append.end() }
            try expectEqual(try await session.offset(), 100_000, "the offset afterwards")
            try await session.append([1], at: 100_000)
        },
        Case("a dropped append keeps what it received") { store in
            let session = try await store.driver.begin("n")
            for round in 0..<3 {
                let bytes = pattern(50_000, seed: UInt64(round))
                try await session.append(AppendPlan(at: UInt64(round * 50_000))).fill(bytes)
                try expectEqual(try await session.offset(), (round + 1) * 50_000, "the offset")
            }
            try await session.commitAll()
            let wanted = (0..<3).flatMap { pattern(50_000, seed: UInt64($0)) }
            try expect(try await store.driver.get("n") == wanted, "the bytes")
        },
        Case("a request that has begun is completed after its client has gone", clientGone),
        Case("an all-or-nothing append counts only at its end", allOrNothing),
        Case("a declared length is enforced, whether declared first or later", lengths),
        Case("an impossible length is rejected") { store in
            for length in [UInt64.max, UInt64(Int64.max) + 1] {
                let plan = SessionPlan(
                    UploadPlan(size: length), expires: seconds(fromNow: 100))
                try await expectLengthExceeded {
                    try await store.driver.beginSession("n", plan)
                }
                let session = try await store.driver.begin("n")
                try await expectLengthExceeded {
                    try await session.append(AppendPlan(at: 0, length: length))
                }
                try await expectLengthExceeded {
                    try await session.append(AppendPlan(at: 0, size: length))
                }
            }
        },
        Case("digests cover the whole object, however it was split and reopened", digests),
        Case("random appends, cuts and restarts agree with a model", model),
    ]

    /// The task of a request is cancelled when its client goes away. `body` calls `leave` for that.
    private static func request<Result: Sendable>(
        _ body: @escaping @Sendable (_ leave: () -> Void) async throws -> Result
    ) async throws -> Result {
        try await Task(executorPreference: EventLoop.current) {
            try await body { withUnsafeCurrentTask { $0?.cancel() } }
        }.value
    }

    private static func clientGone(_ store: SessionStore) async throws {
        let driver = store.driver
        let bytes = pattern(600_000, seed: 1)
        let session = try await driver.begin("n")
        for (start, end) in [(0, 500), (500, 90_000), (90_000, 600_000)] {
            let durable = try await request { leave in
                let append = try await session.append(AppendPlan(at: UInt64(start)))
                try await append.fill(Array(bytes[start..<end]))
                leave()
                return Int(try await append.end())
            }
            try expectEqual(durable, end, "the durable offset")
            try expectEqual(try await session.offset(), end, "the offset")
        }
        let result = try await request { leave in
            let facts = try await session.finish()
            leave()
            return try await session.commit(facts, Preconditions(), resultUntil: .max)
        }
        try expect(!result.isRepeated, "the commit is the first one")
        try expect(try await driver.get("n") == bytes, "the bytes")
        let other = try await driver.begin("o")
        try await other.append(bytes, at: 0)
        try await request { leave in
            leave()
            try await other.cancel()
        }
        try await expectNotFound { try await driver.openSession(other.id) }
    }

    /// Uploads the same bytes by a session, in several pieces, and by a plain upload.
    private static func same(_ store: SessionStore, _ size: Int, pieces: Int) async throws {
        let bytes = pattern(size, seed: UInt64(size))
        let attributes = ObjectAttributes(contentType: "a/b", customMetadata: ["k": "v"])
        let name = "session/\(size)-\(pieces)"
        let session = try await store.driver.begin(name, attributes, length: size)
        for piece in 0..<pieces {
            let range = size * piece / pieces..<size * (piece + 1) / pieces
            let end = try await session.append(Array(bytes[range]), at: range.lowerBound)
            try expectEqual(end, range.upperBound, "the offset")
        }
        let result = try await session.commitAll()
        let plain = try await store.driver.put("plain/\(size)", bytes, attributes).metadata
        try expectEqual(result.replaced, size == 0, "replaced")
        try expectEqual(result.metadata.size, plain.size, "size")
        try expectEqual(result.metadata.md5, plain.md5, "md5")
        try expectEqual(result.metadata.crc32c, plain.crc32c, "crc32c")
        try expectEqual(result.metadata.attributes, plain.attributes, "attributes")
        try expectEqual(result.metadata.metageneration, 1, "metageneration")
        try expectEqual(try await store.driver.stat(name), result.metadata, "metadata")
        try expect(try await store.driver.get(name) == bytes, "the bytes")
    }

    @Sendable private static func offsets(_ store: SessionStore) async throws {
        let session = try await store.driver.begin("n")
        let bytes = pattern(1000, seed: 1)
        for durable in [0, 1000] {
            for wrong in [1, 999, 1001, UInt64(Int64.max), UInt64(Int64.max) + 1, .max]
            where wrong != durable {
                try await expectMismatch(durable: durable) {
                    try await session.append(AppendPlan(at: wrong))
                }
                try await expectMismatch(durable: durable) {
                    try await session.append(AppendPlan(at: wrong, size: 10, length: 2))
                }
            }
            if durable == 0 { try await session.append(bytes, at: 0) }
        }
        try await expectMismatch(durable: 1000) { try await session.append(AppendPlan(at: 0)) }
        try await session.commitAll()
        try expect(try await store.driver.get("n") == bytes, "the bytes")
    }

    @Sendable private static func reopened(_ store: SessionStore) async throws {
        let bytes = pattern(200_000, seed: 4)
        let id = try await store.driver.begin("n").id
        var offset = 0
        for end in [0, 1, 70_001, 70_002, 200_000] {
            try await store.reopen()
            let session = try await store.driver.openSession(id)
            try expectEqual(try await session.offset(), offset, "the offset")
            try await session.append(Array(bytes[offset..<end]), at: offset)
            offset = end
        }
        try await store.reopen()
        let session = try await store.driver.openSession(id)
        let facts = try await session.finish()
        try expectEqual(facts.md5, digest(.md5, bytes), "md5")
        try await store.reopen()
        let result = try await store.driver.openSession(id)
            .commit(facts, Preconditions(), resultUntil: .max)
        try expectEqual(result.metadata.md5, facts.md5, "the object's md5")
        try expect(try await store.driver.get("n") == bytes, "the bytes")
    }

    @Sendable private static func remembered(_ store: SessionStore) async throws {
        let attributes = ObjectAttributes(
            contentType: "a/b", cacheControl: "c", contentDisposition: "d", contentEncoding: "e",
            contentLanguage: "f", customMetadata: ["ä": "ö", "": ""],
            system: SystemMetadata(
                downloadTokens: ["a", "b"], uploadSession: UploadSessionID(expires: 7)))
        let context = pattern(SessionPlan.maximumContext, seed: 1)
        let id = try await store.driver.begin("ä/ö", attributes, context: context).id
        for isKnown in [false, true] {
            let session = try await store.driver.openSession(id)
            let state = try await session.state()
            try expectEqual(session.id, id, "the id")
            try expectEqual(state.name, "ä/ö", "the name")
            try expectEqual(state.attributes, attributes, "the attributes")
            try expect(state.context == context, "the context")
            try expectEqual(state.expires, id.expires, "the expiry")
            try expectEqual(state.length, isKnown ? 10 : nil, "the length")
            try expect(state.end == nil, "it is open")
            if !isKnown { try await session.append([1], at: 0, length: 10) }
            try await store.reopen()
        }
    }

    @Sendable private static func twoAppenders(_ store: SessionStore) async throws {
        let bytes = pattern(300_000, seed: 3)
        let first = try await store.driver.begin("n")
        let second = try await store.driver.openSession(first.id)
        let older = try await first.append(AppendPlan(at: 0))
        try await older.fill(Array(bytes[..<100_000]))
        let told = Lock(0)
        older.whenStopped { told.withLock { $0 += 1 } }
        // Of two that come at once one is first, and the other finds its offset.
        try await expectMismatch(durable: 100_000) { try await second.append(AppendPlan(at: 5)) }
        let newer = try await second.append(AppendPlan(at: 100_000))
        try expectEqual(told.withLock { $0 }, 1, "calls to the one that was stopped")
        try await expectSuperseded { try older.write(bytes.span.bytes) }
        try await newer.fill(Array(bytes[100_000...]))
        try await expectSuperseded { try await older.end() }
        await older.discard()
        try expectEqual(try await newer.end(), 300_000, "the offset")
        try await second.commitAll()
        try expect(try await store.driver.get("n") == bytes, "the bytes")
    }

    @Sendable private static func twoLoops(_ store: SessionStore) async throws {
        let bytes = pattern(400_000, seed: 3)
        let session = try await store.driver.begin("n")
        let older = try await session.append(AppendPlan(at: 0))
        try await older.fill(Array(bytes[..<150_000]))
        let driver = store.driver
        try await store.onOtherLoop {
            let other = try await driver.openSession(session.id)
            try expectEqual(try await other.offset(), 150_000, "the offset")
            try await other.append(Array(bytes[150_000...]), at: 150_000)
        }
        try await expectSuperseded { try await older.end() }
        try await session.commitAll()
        try expect(try await store.driver.get("n") == bytes, "the bytes")
    }

    @Sendable private static func allOrNothing(_ store: SessionStore) async throws {
        let session = try await store.driver.begin("n")
        try await session.append([1, 2, 3], at: 0)
        func begin() async throws -> any SessionAppend {
            try await session.append(AppendPlan(at: 3, isAllOrNothing: true))
        }
        for size in [10, 200_000] {
            let discarded = try await begin()
            try await discarded.fill(pattern(size, seed: 1))
            await discarded.discard()
            try expectEqual(try await session.offset(), 3, "the offset after a discard")
            let stopped = try await begin()
            try await stopped.fill(pattern(size, seed: 2))
            try expectEqual(try await session.offset(), 3, "the offset after a stop")
            try await begin().fill(pattern(size, seed: 3))
            try expectEqual(try await session.offset(), 3, "the offset after a drop")
        }
        try await store.reopen()
        let again = try await store.driver.openSession(session.id)
        let bytes = pattern(100_000, seed: 4)
        let kept = try await again.append(AppendPlan(at: 3, isAllOrNothing: true))
        try await kept.fill(bytes)
        try expectEqual(try await kept.end(), 100_003, "the offset at the end")
        try await again.commitAll()
        try expect(try await store.driver.get("n") == [1, 2, 3] + bytes, "the bytes")
    }

    @Sendable private static func lengths(_ store: SessionStore) async throws {
        for isKnown in [true, false] {
            let session = try await store.driver.begin("n", length: isKnown ? 100_000 : nil)
            let bytes = pattern(100_000, seed: 1)
            try await session.append(
                Array(bytes[..<10]), at: 0, length: isKnown ? nil : 100_000)
            try expectEqual(try await session.state().length, 100_000, "the length")
            try await expectLengthMismatch(100_000) {
                try await session.append(AppendPlan(at: 10, length: 99_999))
            }
            try await expectLengthExceeded {
                try await session.append(AppendPlan(at: 10, size: 99_991))
            }
            try await expectLengthMismatch(100_000) { try await session.commitAll() }
            // A body of unknown size that is too long: nothing beyond the length is taken.
            let append = try await session.append(AppendPlan(at: 10))
            try await expectLengthExceeded {
                try await append.fill(Array(bytes[10...]) + [1])
            }
            try expectEqual(try await append.end(), 100_000, "the offset")
            try await session.append([], at: 100_000, length: 100_000)
            try await session.commitAll()
            try expect(try await store.driver.get("n") == bytes, "the bytes")
        }
        let short = try await store.driver.begin("short")
        try await short.append([1, 2, 3], at: 0)
        try await expectLengthExceeded {
            try await short.append(AppendPlan(at: 3, length: 2))
        }
        try expectEqual(try await short.state().length, nil, "the length")
    }

    @Sendable private static func digests(_ store: SessionStore) async throws {
        let bytes = pattern(131, seed: 5)
        var crc32c = CRC32C()
        crc32c.update(bytes.span.bytes)
        for cut in [0, 1, 55, 56, 63, 64, 65, 111, 112, 127, 128, 129, 130] {
            let session = try await store.driver.begin("n", digests: [.sha256, .sha512])
            try await session.append(Array(bytes[..<cut]), at: 0)
            if cut % 2 == 0 { try await store.reopen() }
            let again = try await store.driver.openSession(session.id)
            try await again.append(Array(bytes[cut...]), at: cut)
            let facts = try await again.finish()
            try expectEqual(facts.size, 131, "size")
            try expectEqual(facts.md5, digest(.md5, bytes), "md5, cut at \(cut)")
            try expectEqual(facts.crc32c, crc32c.value, "crc32c, cut at \(cut)")
            try expectEqual(facts.digests[.sha256], digest(.sha256, bytes), "sha-256")
            try expectEqual(facts.digests[.sha512], digest(.sha512, bytes), "sha-512")
            try expectEqual(try await again.finish(), facts, "the facts once more")
            try await again.cancel()
        }
    }

    /// What is known of a session is an array; each step is made on both.
    @Sendable private static func model(_ store: SessionStore) async throws {
        for seed in 0..<6 {
            var random = seed &* 7_919 &+ 17
            func next(_ bound: Int) -> Int {
                random = (random &* 1_103_515_245 &+ 12_345) & 0x7fff_ffff
                return random >> 8 % 65_536 % bound
            }
            let name = "model/\(seed)"
            let id = try await store.driver.begin(name).id
            var durable: [UInt8] = []
            for step in 0..<40 {
                if next(10) == 0 { try await store.reopen() }
                let session = try await store.driver.openSession(id)
                try expectEqual(try await session.offset(), durable.count, "the offset")
                let bytes = pattern(next(5) == 0 ? 90_000 : next(3000), seed: UInt64(step))
                let isAllOrNothing = next(3) == 0
                let append = try await session.append(
                    AppendPlan(at: UInt64(durable.count), isAllOrNothing: isAllOrNothing))
                try await append.fill(bytes, step: next(5000) + 1)
                switch next(4) {
                case 0:
                    _ = try await session.state()
                    if !isAllOrNothing { durable += bytes }
                case 1 where isAllOrNothing: await append.discard()
                default:
                    durable += bytes
                    try expectEqual(Int(try await append.end()), durable.count, "the end")
                }
            }
            let result = try await store.driver.openSession(id).commitAll()
            try expectEqual(result.metadata.md5, digest(.md5, durable), "md5")
            try expect(try await store.driver.get(name) == durable, "the bytes")
        }
    }
}
