import Buckets
import OpenSSL
import System
import Wire

extension BucketConformance {
    /// Sizes around all boundaries that a driver may have.
    static let sizes = [
        0, 1, 1023, 1024, 4095, 4096, 4097, 16_383, 16_384, 16_385, 65_535, 65_536, 65_537, 131_071,
        131_072, 131_073, 300_000, 5_000_001,
    ]

    static let objectCases: [Case] = [
        Case("a healthy store reports that it is healthy") { try await $0.checkHealth() },
        Case("a missing object is not found") { driver in
            try await expectError(.objectNotFound) { try await driver.stat("none") }
            try await expectError(.objectNotFound) { try await driver.open("none", ReadPlan()) }
            try await expectError(.objectNotFound) {
                try await driver.delete("none", Preconditions())
            }
            try await expectError(.objectNotFound) {
                try await driver.patch("none", AttributePatch(), Preconditions())
            }
        },
        Case("objects of every size are read back unchanged", everySize),
        Case("the received size and digests are reported", facts),
        Case("a range returns exactly its bytes", ranges),
        Case("an upload is not visible before its commit, and an abort keeps the old object") {
            try await uncommitted($0)
        },
        Case("an upload that is dropped leaves nothing") { driver in
            for size in [10, 500_000] {
                _ = try await driver.filledUpload("dropped", pattern(size, seed: 1))
                try await expectError(.objectNotFound) { try await driver.stat("dropped") }
            }
        },
        Case("a replaced object has a new generation and its own metadata", replacing),
        Case("generations increase, even after a deletion") { driver in
            let first = try await driver.put("n", [1]).metadata
            try await driver.delete("n", Preconditions())
            try await expectError(.objectNotFound) { try await driver.stat("n") }
            let second = try await driver.put("n", [1])
            try expect(second.metadata.generation > first.generation, "a higher generation")
            try expect(second.metadata.etag != first.etag, "another etag for the same bytes")
            try expectEqual(second.replaced, false, "replaced")
        },
        Case("a reader keeps its bytes when the object is replaced or deleted", keptBytes),
        Case(
            "a patch changes the given properties and the metageneration, not the bytes", patching),
        Case("no concurrent patch is lost") { driver in
            try await driver.put("n", [1])
            try await withThrowingTaskGroup(of: Void.self) { group in
                for index in 0..<20 {
                    group.addTask(executorPreference: EventLoop.current) {
                        var patch = AttributePatch()
                        patch.customMetadata = [BytewiseString("key\(index)"): "value"]
                        _ = try await driver.patch("n", patch, Preconditions())
                    }
                }
                try await group.waitForAll()
            }
            let metadata = try await driver.stat("n")
            try expectEqual(metadata.metageneration, 21, "metageneration")
            try expectEqual(metadata.attributes.customMetadata.count, 20, "pairs")
        },
        Case("attributes are read back unchanged", attributes),
        Case("every valid name works, and names are compared by their bytes", names),
        Case("concurrent uploads of one name never mix", mixing),
        Case("a closed store is unavailable") { driver in
            await driver.close()
            try await expectError(.unavailable) { try await driver.stat("n") }
            try await expectError(.unavailable) { try await driver.checkHealth() }
            try await expectError(.unavailable) {
                try await driver.delete("n", Preconditions())
            }
        },
    ]

    @Sendable private static func everySize(_ driver: any BucketDriver) async throws {
        for (index, size) in sizes.enumerated() {
            let bytes = pattern(size, seed: UInt64(index))
            for step in size > 1_000_000 ? [1 << 20] : [7_001, 24_576, 200_000] {
                let name = "sizes/\(size)/\(step)"
                let result = try await driver.put(name, bytes, step: step, declared: step < 200_000)
                try expectEqual(result.metadata.size, UInt64(size), "size")
                try expectEqual(result.replaced, false, "replaced")
                try expectEqual(try await driver.stat(name), result.metadata, "metadata")
                try expect(try await driver.get(name) == bytes, "\(size) bytes come back")
            }
        }
    }

