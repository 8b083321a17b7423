import Buckets
import OpenSSL
import System
import Wire

extension BucketConformance {
    /// What clients of S3 see of a store.
    static let s3Cases: [Case] = [
        Case("every object has an entity tag of S3, which lists have too", tags),
        Case("what is stored for clients of S3 survives a patch, and no overwrite", s3Properties),
        Case("a copy keeps the checksum of its source for clients of S3, and gets its own Expires", if: \.copies) {
            try await copiedProperties($0)
        },
        Case("a checksum that comes after the bytes is stored, or known not to be", lateChecksum),
        Case("preconditions can compare the entity tags of S3", s3Preconditions),
        Case("all digests of an upload are computed", digests),
        Case("folder markers are objects, and items only of lists that ask for them", markers),
        Case("lists with folder markers contain every entry once, in pages of any size", markerPages),
    ]

    private static let checksum = S3Properties.Checksum(.sha256, digest(.sha256, [1]))
    private static let expires = "Thu, 01 Dec 2094 16:00:00 GMT; ä=%"

    private static func listed(_ driver: any BucketDriver, _ name: String) async throws -> ListedProperties {
        var query = ListQuery(prefix: name, delimited: false, limit: 10, withProperties: true)
        query.withS3Tags = true
        let page = try await driver.list(query, after: nil)
        guard let found = page.properties[BytewiseString(name)] else {
            throw ConformanceFailure(description: "\(name) has no properties in \(page)")
        }
        return found
    }

    @Sendable private static func tags(_ driver: any BucketDriver) async throws {
        for size in [0, 10, 5000, 300_000] {
            let bytes = pattern(size, seed: 41)
            let name = "tags/\(size)"
            let made = try await driver.put(name, bytes).metadata
            let object = try await driver.stat(name)
            try expectEqual(made.s3Tag, object.s3Tag, "the tag of \(size) bytes")
            try expectEqual(try await listed(driver, name).s3Tag, object.s3Tag, "the listed tag of \(size) bytes")
            if object.etag == String(object.generation) {
                try expectEqual(object.s3Tag, Hexadecimal.encode(digest(.md5, bytes)), "the md5 of \(size) bytes")
            } else {
                try expectEqual(object.s3Tag, object.etag, "the service's own tag")
            }
            if object.partCount == nil { try expectEqual(object.partRange(1), 0..<UInt64(size), "the only part") }
            try expectEqual(object.partRange(2), nil, "another part")
        }
        // A stored tag, which an S3 store never has.
        var attributes = ObjectAttributes()
        attributes.system.s3 = S3Properties(tag: "0123456789abcdef0123456789abcdef-2", parts: PartSizes([60, 40]))
        let object = try await driver.stat("tags/10")
        guard object.etag == String(object.generation) else { return }
        for (name, tokens) in [("tagged", []), ("tagged too", ["t"])] {
            attributes.system.downloadTokens = tokens
            try await driver.put(name, pattern(100, seed: 46), attributes)
            let tagged = try await driver.stat(name)
            try expectEqual(tagged.s3Tag, attributes.system.s3?.tag, "the stored tag")
            try expectEqual(try await listed(driver, name).s3Tag, tagged.s3Tag, "the listed tag")
            try expectEqual(tagged.partRange(2), 60..<100, "the second part")
        }
    }

    @Sendable private static func s3Properties(_ driver: any BucketDriver) async throws {
        let stored = S3Properties(checksum: checksum, expires: expires)
        var attributes = ObjectAttributes(contentType: "a/b", customMetadata: ["k": "v"])
        attributes.system.s3 = stored
        for size in [1, 300_000] {
            try await driver.put("n", pattern(size, seed: 1), attributes)
            try expectEqual(try await driver.stat("n").attributes.system.s3, stored, "what is stored")
            var patch = AttributePatch()
            patch.clearCustomMetadata = true
            patch.contentType = .set("c/d")
            let patched = try await driver.patch("n", patch, Preconditions())
            try expectEqual(patched.attributes.system.s3, stored, "the patch's result")
            try expectEqual(try await driver.stat("n").attributes.system.s3, stored, "what is stored after a patch")
            try await driver.put("n", [2])
            try expectEqual(try await driver.stat("n").attributes.system.s3, nil, "what an overwrite leaves")
        }
    }

