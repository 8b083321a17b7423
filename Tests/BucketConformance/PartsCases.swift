import Buckets
import OpenSSL
import Synchronization
import System
import Wire

extension SessionConformance {
    /// What every ``PartsDriver`` must do besides.
    public static let partsCases: [Case] = [
        Case("parts in any order and at the same time become the object", together),
        Case("a part replaces an earlier one of the same number", replaced),
        Case("an aborted or incomplete part leaves the earlier one", aborted),
        Case("numbers may have gaps, and what is not selected vanishes", gaps),
        Case("a selection names existing parts by number and tag", selections),
        Case("parts outlive the driver and are listed page by page", partsReopened),
        Case("a small object of one part, and an empty one", small),
        Case("parts are committed once, and repeating it returns the same result", partsOnce),
        Case("concurrent commits of parts create one generation", partsAtOnce),
        Case("a failed precondition leaves the parts", partsPreconditions),
        Case("a part that ends after the commit does not count", late),
        Case("a cancelled upload in parts is unknown", partsCancelled),
        Case("a closed upload in parts keeps only its record", partsClosed),
        Case("an expired upload in parts is removed with its parts", partsExpired),
        Case("an object in parts has an entity tag of S3, everywhere the same", partsTag),
        Case("checksums of parts give that of the object", partsChecksums),
    ]

    @Sendable private static func partsTag(_ store: SessionStore) async throws {
        let driver = try store.partsDriver
        let unit = try await driver.unit
        var attributes = ObjectAttributes(contentType: "a/b")
        attributes.system.s3 = S3Properties(expires: "later")
        for key in ["plain", "Not plain"] {
            attributes.customMetadata = [BytewiseString(key): "v"]
            let upload = try await driver.beginUpload(key, attributes)
            let all = [pattern(unit, seed: 1), pattern(unit, seed: 2), pattern(77, seed: 3)]
            // With a gap, and a part that is not selected.
            let numbers = [2, 3, 9]
            for (number, bytes) in zip(numbers, all) { try await upload.send(number, bytes) }
            try await upload.send(7, pattern(unit, seed: 4))
            let checksum = S3Properties.Checksum(.sha1, digest(.sha1, [1]), isComposite: true)
            try await upload.select(numbers.map { SelectedPart($0) }, checksum: .computed(checksum))
            let result = try await upload.commit(try await upload.finish(), Preconditions(), resultUntil: .max)
            let object = try await driver.stat(key)
            try expectEqual(result.metadata.s3Tag, object.s3Tag, "the tag of the result")
            var query = ListQuery(prefix: key, delimited: false, limit: 10, withProperties: true)
            query.withS3Tags = true
            let page = try await driver.list(query, after: nil)
            if let listed = page.properties[BytewiseString(key)] {
                try expectEqual(listed.s3Tag, object.s3Tag, "the listed tag")
            }
            try expectEqual(object.attributes.system.s3?.expires, "later", "Expires")
            let wanted = Hexadecimal.encode(digest(.md5, all.flatMap { digest(.md5, $0) })) + "-3"
            guard let stored = object.attributes.system.s3, stored.tag != nil else {
                try expect(!(driver is DirectoryBucket), "a directory stores the tag")
                try expect(object.s3Tag.hasSuffix(object.etag == object.s3Tag ? "-3" : "-1"), "no md5 as the tag")
                continue
            }
            try expectEqual(object.s3Tag, wanted, "the tag")
            try expectEqual(stored.checksum, checksum, "the checksum")
            try expectEqual(object.partCount, 3, "the number of parts")
            let unit = UInt64(unit)
            try expectEqual(
                (0...4).map { object.partRange($0) }, [nil, 0..<unit, unit..<2 * unit, 2 * unit..<2 * unit + 77, nil],
                "the parts")
            try await store.reopen()
            let again = try await store.partsDriver.openParts(upload.id, key, key: upload.key)
            let facts = ContentFacts(size: object.size, md5: nil, crc32c: nil)
            let repeated = try await again.commit(facts, Preconditions(), resultUntil: .max)
            try expectEqual(repeated.metadata, object, "the repeated result")
            guard try await store.driver.capabilities().copies else { continue }
            let copy = try await store.driver.copied(object, to: "copy").metadata
            try expectEqual(copy.s3Tag, object.s3Tag, "the copy's tag")
            try expectEqual(try await store.driver.stat("copy").partRange(3), object.partRange(3), "the copy's parts")
            return
        }
    }

