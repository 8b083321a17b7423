import Buckets
import Synchronization
import System

extension BucketConformance {
    static let preconditionCases: [Case] = [
        Case("a create-only upload fails if the object exists", createOnly),
        Case("preconditions on a generation or an entity tag apply to uploads", uploads),
        Case("a failed precondition changes nothing", failing),
        Case(
            "an upload that stays open after a failed precondition can be committed",
            if: \.reopensSmallUploads, again),
        Case(
            "an upload of 100 KiB stays open after a failed precondition", if: \.reopensSmallUploads
        ) { driver in
            for size in [0, 500, 20_000, 100_000] {
                let upload = try await overtaken(driver, "small/\(size)", pattern(size, seed: 5))
                try expect(upload.isOpen, "an upload of \(size) bytes is open")
                upload.abort()
            }
        },
        Case("a large upload stays open after a failed precondition", if: \.reopensLargeUploads) {
            driver in
            for declared in [true, false] {
                let upload = try await overtaken(
                    driver, "large/\(declared)", pattern(1_000_000, seed: 6), declared: declared)
                try expect(upload.isOpen, "it is open")
                upload.abort()
            }
        },
        Case("preconditions apply to patches and deletions", changes),
        Case("a patch or deletion of a missing object is not found, whatever the precondition") {
            driver in
            for preconditions in [ifMatch(.any), ifMatch(.tags(["x"])), generation(7)] {
                try await expectError(.objectNotFound) {
                    try await driver.patch("none", AttributePatch(), preconditions)
                }
                try await expectError(.objectNotFound) {
                    try await driver.delete("none", preconditions)
                }
            }
        },
        Case("exactly one of many concurrent create-only uploads succeeds", if: \.atomicUploads) {
            driver in
            for size in [500, 100_000] {
                let winners = Lock(0)
                try await race(20) { index in
                    let upload = try await driver.filledUpload(
                        "race/\(size)", pattern(size, seed: UInt64(index)), ObjectAttributes(),
                        generation(0))
                    _ = try await upload.finish()
                    do {
                        _ = try await upload.commit(generation(0))
                        winners.withLock { $0 += 1 }
                    } catch let error as BucketError {
                        try expectEqual(error.code, .preconditionFailed, "the losers' error")
                    }
                }
                try expectEqual(winners.withLock { $0 }, 1, "winners")
            }
        },
        Case("no update of a concurrent read-modify-write is lost", if: \.atomicUploads) { driver in
            try await driver.put("counter", [0])
            try await race(8) { _ in
                for _ in 0..<5 {
                    var isDone = false
                    while !isDone {
                        let reader = try await driver.open("counter", ReadPlan())
                        let value = try await readAll(reader, 0..<1)[0]
                        let pinned = generation(reader.metadata.generation)
                        do {
                            try await driver.put("counter", [value + 1], ObjectAttributes(), pinned)
                            isDone = true
                        } catch let error as BucketError {
                            try expectEqual(error.code, .preconditionFailed, "the error")
                        }
                    }
                }
            }
            try expectEqual(try await driver.get("counter"), [40], "the counter")
        },
    ]

    static func generation(_ value: Int64) -> Preconditions {
        var preconditions = Preconditions()
        preconditions.generation = value
        return preconditions
    }

    static func metageneration(_ value: Int64) -> Preconditions {
        var preconditions = Preconditions()
        preconditions.metageneration = value
        return preconditions
    }

    static func ifMatch(_ tags: Preconditions.Tags) -> Preconditions {
        var preconditions = Preconditions()
        preconditions.ifMatch = tags
        return preconditions
    }

    static func ifNoneMatch(_ tags: Preconditions.Tags) -> Preconditions {
        var preconditions = Preconditions()
        preconditions.ifNoneMatch = tags
        return preconditions
    }

    static func race(_ count: Int, _ body: @escaping @Sendable (Int) async throws -> Void)
        async throws
    {
        try await withThrowingTaskGroup(of: Void.self) { group in
            for index in 0..<count {
                group.addTask(executorPreference: EventLoop.current) { try await body(index) }
            }
            try await group.waitForAll()
        }
    }

    @Sendable private static func createOnly(_ driver: any BucketDriver) async throws {
        for preconditions in [generation(0), ifNoneMatch(.any)] {
            try await driver.put("new", [1], ObjectAttributes(), preconditions)
            try await expectError(.preconditionFailed) {
                try await driver.put("new", [2], ObjectAttributes(), preconditions)
            }
            try expectEqual(try await driver.get("new"), [1], "the bytes")
            try await driver.delete("new", Preconditions())
        }
    }