    @Sendable private static func facts(_ driver: any BucketDriver) async throws {
        for size in [0, 9, 3000, 20_000, 70_000, 400_000] {
            let bytes = size == 9 ? [UInt8]("123456789".utf8) : pattern(size, seed: 5)
            let upload = try await driver.filledUpload("facts", bytes, digests: [.sha256, .sha512])
            let facts = try await upload.finish()
            var crc32c = CRC32C()
            crc32c.update(bytes.span.bytes)
            try expectEqual(facts.size, UInt64(size), "size")
            try expectEqual(facts.md5, digest(.md5, bytes), "md5")
            try expectEqual(facts.crc32c, crc32c.value, "crc32c")
            try expectEqual(facts.digests[.sha256], digest(.sha256, bytes), "sha-256")
            try expectEqual(facts.digests[.sha512], digest(.sha512, bytes), "sha-512")
            if size == 9 { try expectEqual(facts.crc32c, 0xe306_9283, "the check value") }
            let metadata = try await upload.commit(Preconditions()).metadata
            try expect(metadata.md5 == nil || metadata.md5 == facts.md5, "the stored md5")
            try expect(metadata.crc32c == nil || metadata.crc32c == facts.crc32c, "the stored crc")
        }
    }

    @Sendable private static func ranges(_ driver: any BucketDriver) async throws {
        for size in [100, 5000, 200_000] {
            let bytes = pattern(size, seed: 9)
            try await driver.put("ranged", bytes)
            for range in [
                0..<1, size - 1..<size, 17..<90, 0..<size, size / 2..<size, 40..<40, size..<size,
            ] {
                let found = try await driver.get(
                    "ranged", UInt64(range.lowerBound)..<UInt64(range.upperBound))
                try expect(found == Array(bytes[range]), "the bytes of \(range) of \(size)")
            }
        }
    }

    private static func uncommitted(_ driver: any BucketDriver) async throws {
        for size in [0, 100, 300_000] {
            let name = "uncommitted/\(size)"
            let upload = try await driver.filledUpload(name, pattern(size, seed: 2))
            try await expectError(.objectNotFound) { try await driver.stat(name) }
            _ = try await upload.finish()
            try await expectError(.objectNotFound) { try await driver.open(name, ReadPlan()) }
            let query = ListQuery(prefix: "", delimited: false, limit: 10)
            try expectEqual(try await driver.list(query, after: nil).items, [], "items")
            upload.abort()
            try await driver.put(name, [1, 2, 3])
            let unfinished = try await driver.filledUpload(name, pattern(size, seed: 3))
            unfinished.abort()
            try expectEqual(try await driver.get(name), [1, 2, 3], "the bytes")
            try await driver.delete(name, Preconditions())
        }
    }

    @Sendable private static func replacing(_ driver: any BucketDriver) async throws {
        for (old, new) in [
            (10, 20), (10, 100_000), (100_000, 10), (100_000, 200_000), (0, 5), (5, 0),
        ] {
            let name = "replaced/\(old)-\(new)"
            let before = ObjectAttributes(contentType: "a/b", customMetadata: ["old": "1"])
            let first = try await driver.put(name, pattern(old, seed: 1), before).metadata
            _ = try await driver.patch(name, AttributePatch(), Preconditions())
            let bytes = pattern(new, seed: 2)
            let second = try await driver.put(name, bytes, ObjectAttributes(contentType: "c/d"))
            try expectEqual(second.replaced, true, "replaced")
            try expect(second.metadata.generation > first.generation, "a higher generation")
            try expectEqual(second.metadata.metageneration, 1, "metageneration")
            try expectEqual(
                second.metadata.attributes, ObjectAttributes(contentType: "c/d"), "attributes")
            try expect(second.metadata.created >= first.created, "its own time")
            try expectEqual(try await driver.stat(name), second.metadata, "metadata")
            try expect(try await driver.get(name) == bytes, "the new bytes")
        }
    }

    @Sendable private static func keptBytes(_ driver: any BucketDriver) async throws {
        for size in [1000, 10_000, 2_000_000] {
            let old = pattern(size, seed: 1)
            try await driver.put("kept", old)
            let first = try await driver.open("kept", ReadPlan())
            try await driver.put("kept", pattern(size, seed: 2))
            let second = try await driver.open("kept", ReadPlan())
            try await driver.delete("kept", Preconditions())
            try await expectError(.objectNotFound) { try await driver.open("kept", ReadPlan()) }
            try expect(try await readAll(first, 0..<UInt64(size)) == old, "the first bytes")
            let whole = try await readAll(second, 0..<UInt64(size))
            try expect(whole == pattern(size, seed: 2), "the second bytes")
        }
    }