    @Sendable private static func partsChecksums(_ store: SessionStore) async throws {
        let unit = try await store.partsDriver.unit
        let all = [pattern(unit, seed: 1), pattern(unit, seed: 2), pattern(77, seed: 3)]
        for algorithm in ChecksumAlgorithm.allCases {
            func value(_ bytes: [UInt8]) -> [UInt8] {
                if let digest = algorithm.digest { return BucketConformance.reference(digest, bytes) }
                return withUnsafeBytes(of: crc32c(bytes).bigEndian) { Array($0) }
            }
            let begun = try await store.partsDriver.beginUpload("n")
            var kept: [Part] = []
            for (index, bytes) in all.enumerated() {
                let plan = PartPlan(size: UInt64(bytes.count), checksum: algorithm)
                let part = try await begun.beginPart(index + 1, plan)
                try await part.fill(bytes)
                let facts = try await part.finish()
                try expectEqual(facts.checksum(algorithm), value(bytes), "the \(algorithm) of the bytes")
                kept.append(try await part.keep())
                try expectEqual(kept.last?.checksum, PartChecksum(algorithm, value(bytes)), "the part's \(algorithm)")
            }
            try await store.reopen()
            let upload = try await store.partsDriver.openParts(begun.id, "n", key: begun.key)
            let listed = try await upload.parts(after: 0, limit: 10)
            let found = listed.map(\.checksum)
            try expect(
                found == kept.map(\.checksum) || found == [nil, nil, nil] && !(store.driver is DirectoryBucket),
                "the listed checksums are \(found)")
            let whole = S3Properties.Checksum(of: kept, algorithm, isComposite: false)
            let isCRC = ![.sha1, .sha256].contains(algorithm)
            try expectEqual(whole?.value, isCRC ? value(all.flatMap { $0 }) : nil, "the \(algorithm) of the object")
            let composite = S3Properties.Checksum(of: kept, algorithm, isComposite: true)
            let joined = value(all.flatMap { value($0) })
            try expectEqual(composite?.value, algorithm == .crc64nvme ? nil : joined, "the composite \(algorithm)")
            try await upload.cancel()
        }
    }

    @Sendable private static func together(_ store: SessionStore) async throws {
        let driver = try store.partsDriver
        let unit = try await driver.unit
        let attributes = ObjectAttributes(contentType: "a/b", customMetadata: ["k": "v"])
        for order in [[1, 2, 3, 4], [4, 3, 2, 1], [3, 4, 1, 2]] {
            let name = "together/\(order[0])"
            let upload = try await driver.beginUpload(name, attributes)
            let all = (1...4).map { pattern($0 == 4 ? 1234 : unit, seed: UInt64($0)) }
            let running = order.prefix(2)
            try await withThrowingTaskGroup(of: Void.self) { group in
                for number in running {
                    group.addTask(executorPreference: EventLoop.current) {
                        try await upload.send(number, all[number - 1])
                    }
                }
                try await group.waitForAll()
            }
            for number in order.dropFirst(2) {
                _ = try await store.onOtherLoop { try await upload.send(number, all[number - 1]) }
            }
            try await expectError(.objectNotFound) { try await driver.stat(name) }
            let query = ListQuery(prefix: "together/\(order[0])", delimited: false, limit: 100)
            try expectEqual(try await driver.list(query, after: nil).items, [], "the list")
            let whole = all.flatMap { $0 }
            try await upload.select((1...4).map { SelectedPart($0) })
            let facts = try await upload.finish()
            try expectEqual(facts.size, UInt64(whole.count), "the size")
            if let found = facts.crc32c { try expectEqual(found, crc32c(whole), "the crc32c") }
            let result = try await upload.commit(facts, Preconditions(), resultUntil: .max)
            try expectEqual(result.replaced, false, "replaced")
            try expectEqual(result.metadata.size, facts.size, "the object's size")
            let object = try await driver.stat(name)
            try expectEqual(object.generation, result.metadata.generation, "the generation")
            try expectEqual(object.etag, result.metadata.etag, "the entity tag")
            try expectEqual(object.attributes, result.metadata.attributes, "the attributes")
            try expectEqual(object.attributes.customMetadata, attributes.customMetadata, "the custom metadata")
            try expectEqual(object.attributes.contentType, "a/b", "the type")
            try expect(try await driver.get(name) == whole, "the bytes")
        }
    }

