import Buckets
import System

extension SessionConformance {
    static let endCases: [Case] = [
        Case("nothing of a session is visible before its commit") { store in
            try await store.driver.put("old", [1, 2, 3])
            let sessions = [
                try await store.driver.begin("new"), try await store.driver.begin("old"),
            ]
            let before = try await store.driver.stat("old")
            for session in sessions { try await session.append(pattern(9000, seed: 1), at: 0) }
            for session in sessions { _ = try await session.finish() }
            let query = ListQuery(prefix: "", delimited: false, limit: 100)
            for _ in 0..<2 {
                let page = try await store.driver.list(query, after: nil)
                try expectEqual(page.items, ["old"], "the list")
                try expectEqual(page.prefixes, [], "the folders")
                try expectEqual(page.end, nil, "its end")
                try expectEqual(try await store.driver.stat("old"), before, "the old object")
                try await expectError(.objectNotFound) { try await store.driver.stat("new") }
                try await store.reopen()
            }
        },
        Case("a commit happens once, and repeating it returns the same result", once),
        Case("concurrent commits create one generation", atOnce),
        Case("a failed precondition of a commit leaves the session unchanged", preconditions),
        Case("a commit fails if bytes arrived after the decision") { store in
            let session = try await store.driver.begin("n")
            try await session.append([1], at: 0)
            let facts = try await session.finish()
            try await session.append([2], at: 1)
            try await expectMismatch(durable: 2) {
                try await session.commit(facts, Preconditions(), resultUntil: .max)
            }
            try await expectError(.objectNotFound) { try await store.driver.stat("n") }
            try await session.commitAll()
            try expectEqual(try await store.driver.get("n"), [1, 2], "the bytes")
        },
        Case("a commit stops a running append and fails") { store in
            let session = try await store.driver.begin("n")
            try await session.append([1], at: 0)
            let facts = try await session.finish()
            let append = try await session.append(AppendPlan(at: 1))
            try await append.fill([2])
            try await expectMismatch(durable: 2) {
                try await session.commit(facts, Preconditions(), resultUntil: .max)
            }
            try await expectSuperseded { try await append.end() }
        },
        Case("a cancelled session is unknown, and its append stops", cancelled),
        Case("cancelling after the commit keeps the object") { store in
            for size in [0, 10, 100_000] {
                let session = try await store.driver.begin("n")
                try await session.append(pattern(size, seed: 1), at: 0)
                try await session.commitAll()
                try await session.cancel()
                try await expectNotFound { try await session.state() }
                try await store.reopen()
                try expect(try await store.driver.get("n") == pattern(size, seed: 1), "the bytes")
            }
        },
        Case("a closed session keeps only its record", closed),
        Case("an unknown id is not found") { store in
            let id = UploadSessionID(expires: seconds(fromNow: 100))
            try await expectNotFound { try await store.driver.openSession(id) }
            let known = try await store.driver.begin("n").id
            // The same bits under another expiry are another id.
            var bytes = known.bytes
            bytes[7] ^= 1
            guard let other = UploadSessionID(bytes) else {
                throw ConformanceFailure(description: "24 bytes are an id")
            }
            try await expectNotFound { try await store.driver.openSession(other) }
        },
        Case("an expired session is gone, and is removed with its bytes", expired),
        Case("sessions are listed by id, page by page", listed),
    ]