    @Sendable private static func lateChecksum(_ driver: any BucketDriver) async throws {
        for (size, isDeclared) in [(0, true), (100, true), (300_000, true), (5_000_001, false)] {
            var attributes = ObjectAttributes(contentType: "a/b")
            attributes.system.s3 = S3Properties(expires: "later")
            let upload = try await driver.filledUpload(
                "n", pattern(size, seed: 45), attributes, declared: isDeclared, digests: [.sha256])
            guard let value = try await upload.finish().checksum(.sha256) else {
                throw ConformanceFailure(description: "there is no checksum")
            }
            let checksum = S3Properties.Checksum(.sha256, value)
            let isKept = upload.keep(checksum)
            try expect(isKept || size > 100, "a small object's checksum is stored")
            let result = try await upload.commit(Preconditions()).metadata
            let wanted = S3Properties(checksum: isKept ? checksum : nil, expires: "later")
            try expectEqual(result.attributes.system.s3, wanted, "the result of \(size) bytes")
            let found = try await driver.stat("n").attributes
            try expectEqual(found.system.s3, wanted, "what is stored of \(size) bytes")
            try expectEqual(found.contentType, "a/b", "the type")
        }
    }

    @Sendable private static func copiedProperties(_ driver: any BucketDriver) async throws {
        var attributes = ObjectAttributes()
        attributes.system.s3 = S3Properties(checksum: checksum, expires: expires)
        for (name, size) in [("small", 1), ("large", 300_000)] {
            let source = try await driver.put(name, pattern(size, seed: 42), attributes).metadata
            let plain = try await driver.copied(source, to: "\(name)/plain").metadata
            let found = try await driver.stat("\(name)/plain")
            try expectEqual(found.attributes.system.s3, S3Properties(checksum: checksum), "the copy's properties")
            try expectEqual(plain.attributes.system.s3, found.attributes.system.s3, "the copy's result")
            try expectEqual(plain.s3Tag, found.s3Tag, "the copy's tag")
            var later = ObjectAttributes()
            later.system.s3 = S3Properties(expires: "later")
            _ = try await driver.copied(source, to: "\(name)/later", later)
            try expectEqual(
                try await driver.stat("\(name)/later").attributes.system.s3,
                S3Properties(checksum: checksum, expires: "later"), "the properties of a copy with its own Expires")
        }
    }

    private static func s3(_ change: (inout Preconditions) -> Void) -> Preconditions {
        var preconditions = Preconditions()
        preconditions.comparesS3Tags = true
        change(&preconditions)
        return preconditions
    }

    @Sendable private static func s3Preconditions(_ driver: any BucketDriver) async throws {
        var last = try await driver.put("n", [1]).metadata
        for wrong in [
            s3 { $0.ifMatch = .tags(["wrong"]) }, s3 { $0.ifNoneMatch = .tags(["x", last.s3Tag]) },
            s3 { $0.ifMatch = .tags([String(last.generation)]) },
        ] {
            for size in [1, 300_000] {
                try await expectError(.preconditionFailed) {
                    try await driver.put("n", pattern(size, seed: 2), ObjectAttributes(), wrong)
                }
            }
            try await expectError(.preconditionFailed) { try await driver.patch("n", AttributePatch(), wrong) }
            try await expectError(.preconditionFailed) { try await driver.delete("n", wrong) }
        }
        try expectEqual(try await driver.get("n"), [1], "the bytes")
        for (index, size) in [2, 300_000, 3].enumerated() {
            let right = [
                s3 { $0.ifMatch = .tags(["x", last.s3Tag]) }, s3 { $0.ifMatch = .tags([last.s3Tag]) },
                s3 { $0.ifNoneMatch = .tags(["x"]) },
            ][index]
            last = try await driver.put("n", pattern(size, seed: 3), ObjectAttributes(), right).metadata
        }
        var patch = AttributePatch()
        patch.contentType = .set("x/y")
        _ = try await driver.patch("n", patch, s3 { $0.ifMatch = .tags([last.s3Tag]) })
        let reader = try await driver.open("n", ReadPlan(conditions: s3 { $0.ifNoneMatch = .tags(["x"]) }))
        try expectEqual(try await readAll(reader, 0..<3), pattern(3, seed: 3), "the bytes")
        let tag = try await driver.stat("n").s3Tag
        try await driver.delete("n", s3 { $0.ifMatch = .tags([tag]) })
        try await expectError(.objectNotFound) { try await driver.stat("n") }
        try await expectError(.preconditionFailed) {
            try await driver.put("n", [1], ObjectAttributes(), s3 { $0.ifMatch = .tags([tag]) })
        }
    }

    @Sendable private static func digests(_ driver: any BucketDriver) async throws {
        for size in [0, 10, 20_000, 300_000] {
            for isDeclared in [true, false] {
                let bytes = pattern(size, seed: 43)
                let upload = try await driver.filledUpload(
                    "n", bytes, declared: isDeclared, digests: Set(DigestAlgorithm.allCases))
                let facts = try await upload.finish()
                for algorithm in DigestAlgorithm.allCases {
                    try expectEqual(
                        facts.digests[algorithm], reference(algorithm, bytes), "\(algorithm) of \(size) bytes")
                }
                upload.abort()
            }
        }
    }