    @Sendable private static func replaced(_ store: SessionStore) async throws {
        let driver = try store.partsDriver
        let unit = try await driver.unit
        let upload = try await driver.beginUpload("n")
        let parts = (0..<4).map { pattern(unit + $0, seed: UInt64($0)) }
        try await upload.send(1, parts[0])
        try await upload.send(2, parts[1])
        try await upload.send(1, parts[2])
        try await upload.send(1, parts[3])
        try await upload.send(2, parts[2])
        let listed = try await upload.parts(after: 0, limit: 10)
        try expectEqual(listed.map(\.number), [1, 2], "the numbers")
        try expectEqual(listed.map(\.size), [UInt64(unit + 3), UInt64(unit + 2)], "the sizes")
        try await upload.commitAll([1, 2])
        try expect(try await driver.get("n") == parts[3] + parts[2], "the bytes")
    }

    @Sendable private static func aborted(_ store: SessionStore) async throws {
        let driver = try store.partsDriver
        let unit = try await driver.unit
        let upload = try await driver.beginUpload("n")
        let bytes = pattern(unit, seed: 1)
        let first = try await upload.send(1, bytes)
        let part = try await upload.beginPart(1, PartPlan(size: UInt64(unit)))
        try await part.fill(pattern(unit / 2, seed: 2))
        part.abort()
        let short = try await upload.beginPart(1, PartPlan(size: UInt64(unit)))
        try await short.fill(pattern(unit - 1, seed: 3))
        try await expectLengthMismatch(unit) { try await short.finish() }
        short.abort()
        let dropped = try await upload.beginPart(2, PartPlan(size: 100))
        try await dropped.fill(pattern(50, seed: 3))
        let long = try await upload.beginPart(2, PartPlan(size: 10))
        try await expectLengthExceeded { try await long.fill(pattern(11, seed: 3)) }
        long.abort()
        let finished = try await upload.beginPart(1, PartPlan(size: 100))
        try await finished.fill(pattern(100, seed: 3))
        _ = try await finished.finish()
        finished.abort()
        try expectEqual(try await upload.parts(after: 0, limit: 10).map(\.etag), [first.etag], "the tags")
        try await upload.commitAll([1])
        try expect(try await driver.get("n") == bytes, "the bytes")
    }

    @Sendable private static func gaps(_ store: SessionStore) async throws {
        let driver = try store.partsDriver
        let unit = try await driver.unit
        for chosen in [[7, 10_000], [2, 7], [7], [2, 10_000]] {
            let upload = try await driver.beginUpload("n")
            for number in [10_000, 2, 7] { try await upload.send(number, pattern(unit, seed: UInt64(number))) }
            try await upload.commitAll(chosen)
            let wanted = chosen.flatMap { pattern(unit, seed: UInt64($0)) }
            try expect(try await driver.get("n") == wanted, "the bytes of \(chosen)")
        }
    }

    @Sendable private static func selections(_ store: SessionStore) async throws {
        let driver = try store.partsDriver
        let (unit, minimum) = (try await driver.unit, try await driver.capabilities().minimumPart)
        let upload = try await driver.beginUpload("n")
        let one = try await upload.send(1, pattern(unit, seed: 1))
        let three = try await upload.send(3, pattern(10, seed: 3))
        try expect(one.etag != three.etag, "other bytes have another tag")
        for wrong in [
            [SelectedPart(2)], [SelectedPart(1), SelectedPart(2)],
            [SelectedPart(1, etag: three.etag)], [SelectedPart(1), SelectedPart(3, etag: one.etag)],
        ] {
            try await expectSessionError("noSuchPart") {
                if case .noSuchPart = $0 { true } else { false }
            } _: {
                try await upload.select(wrong)
            }
        }
        if minimum > 10 {
            try await upload.send(4, pattern(10, seed: 4))
            try await expectSessionError("partTooSmall(3)") {
                if case .partTooSmall(3, minimum) = $0 { true } else { false }
            } _: {
                try await upload.select([SelectedPart(1), SelectedPart(3), SelectedPart(4)])
            }
        }
        try await upload.select([SelectedPart(1)])
        try await upload.select([SelectedPart(1, etag: one.etag), SelectedPart(3, etag: three.etag)])
        let facts = try await upload.finish()
        try expectEqual(facts.size, UInt64(unit + 10), "the size")
        _ = try await upload.commit(facts, Preconditions(), resultUntil: .max)
        try expect(try await driver.get("n") == pattern(unit, seed: 1) + pattern(10, seed: 3), "the bytes")
    }

