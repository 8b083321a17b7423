import Buckets
import System
import Wire

extension BucketConformance {
    static let systemMetadataCases: [Case] = [
        Case("system metadata is kept apart from custom metadata", storing),
        Case("a replaced object loses its system metadata", overwriting),
        Case("a patch of custom metadata keeps system metadata", keeping),
        Case("a patch of download tokens changes nothing else", changingTokens),
        Case("download tokens can be removed") { driver in
            try await driver.put("n", [1], attributes)
            var patch = AttributePatch()
            patch.downloadTokens = []
            let after = try await driver.patch("n", patch, Preconditions()).attributes
            try expectEqual(after, without(tokens: attributes), "attributes")
            try expectEqual(try await driver.stat("n").attributes, after, "attributes")
        },
    ]

    private static let tokens = (0..<16).map { "7f1b58b1-3ed1-4d76-be86-e0437f9cf8\($0 + 10)" }
    private static let attributes = ObjectAttributes(
        contentType: "text/plain", customMetadata: ["k": "v", "tokens": "1"],
        system: SystemMetadata(
            downloadTokens: tokens, uploadSession: UploadSessionID(expires: 2_000_000_000)))

    private static func without(tokens attributes: ObjectAttributes) -> ObjectAttributes {
        var attributes = attributes
        attributes.system.downloadTokens = []
        return attributes
    }

    @Sendable private static func storing(_ driver: any BucketDriver) async throws {
        for (size, isDeclared) in [(0, true), (10, true), (300_000, true), (5_000_001, false)] {
            let name = "n\(size)"
            let put = try await driver.put(
                name, pattern(size, seed: 1), attributes, declared: isDeclared)
            try expectEqual(put.metadata.attributes, attributes, "attributes")
            try expectEqual(try await driver.stat(name).attributes, attributes, "attributes")
            let reader = try await driver.open(name, ReadPlan())
            let found = reader.metadata.attributes
            reader.close()
            try expectEqual(found, attributes, "attributes")
        }
    }

    @Sendable private static func overwriting(_ driver: any BucketDriver) async throws {
        for size in [10, 300_000] {
            try await driver.put("n", [1], attributes)
            let put = try await driver.put(
                "n", pattern(size, seed: 1), ObjectAttributes(contentType: "a/b"))
            try expectEqual(put.metadata.attributes.system, SystemMetadata(), "system metadata")
            try expectEqual(
                try await driver.stat("n").attributes, ObjectAttributes(contentType: "a/b"),
                "attributes")
        }
    }

    @Sendable private static func keeping(_ driver: any BucketDriver) async throws {
        try await driver.put("n", [1], attributes)
        var adding = AttributePatch()
        adding.contentType = .set("a/b")
        adding.customMetadata = ["new": "1"]
        var clearing = AttributePatch()
        clearing.clearCustomMetadata = true
        for patch in [adding, clearing] {
            let after = try await driver.patch("n", patch, Preconditions()).attributes
            try expectEqual(after.system, attributes.system, "system metadata")
            let found = try await driver.stat("n").attributes
            try expectEqual(found.system, attributes.system, "system metadata")
        }
    }

    @Sendable private static func changingTokens(_ driver: any BucketDriver) async throws {
        let before = try await driver.put("n", [1], without(tokens: attributes)).metadata
        for tokens in [["a"], ["a", "b"], tokens] {
            var patch = AttributePatch()
            patch.downloadTokens = tokens
            let after = try await driver.patch("n", patch, Preconditions())
            var wanted = attributes
            wanted.system.downloadTokens = tokens
            try expectEqual(after.attributes, wanted, "attributes")
            try expectEqual(after.generation, before.generation, "generation")
            try expectEqual(after.etag, before.etag, "etag")
            try expectEqual(try await driver.stat("n").attributes, wanted, "attributes")
        }
        try expectEqual(try await driver.get("n"), [1], "bytes")
    }
}