    @Sendable private static func patching(_ driver: any BucketDriver) async throws {
        let start = ObjectAttributes(
            contentType: "text/plain", cacheControl: "no-store", contentLanguage: "de",
            customMetadata: ["a": "1", "b": "2"])
        let before = try await driver.put("patched", [7], start).metadata
        var patch = AttributePatch()
        patch.contentType = .set("text/html")
        patch.cacheControl = .remove
        patch.customMetadata = ["a": nil, "c": "3"]
        let after = try await driver.patch("patched", patch, Preconditions())
        try expectEqual(
            after.attributes,
            ObjectAttributes(
                contentType: "text/html", contentLanguage: "de",
                customMetadata: ["b": "2", "c": "3"]), "attributes")
        try expectEqual(after.metageneration, 2, "metageneration")
        try expectEqual(after.generation, before.generation, "generation")
        try expectEqual(after.etag, before.etag, "etag")
        try expectEqual(after.created, before.created, "created")
        try expect(after.updated >= before.updated, "updated does not go back")
        try expectEqual(try await driver.stat("patched"), after, "metadata")
        try expectEqual(try await driver.get("patched"), [7], "bytes")
        var clearing = AttributePatch()
        clearing.clearCustomMetadata = true
        clearing.customMetadata = ["d": "4"]
        let cleared = try await driver.patch("patched", clearing, Preconditions())
        try expectEqual(cleared.attributes.customMetadata, ["d": "4"], "pairs")
        try expectEqual(cleared.metageneration, 3, "metageneration")
    }

    @Sendable private static func attributes(_ driver: any BucketDriver) async throws {
        let all = ObjectAttributes(
            contentType: "image/png", cacheControl: "public, max-age=5",
            contentDisposition: "attachment; filename=\"ü.png\"", contentEncoding: "gzip",
            contentLanguage: "en",
            customMetadata: [
                "key": "value", "Key": "other case", "": "", "empty": "", "ключ": "värde 🌲",
                "\u{e9}": "one code point", "e\u{301}": "two",
                "line": "a\r\nb\u{0}c", "long": String(repeating: "x", count: 7000),
            ])
        let put = try await driver.put("attributes", [1], all).metadata
        try expectEqual(put.attributes, all, "attributes")
        try expectEqual(try await driver.stat("attributes").attributes, all, "attributes")
        try await driver.put("bare", [1])
        let bare = try await driver.stat("bare").attributes
        try expect(
            [ObjectAttributes(), ObjectAttributes(contentType: "application/octet-stream")]
                .contains(bare), "no attributes but what a service makes of no type")
    }

    @Sendable private static func names(_ driver: any BucketDriver) async throws {
        let names = [
            "a", "a/b", "a/b/c", "A", "ä", "a\u{308}", "a b", "a+b", "a%2Fb", "a?b#c[d]*", "\\",
            "'\"",
            "日本語/forest 🌲.jpg", "-", "...", ".hidden", "~", "\u{10FFFF}", "\u{7f}",
            String(repeating: "x", count: 1024), String(repeating: "ü", count: 512),
            "d/" + String(repeating: "y/", count: 510) + "z",
        ]
        for (index, name) in names.enumerated() {
            try await driver.put(name, [UInt8(index)])
        }
        for (index, name) in names.enumerated() {
            try expectEqual(try await driver.get(name), [UInt8(index)], "the bytes of \(name)")
            try expectEqual(try await driver.stat(name).name.utf8.elementsEqual(name.utf8), true)
        }
        let sorted = names.sorted { $0.utf8.lexicographicallyPrecedes($1.utf8) }
        let listed = try await driver.listAll(prefix: "", delimited: false, limit: 1000).items
        try expect(
            listed.map { Array($0.utf8) } == sorted.map { Array($0.utf8) },
            "every name is listed, byte for byte")
    }

    @Sendable private static func mixing(_ driver: any BucketDriver) async throws {
        for size in [2000, 200_000] {
            try await withThrowingTaskGroup(of: Void.self) { group in
                for seed in 0..<12 {
                    group.addTask(executorPreference: EventLoop.current) {
                        let bytes = pattern(size + seed, seed: UInt64(seed))
                        try await driver.put("mixed", bytes)
                        let reader = try await driver.open("mixed", ReadPlan())
                        let found = try await readAll(reader, 0..<reader.metadata.size)
                        let writer = found.count - size
                        try expect(
                            found == pattern(found.count, seed: UInt64(writer)),
                            "bytes of one upload")
                        if let md5 = reader.metadata.md5 {
                            try expectEqual(digest(.md5, found), md5, "md5")
                        }
                    }
                }
                try await group.waitForAll()
            }
        }
    }
}