    @Sendable private static func partsReopened(_ store: SessionStore) async throws {
        let unit = try await store.partsDriver.unit
        let begun = try await store.partsDriver.beginUpload("ä/ö", context: [1, 2, 3])
        let (id, key) = (begun.id, begun.key)
        var sent: [Part] = []
        for number in [3, 1, 2] {
            try await store.reopen()
            let upload = try await store.partsDriver.openParts(id, "ä/ö", key: key)
            sent.append(try await upload.send(number, pattern(unit, seed: UInt64(number))))
        }
        try await store.reopen()
        let upload = try await store.partsDriver.openParts(id, "ä/ö", key: key)
        let sorted = sent.sorted { $0.number < $1.number }
        let listed = try await upload.parts(after: 0, limit: 10)
        try expectEqual(listed.map(\.number), [1, 2, 3], "the numbers")
        try expectEqual(listed.map(\.etag), sorted.map(\.etag), "the tags")
        try expectEqual(listed.map(\.size), sorted.map(\.size), "the sizes")
        for limit in [1, 2] {
            var found: [Int] = []
            while true {
                let page = try await upload.parts(after: found.last ?? 0, limit: limit)
                if page.isEmpty { break }
                try expect(page.count <= limit, "a page is within its limit")
                found += page.map(\.number)
            }
            try expectEqual(found, [1, 2, 3], "the numbers in pages of \(limit)")
        }
        let state = try await upload.state()
        try expectEqual(state.name, "ä/ö", "the name")
        try expectEqual(state.context, [1, 2, 3], "the context")
        try expect(state.end == nil, "it is open")
        try expect(try await store.driver.isOpen(id), "it is known as open")
        try expectEqual(try await store.driver.listSessions(after: nil, limit: 9).map(\.id), [id], "the sessions")
        try await upload.commitAll([1, 2, 3])
        let bytes = (1...3).flatMap { pattern(unit, seed: UInt64($0)) }
        try expect(try await store.driver.get("ä/ö") == bytes, "the bytes")
        try expect(try await !store.driver.isOpen(id) || store.driver is DirectoryBucket, "it is known as ended")
    }

    @Sendable private static func small(_ store: SessionStore) async throws {
        let driver = try store.partsDriver
        for size in [0, 1, 4096] {
            let upload = try await driver.beginUpload("small/\(size)")
            try await upload.send(5, pattern(size, seed: 1))
            let result = try await upload.commitAll([5])
            try expectEqual(result.metadata.size, UInt64(size), "the size")
            try expectEqual(try await driver.get("small/\(size)"), pattern(size, seed: 1), "the bytes")
        }
    }

    @Sendable private static func partsOnce(_ store: SessionStore) async throws {
        try await store.driver.put("n", [9])
        let begun = try await store.partsDriver.beginUpload("n")
        let (id, key) = (begun.id, begun.key)
        try await begun.send(1, pattern(70_000, seed: 1))
        let first = try await begun.commitAll([1])
        try expectEqual(first.replaced, true, "replaced")
        try await store.driver.put("n", [7])
        for round in 0..<2 {
            let again = try await store.partsDriver.openParts(id, "n", key: key)
            guard case .committed(let known) = try await again.state().end else {
                throw ConformanceFailure(description: "the state does not say that it ended")
            }
            try expectEqual(known.metadata, first.metadata, "the state's result")
            let facts = ContentFacts(size: 70_000, md5: nil, crc32c: nil)
            let result = try await again.commit(facts, Preconditions(), resultUntil: .max)
            try expectEqual(result.metadata, first.metadata, "the result of round \(round)")
            try expect(result.isRepeated, "it is repeated")
            try await expectFinished { try await again.close([], until: .max) }
            try await expectEnded { try await again.send(2, [1]) }
            if round == 0 { try await store.reopen() }
        }
        try expectEqual(try await store.driver.get("n"), [7], "the bytes of the other object")
    }