    static func reference(_ algorithm: DigestAlgorithm, _ bytes: [UInt8]) -> [UInt8] {
        func bigEndian<Number: FixedWidthInteger>(_ number: Number) -> [UInt8] {
            withUnsafeBytes(of: number.bigEndian) { Array($0) }
        }
        return switch algorithm {
        case .sha256: digest(.sha256, bytes)
        case .sha512: digest(.sha512, bytes)
        case .sha1: digest(.sha1, bytes)
        case .crc32: bigEndian(CRC32.valueByTable(bytes.span.bytes))
        case .crc64nvme: bigEndian(CRC64NVME.valueByTable(bytes.span.bytes))
        }
    }

    private static func query(_ prefix: String, _ delimited: Bool, _ limit: Int, markers: Bool = true) -> ListQuery {
        var query = ListQuery(prefix: prefix, delimited: delimited, limit: limit)
        query.markers = markers
        return query
    }

    private static let names = ["a/", "a/1", "a/b/", "a/b/2", "a0", "c/d/", "e", "f/", "f-", "g/h/i/", "ä/", "z"]

    @Sendable private static func markers(_ driver: any BucketDriver) async throws {
        let marker = try await driver.put("dir/", [], ObjectAttributes(contentType: "application/x-directory"))
        try expectEqual(marker.metadata.name, "dir/", "the name")
        try await driver.put("dir/x", [1])
        try expectEqual(try await driver.stat("dir/").attributes.contentType, "application/x-directory", "the type")
        try await expectError(.objectNotFound) { try await driver.stat("dir") }
        try await driver.put("bytes/", pattern(5000, seed: 44))
        try expectEqual(try await driver.get("bytes/"), pattern(5000, seed: 44), "the bytes")
        var patch = AttributePatch()
        patch.contentType = .set("a/b")
        _ = try await driver.patch("bytes/", patch, Preconditions())
        try expectEqual(try await driver.stat("bytes/").attributes.contentType, "a/b", "the patched type")
        if try await driver.capabilities().copies {
            _ = try await driver.copied(try await driver.stat("bytes/"), to: "copy/")
            try expectEqual(try await driver.get("copy/"), pattern(5000, seed: 44), "the copy's bytes")
            try await driver.delete("copy/", Preconditions())
        }
        let wanted: [(String, Bool, [String], [String])] = [
            ("", true, [], ["bytes/", "dir/"]), ("", false, ["bytes/", "dir/", "dir/x"], []),
            ("dir/", true, ["dir/", "dir/x"], []), ("dir/", false, ["dir/", "dir/x"], []),
            ("dir", true, [], ["dir/"]), ("bytes/", true, ["bytes/"], []), ("dir/x", true, ["dir/x"], []),
        ]
        for (prefix, delimited, items, prefixes) in wanted {
            let page = try await driver.list(query(prefix, delimited, 1000), after: nil)
            try expectEqual(page.items, items, "items of '\(prefix)', \(delimited)")
            try expectEqual(page.prefixes, prefixes, "prefixes of '\(prefix)', \(delimited)")
            let without = try await driver.list(query(prefix, delimited, 1000, markers: false), after: nil)
            try expectEqual(without.items, items.filter { !$0.hasSuffix("/") }, "items of '\(prefix)' without markers")
        }
        try await driver.delete("dir/", Preconditions())
        try await expectError(.objectNotFound) { try await driver.stat("dir/") }
        try expectEqual(try await driver.get("dir/x"), [1], "what is below the marker")
    }

    @Sendable private static func markerPages(_ driver: any BucketDriver) async throws {
        for name in names { try await driver.put(name, []) }
        let precedes = { (first: String, second: String) in first.utf8.lexicographicallyPrecedes(second.utf8) }
        for prefix in ["", "a", "a/", "a/b/", "f", "f/", "g/h/", "g/h/i/", "ä/"] {
            for delimited in [true, false] {
                var (items, prefixes) = ([String](), Set<BytewiseString>())
                for name in names where name.hasPrefix(prefix) {
                    let rest = name.utf8.dropFirst(prefix.utf8.count)
                    if delimited, let slash = rest.firstIndex(of: UInt8(ascii: "/")) {
                        prefixes.insert(BytewiseString(String(name[...slash])))
                    } else {
                        items.append(name)
                    }
                }
                items.sort(by: precedes)
                for limit in [1, 2, 3, 5, 100] {
                    var found = ListPage()
                    var after: String?
                    repeat {
                        let page = try await driver.list(query(prefix, delimited, limit), after: after)
                        try expect(page.items.count + page.prefixes.count <= limit, "a page is within its limit")
                        found.items += page.items
                        found.prefixes += page.prefixes
                        try expect(page.end == nil || page.end != after, "the list of '\(prefix)' advances")
                        after = page.end
                    } while after != nil
                    let what = "'\(prefix)', \(delimited), in pages of \(limit)"
                    try expectEqual(found.items, items, "items of \(what)")
                    try expectEqual(found.prefixes, prefixes.map(\.text).sorted(by: precedes), "prefixes of \(what)")
                }
            }
        }
    }
}
