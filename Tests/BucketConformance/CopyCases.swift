import Buckets
import Synchronization
import System

extension BucketConformance {
    static let copyCases: [Case] = [
        Case("a copy has the bytes of its source, and the given properties", if: \.copies) { driver in
            for size in [0, 500, 4096, 4097, 100_000] {
                let bytes = pattern(size, seed: 31)
                let source = try await driver.put("source/\(size)", bytes, described("text/plain")).metadata
                let made = try await driver.copied(source, to: "copies/\(size)", described("image/png"))
                try expectEqual(made.replaced, false, "a new object")
                let copy = try await driver.stat("copies/\(size)")
                try expectEqual(copy.name, "copies/\(size)", "the name")
                try expectEqual(copy.generation, made.metadata.generation, "the generation")
                try expect(copy.generation != source.generation, "a generation of its own")
                try expectEqual(copy.metageneration, 1, "the metageneration")
                try expectEqual(copy.size, source.size, "the size")
                try expectEqual(copy.crc32c, source.crc32c, "the crc32c")
                try expectEqual(copy.attributes.contentType, "image/png", "the type")
                try expectEqual(copy.attributes.customMetadata["made"], "image/png", "the custom metadata")
                try expectEqual(try await driver.get("copies/\(size)"), bytes, "the copy of \(size) bytes")
                let kept = try await driver.stat("source/\(size)")
                try expectEqual(kept.generation, source.generation, "the source's generation")
                try expectEqual(kept.attributes.contentType, "text/plain", "the source's type")
            }
        },
        Case("a copy and its source outlive each other", if: \.copies) { driver in
            for size in [500, 100_000] {
                let bytes = pattern(size, seed: 32)
                let source = try await driver.put("a/\(size)", bytes).metadata
                _ = try await driver.copied(source, to: "b/\(size)")
                let second = try await driver.copied(driver.stat("b/\(size)"), to: "c/\(size)").metadata
                try await driver.delete("a/\(size)", Preconditions())
                try expectEqual(try await driver.get("b/\(size)"), bytes, "after the source's deletion")
                try await driver.put("b/\(size)", pattern(size, seed: 33))
                try expectEqual(try await driver.get("c/\(size)"), bytes, "after another copy's replacement")
                let again = try await driver.copied(second, to: "b/\(size)")
                try expectEqual(again.replaced, true, "a replaced object")
                try await driver.delete("c/\(size)", Preconditions())
                try expectEqual(try await driver.get("b/\(size)"), bytes, "the last copy")
                try await driver.delete("b/\(size)", Preconditions())
                try expectEqual(
                    try await driver.list(ListQuery(prefix: "", delimited: false, limit: 10), after: nil).items
                        .filter { $0.hasSuffix("/\(size)") }, [], "what is left")
            }
        },
        Case("only the source that was looked up is copied", if: \.copies) { driver in
            let source = try await driver.put("source", pattern(5000, seed: 34)).metadata
            try await driver.put("source", pattern(5000, seed: 35))
            try await expectError(.preconditionFailed) { try await driver.copied(source, to: "copy") }
            try await driver.delete("source", Preconditions())
            do {
                _ = try await driver.copied(source, to: "copy")
                throw ConformanceFailure(description: "a missing source was copied")
            } catch let error as BucketError {
                try expect([.objectNotFound, .preconditionFailed].contains(error.code), "the error is \(error)")
            }
            try await expectError(.objectNotFound) { try await driver.stat("copy") }
        },
        Case("preconditions apply to the name of a copy", if: \.atomicCopies) { driver in
            let source = try await driver.put("source", pattern(100, seed: 36)).metadata
            _ = try await driver.copied(source, to: "copy", if: created())
            try await expectError(.preconditionFailed) {
                try await driver.copied(source, to: "copy", described("image/png"), if: created())
            }
            let old = try await driver.stat("copy")
            try expect(old.attributes.contentType != "image/png", "a failed copy changes nothing")
            var matching = Preconditions()
            matching.generation = old.generation
            _ = try await driver.copied(source, to: "copy", if: matching)
            try await expectError(.preconditionFailed) { try await driver.copied(source, to: "copy", if: matching) }
        },
        Case("exactly one of many concurrent create-only copies succeeds", if: \.atomicCopies) { driver in
            let source = try await driver.put("source", pattern(100_000, seed: 37)).metadata
            let winners = Lock(0)
            try await race(12) { _ in
                do {
                    _ = try await driver.copied(source, to: "copy", if: created())
                    winners.withLock { $0 += 1 }
                } catch let error as BucketError {
                    try expectEqual(error.code, .preconditionFailed, "the losers' error")
                }
            }
            try expectEqual(winners.withLock { $0 }, 1, "winners")
        },
        Case("a move leaves one object", if: \.atomicMoves) { driver in
            for size in [0, 500, 100_000] {
                let bytes = pattern(size, seed: 38)
                let source = try await driver.put("from/\(size)", bytes).metadata
                let moved = try await driver.copied(source, to: "to/\(size)", removesSource: true).metadata
                try await expectError(.objectNotFound) { try await driver.stat("from/\(size)") }
                try expectEqual(try await driver.get("to/\(size)"), bytes, "the moved object")
                try await driver.put("from/\(size)", pattern(size, seed: 39))
                try await expectError(.preconditionFailed) {
                    try await driver.copied(source, to: "other/\(size)", removesSource: true)
                }
                // Onto another object that has the same bytes.
                let copy = try await driver.copied(moved, to: "copy/\(size)").metadata
                _ = try await driver.copied(moved, to: "copy/\(size)", removesSource: true)
                try await expectError(.objectNotFound) { try await driver.stat("to/\(size)") }
                try await expectError(.preconditionFailed) { try await driver.copied(copy, to: "other/\(size)") }
                try expectEqual(try await driver.get("copy/\(size)"), bytes, "the object after both")
            }
        },
    ]
}

private func created() -> Preconditions {
    var conditions = Preconditions()
    conditions.generation = 0
    return conditions
}

private func described(_ type: String) -> ObjectAttributes {
    ObjectAttributes(contentType: type, customMetadata: ["made": type])
}

extension BucketDriver {
    /// Copies an object as it was looked up.
    func copied(
        _ source: ObjectMetadata, to name: String, _ attributes: ObjectAttributes = ObjectAttributes(),
        if preconditions: Preconditions = Preconditions(), removesSource: Bool = false
    ) async throws -> CommitResult {
        guard let driver = self as? any CopyingDriver else {
            throw ConformanceFailure(description: "the driver does not copy")
        }
        return try await driver.copy(
            to: name, CopyPlan(source, attributes, preconditions: preconditions, removesSource: removesSource))
    }
}