    @Sendable private static func partsAtOnce(_ store: SessionStore) async throws {
        let driver = try store.partsDriver
        let upload = try await driver.beginUpload("n")
        try await upload.send(1, pattern(10_000, seed: 2))
        try await upload.select([SelectedPart(1)])
        let facts = try await upload.finish()
        let (id, key) = (upload.id, upload.key)
        let results = try await withThrowingTaskGroup(of: CommitResult.self) { group in
            for _ in 0..<4 {
                group.addTask {
                    try await store.onOtherLoop {
                        try await driver.openParts(id, "n", key: key)
                            .commit(facts, Preconditions(), resultUntil: .max)
                    }
                }
            }
            var results: [CommitResult] = []
            for try await result in group { results.append(result) }
            return results
        }
        try expectEqual(Set(results.map(\.metadata.generation)).count, 1, "generations")
        try expectEqual(results.count { !$0.isRepeated }, 1, "results that are not repeated")
        try expectEqual(
            results[0].metadata.generation, try await driver.stat("n").generation, "the generation")
    }

    @Sendable private static func partsPreconditions(_ store: SessionStore) async throws {
        var absent = Preconditions()
        absent.generation = 0
        let other = try await store.driver.put("n", [1]).metadata
        let unit = try await store.partsDriver.unit
        let begun = try await store.partsDriver.beginUpload("n")
        let (id, key) = (begun.id, begun.key)
        for number in 1...2 { try await begun.send(number, pattern(unit, seed: UInt64(number))) }
        for _ in 0..<2 {
            let upload = try await store.partsDriver.openParts(id, "n", key: key)
            try await expectSessionError("preconditionFailed") {
                if case .store(let error) = $0 { error.code == .preconditionFailed } else { false }
            } _: {
                try await upload.commitAll([1, 2], absent)
            }
            try expectEqual(try await store.driver.stat("n").generation, other.generation, "the other object")
            try await store.reopen()
        }
        var matching = Preconditions()
        matching.generation = other.generation
        let upload = try await store.partsDriver.openParts(id, "n", key: key)
        let result = try await upload.commitAll([1, 2], matching)
        try expect(result.replaced, "it has replaced the other")
        let bytes = pattern(unit, seed: 1) + pattern(unit, seed: 2)
        try expect(try await store.driver.get("n") == bytes, "the bytes")
    }

    @Sendable private static func late(_ store: SessionStore) async throws {
        let driver = try store.partsDriver
        let unit = try await driver.unit
        let upload = try await driver.beginUpload("n")
        try await upload.send(1, pattern(unit, seed: 1))
        let part = try await upload.beginPart(1, PartPlan(size: UInt64(unit)))
        try await part.fill(pattern(unit / 2, seed: 2))
        try await upload.commitAll([1])
        do {
            try await part.fill(pattern(unit - unit / 2, seed: 3))
            _ = try await part.finish()
            _ = try await part.keep()
            throw ConformanceFailure(description: "a late part was kept")
        } catch is SessionError {
            part.abort()
        }
        try expect(try await driver.get("n") == pattern(unit, seed: 1), "the bytes")
    }

    @Sendable private static func partsCancelled(_ store: SessionStore) async throws {
        let begun = try await store.partsDriver.beginUpload("n")
        let (id, key) = (begun.id, begun.key)
        try await begun.send(1, pattern(100_000, seed: 1))
        try await begun.cancel()
        for round in 0..<2 {
            try await expectEnded {
                try await store.partsDriver.openParts(id, "n", key: key).send(2, pattern(10, seed: 1))
            }
            try await expectNotFound { try await store.partsDriver.openParts(id, "n", key: key).state() }
            try await expectNotFound { try await store.partsDriver.openParts(id, "n", key: key).cancel() }
            try await expectNotFound {
                try await store.partsDriver.openParts(id, "n", key: key).select([SelectedPart(1)])
            }
            try await expectError(.objectNotFound) { try await store.driver.stat("n") }
            if round == 0 { try await store.reopen() }
        }
        try expectEqual(try await store.driver.listSessions(after: nil, limit: 9).count, 0, "the sessions")
    }