    @Sendable private static func uploads(_ driver: any BucketDriver) async throws {
        let attributes = ObjectAttributes()
        try await expectError(.preconditionFailed) {
            try await driver.put("n", [1], attributes, ifMatch(.any))
        }
        var metadata = try await driver.put("n", [1], attributes, ifNoneMatch(.tags(["x"])))
            .metadata
        for wrong in [
            generation(metadata.generation + 1), metageneration(2), ifMatch(.tags(["wrong"])),
            ifNoneMatch(.tags(["x", metadata.etag])),
        ] {
            try await expectError(.preconditionFailed) {
                try await driver.put("n", [2], attributes, wrong)
            }
        }
        for index in 0..<4 {
            let right = [
                generation(metadata.generation), metageneration(1),
                ifMatch(.tags(["x", metadata.etag])), ifMatch(.any),
            ][index]
            metadata = try await driver.put("n", [UInt8(index)], attributes, right).metadata
        }
        var since = Preconditions()
        since.ifUnmodifiedSince = metadata.created / 1000 - 10
        try await expectError(.preconditionFailed) {
            try await driver.put("n", [9], attributes, since)
        }
        since.ifUnmodifiedSince = metadata.created / 1000 + 10
        try await driver.put("n", [9], attributes, since)
    }

    @Sendable private static func failing(_ driver: any BucketDriver) async throws {
        for (old, new) in [(10, 300_000), (300_000, 10), (10_000, 20_000)] {
            let name = "unchanged/\(old)"
            let attributes = ObjectAttributes(contentType: "a/b", customMetadata: ["k": "v"])
            let before = try await driver.put(name, pattern(old, seed: 3), attributes).metadata
            try await expectError(.preconditionFailed) {
                try await driver.put(
                    name, pattern(new, seed: 4), ObjectAttributes(), ifNoneMatch(.any))
            }
            var patch = AttributePatch()
            patch.clearCustomMetadata = true
            try await expectError(.preconditionFailed) {
                try await driver.patch(name, patch, metageneration(9))
            }
            try await expectError(.preconditionFailed) {
                try await driver.delete(name, ifMatch(.tags(["wrong"])))
            }
            try expectEqual(try await driver.stat(name), before, "metadata")
            try expect(try await driver.get(name) == pattern(old, seed: 3), "the bytes stay")
        }
    }

    /// Begins an upload whose commit fails, because another object was stored under the name.
    private static func overtaken(
        _ driver: any BucketDriver, _ name: String, _ bytes: [UInt8], declared: Bool = true
    ) async throws -> any Upload {
        let attributes = ObjectAttributes(contentType: "a/b")
        let upload = try await driver.filledUpload(
            name, bytes, attributes, generation(0), declared: declared)
        let facts = try await upload.finish()
        try expect(upload.isOpen, "an upload that is not committed is open")
        try expectEqual(facts.size, UInt64(bytes.count), "the size")
        try await driver.put(name, [1])
        try await expectError(.preconditionFailed) { try await upload.commit(generation(0)) }
        return upload
    }

    @Sendable private static func again(_ driver: any BucketDriver) async throws {
        for size in [0, 500, 20_000, 100_000, 1_000_000] {
            let (name, bytes) = ("again/\(size)", pattern(size, seed: UInt64(size)))
            let upload = try await overtaken(driver, name, bytes)
            try expectEqual(try await driver.get(name), [1], "the bytes of the other")
            guard upload.isOpen else { continue }
            // Test a second failure too.
            try await driver.put(name, [2])
            try await expectError(.preconditionFailed) { try await upload.commit(generation(0)) }
            try expect(upload.isOpen, "it is open after the second failure")
            let other = try await driver.stat(name)
            let result = try await upload.commit(generation(other.generation))
            try expect(!upload.isOpen, "it has ended")
            try expect(result.replaced, "it has replaced the other")
            try expectEqual(result.metadata.attributes.contentType, "a/b", "the type")
            try expect(try await driver.get(name) == bytes, "the bytes are the upload's")
            upload.abort()
            try expect(try await driver.get(name) == bytes, "abort after the end does nothing")
        }
    }

    @Sendable private static func changes(_ driver: any BucketDriver) async throws {
        let put = try await driver.put("n", [1]).metadata
        var patch = AttributePatch()
        patch.contentType = .set("x/y")
        let patched = try await driver.patch("n", patch, metageneration(1))
        try expectEqual(patched.metageneration, 2, "metageneration")
        try await expectError(.preconditionFailed) {
            try await driver.patch("n", patch, metageneration(1))
        }
        try await expectError(.preconditionFailed) {
            try await driver.delete("n", generation(put.generation - 1))
        }
        try await expectError(.preconditionFailed) {
            try await driver.delete("n", ifNoneMatch(.tags([put.etag])))
        }
        _ = try await driver.patch("n", patch, ifMatch(.tags([put.etag])))
        try await driver.delete("n", ifMatch(.tags([put.etag])))
        try await expectError(.objectNotFound) { try await driver.stat("n") }
    }
}