    @Sendable private static func once(_ store: SessionStore) async throws {
        for size in [0, 10, 200_000] {
            let name = "once/\(size)"
            try await store.driver.put(name, [9])
            let session = try await store.driver.begin(name, ObjectAttributes(contentType: "a/b"))
            try await session.append(pattern(size, seed: 2), at: 0)
            let first = try await session.commitAll()
            try expectEqual(first.replaced, true, "replaced")
            // Another object in its place, and conditions that do not hold any more, change nothing.
            try await store.driver.put(name, [7])
            var absent = Preconditions()
            absent.generation = 0
            for round in 0..<3 {
                let again = try await store.driver.openSession(session.id)
                let result = try await again.commitAll(round == 1 ? absent : Preconditions())
                try expectEqual(result.metadata, first.metadata, "the result of round \(round)")
                try expectEqual(result.replaced, true, "replaced in round \(round)")
                let state = try await again.state()
                try expectEqual(state.offset, UInt64(size), "the offset")
                guard case .committed(let known) = state.end else {
                    throw ConformanceFailure(description: "the state does not say that it ended")
                }
                try expectEqual(known.metadata, first.metadata, "the state's result")
                try await expectFinished {
                    try await again.append(AppendPlan(at: UInt64(size)))
                }
                try await expectFinished { try await again.close([], until: .max) }
                if round == 0 { try await store.reopen() }
            }
            try expectEqual(try await store.driver.get(name), [7], "the bytes of the other object")
        }
    }

    @Sendable private static func atOnce(_ store: SessionStore) async throws {
        let session = try await store.driver.begin("n")
        try await session.append(pattern(10_000, seed: 2), at: 0)
        let facts = try await session.finish()
        let driver = store.driver
        let results = try await withThrowingTaskGroup(of: CommitResult.self) { group in
            for _ in 0..<8 {
                group.addTask {
                    try await store.onOtherLoop {
                        let session = try await driver.openSession(session.id)
                        return try await session.commit(facts, Preconditions(), resultUntil: .max)
                    }
                }
            }
            var results: [CommitResult] = []
            for try await result in group { results.append(result) }
            return results
        }
        let generations = Set(results.map(\.metadata.generation))
        try expectEqual(generations.count, 1, "generations")
        try expectEqual(results.count { !$0.isRepeated }, 1, "results that are not repeated")
        try expectEqual(
            generations.first, try await store.driver.stat("n").generation, "the generation")
    }

    @Sendable private static func preconditions(_ store: SessionStore) async throws {
        var absent = Preconditions()
        absent.generation = 0
        for size in [0, 10, 10_000, 300_000] {
            let name = "conditions/\(size)"
            let other = try await store.driver.put(name, [1]).metadata
            let bytes = pattern(size, seed: 1)
            let id = try await store.driver.begin(name).id
            try await store.driver.openSession(id).append(bytes, at: 0)
            for _ in 0..<2 {
                let session = try await store.driver.openSession(id)
                try await expectSessionError("preconditionFailed") {
                    if case .store(let error) = $0 {
                        error.code == .preconditionFailed
                    } else {
                        false
                    }
                } _: {
                    try await session.commitAll(absent)
                }
                try expectEqual(try await session.offset(), size, "the offset")
                try expectEqual(try await store.driver.stat(name), other, "the other object")
                try await store.reopen()
            }
            let again = try await store.driver.openSession(id)
            try await again.append([5], at: size)
            var matching = Preconditions()
            matching.generation = other.generation
            let result = try await again.commitAll(matching)
            try expect(result.replaced, "it has replaced the other")
            try expect(try await store.driver.get(name) == bytes + [5], "the bytes")
        }
    }

    @Sendable private static func cancelled(_ store: SessionStore) async throws {
        for size in [0, 10, 200_000] {
            let session = try await store.driver.begin("n")
            let other = try await store.driver.openSession(session.id)
            let append = try await session.append(AppendPlan(at: 0))
            try await append.fill(pattern(size, seed: 1))
            try await other.cancel()
            try await expectSuperseded { try await append.end() }
            for gone in [session, other] {
                try await expectNotFound { try await gone.state() }
                try await expectNotFound { try await gone.append(AppendPlan(at: 0)) }
                try await expectNotFound { try await gone.finish() }
                try await expectNotFound { try await gone.cancel() }
                try await expectNotFound { try await gone.close([], until: .max) }
                try await expectNotFound {
                    try await gone.commit(
                        ContentFacts(size: UInt64(size), md5: nil, crc32c: 0), Preconditions(),
                        resultUntil: .max)
                }
            }
            try await expectNotFound { try await store.driver.openSession(session.id) }
            try await store.reopen()
            try await expectNotFound { try await store.driver.openSession(session.id) }
            try await expectError(.objectNotFound) { try await store.driver.stat("n") }
        }
    }