    @Sendable private static func partsClosed(_ store: SessionStore) async throws {
        let begun = try await store.partsDriver.beginUpload("n")
        let (id, key) = (begun.id, begun.key)
        try await begun.send(1, pattern(50_000, seed: 1))
        try await begun.close([1, 2], until: .max)
        try await store.reopen()
        let again = try await store.partsDriver.openParts(id, "n", key: key)
        guard case .closed(let found) = try await again.state().end else {
            throw ConformanceFailure(description: "the state does not say that it ended")
        }
        try expectEqual(found, [1, 2], "the record")
        try await expectFinished { try await again.select([SelectedPart(1)]) }
        try await expectEnded { try await again.send(2, [1]) }
        try await expectError(.objectNotFound) { try await store.driver.stat("n") }
    }

    @Sendable private static func partsExpired(_ store: SessionStore) async throws {
        let driver = try store.partsDriver
        let begun = try await driver.beginUpload("n", lifetime: 3)
        let kept = try await driver.beginUpload("kept")
        for each in [begun, kept] { try await each.send(1, pattern(100_000, seed: 1)) }
        while seconds(fromNow: 0) < begun.id.expires + 1 {
            try await Task.sleep(nanoseconds: 100_000_000)
        }
        try await expectNotFound { try await begun.state() }
        try await expectNotFound { try await begun.select([SelectedPart(1)]) }
        try expectEqual(try await driver.removeExpiredSessions(limit: 9), 1, "removed")
        try await expectEnded { try await begun.send(2, [1]) }
        try expectEqual(try await driver.listSessions(after: nil, limit: 9).map(\.id), [kept.id], "left")
        try await kept.commitAll([1])
        try expectEqual(try await driver.get("kept"), pattern(100_000, seed: 1), "the object")
    }
}

extension SessionStore {
    var partsDriver: any PartsDriver {
        get throws {
            guard let driver = driver as? any PartsDriver else {
                throw ConformanceFailure(description: "the driver has no uploads in parts")
            }
            return driver
        }
    }
}

extension PartsDriver {
    /// Begins an upload in parts of an hour.
    public func beginUpload(
        _ name: String, _ attributes: ObjectAttributes = ObjectAttributes(), lifetime: Int64 = 3600,
        context: [UInt8] = []
    ) async throws -> any PartsUpload {
        try await beginParts(
            name, SessionPlan(UploadPlan(attributes), expires: seconds(fromNow: lifetime), context: context))
    }

    /// A size that every part may have.
    var unit: Int { get async throws { max(100_000, Int(try await capabilities().minimumPart)) } }
}

extension PartsUpload {
    /// Stores a part.
    @discardableResult
    public func send(_ number: Int, _ bytes: [UInt8]) async throws -> Part {
        let upload = try await beginPart(number, PartPlan(size: UInt64(bytes.count)))
        try await upload.fill(bytes)
        let facts = try await upload.finish()
        try expectEqual(facts.size, UInt64(bytes.count), "the size of part \(number)")
        try expectEqual(facts.md5, digest(.md5, bytes), "the md5 of part \(number)")
        try expectEqual(facts.crc32c, crc32c(bytes), "the crc32c of part \(number)")
        let part = try await upload.keep()
        try expectEqual(part.number, number, "the number")
        try expectEqual(part.size, UInt64(bytes.count), "the size")
        return part
    }

    /// Selects these parts, and commits the object.
    @discardableResult
    public func commitAll(_ numbers: [Int], _ preconditions: Preconditions = Preconditions()) async throws
        -> CommitResult
    {
        try await select(numbers.map { SelectedPart($0) })
        return try await commit(try await finish(), preconditions, resultUntil: .max)
    }
}

/// - Throws: ``ConformanceFailure`` unless `body` throws ``SessionError/finished`` or ``SessionError/notFound``: a
///   service that has ended the upload does not tell how.
private func expectEnded<Value>(
    line: Int = #line, file: StaticString = #fileID, _ body: () async throws -> Value
) async throws {
    try await expectSessionError("finished or notFound", line: line, file: file) {
        switch $0 {
        case .finished, .notFound: true
        default: false
        }
    } _: {
        try await body()
    }
}

private func crc32c(_ bytes: [UInt8]) -> UInt32 {
    var sum = CRC32C()
    sum.update(bytes.span.bytes)
    return sum.value
}