    @Sendable private static func closed(_ store: SessionStore) async throws {
        for record in [[], pattern(1000, seed: 1)] {
            let session = try await store.driver.begin("n")
            try await session.append(pattern(50_000, seed: 1), at: 0)
            try await session.close(record, until: .max)
            for round in 0..<2 {
                let again = try await store.driver.openSession(session.id)
                guard case .closed(let found) = try await again.state().end else {
                    throw ConformanceFailure(description: "the state does not say that it ended")
                }
                try expectEqual(found, record, "the record")
                try expectEqual(try await again.offset(), 50_000, "the offset")
                try await expectFinished { try await again.append(AppendPlan(at: 50_000)) }
                try await expectFinished { try await again.finish() }
                try await expectFinished { try await again.close([1], until: .max) }
                if round == 0 { try await store.reopen() }
            }
            try await expectError(.objectNotFound) { try await store.driver.stat("n") }
        }
    }

    @Sendable private static func expired(_ store: SessionStore) async throws {
        try await expectNotFound { try await store.driver.begin("n", lifetime: -1) }
        let session = try await store.driver.begin("n", lifetime: 15)
        let kept = try await store.driver.begin("kept", lifetime: 300)
        let short = try await store.driver.begin("short", lifetime: 300)
        for each in [session, kept, short] {
            try await each.append(pattern(100_000, seed: 1), at: 0)
        }
        let facts = try await short.finish()
        _ = try await short.commit(facts, Preconditions(), resultUntil: session.id.expires)
        let append = try await session.append(AppendPlan(at: 100_000))
        try await append.fill([1, 2])
        try expectEqual(try await store.driver.removeExpiredSessions(limit: 10), 0, "removed early")
        while seconds(fromNow: 0) < session.id.expires + 1 {
            try await Task.sleep(nanoseconds: 100_000_000)
        }
        try await expectNotFound { try await append.end() }
        try await expectNotFound { try await session.state() }
        try await expectNotFound {
            try await session.commit(facts, Preconditions(), resultUntil: 0)
        }
        try await expectNotFound { try await store.driver.openSession(session.id) }
        try await expectNotFound { try await store.driver.openSession(short.id) }
        try expectEqual(try await store.driver.removeExpiredSessions(limit: 1), 1, "removed first")
        try expectEqual(try await store.driver.removeExpiredSessions(limit: 9), 1, "removed next")
        try expectEqual(try await store.driver.removeExpiredSessions(limit: 9), 0, "removed last")
        try expectEqual(
            try await store.driver.listSessions(after: nil, limit: 9).map(\.id), [kept.id], "left")
        try expectEqual(try await kept.offset(), 100_000, "the offset of another")
        try expectEqual(
            try await store.driver.get("short"), pattern(100_000, seed: 1), "the object")
    }

    @Sendable private static func listed(_ store: SessionStore) async throws {
        var ids: [UploadSessionID] = []
        for index in 0..<7 {
            let session = try await store.driver.begin(
                "n\(index)", lifetime: Int64(1000 - index * 10), context: [UInt8(index)])
            try await session.append(pattern(index, seed: 1), at: 0)
            ids.insert(session.id, at: 0)
        }
        for limit in [1, 3, 7, 100] {
            var found: [UploadSessionID] = []
            while true {
                let page = try await store.driver.listSessions(after: found.last, limit: limit)
                if page.isEmpty { break }
                try expect(page.count <= limit, "a page is within its limit")
                for (id, state) in page {
                    try expectEqual(state.context, [UInt8(state.offset)], "the context")
                    found.append(id)
                }
            }
            try expectEqual(found, ids, "the ids in pages of \(limit)")
        }
    }
}
