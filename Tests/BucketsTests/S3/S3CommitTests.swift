import BucketConformance
import Buckets
import Testing

@Suite("S3 uploads whose precondition fails", .serialized, .timeLimit(.minutes(2)))
struct S3CommitTests {
    /// A failed precondition keeps the upload, in memory or in parts, for another commit.
    @Test(.enabled(if: S3Server.directory != nil), arguments: [100, 300_000])
    func aFailedPreconditionLeavesTheUpload(_ size: Int) async throws {
        let running = try RunningServer(.moto)
        try await onLoop {
            let bucket = try await running.makeBucket()
            let old = try await bucket.put("object", [1, 2, 3]).metadata
            let bytes = (0..<size).map { UInt8(truncatingIfNeeded: $0 &* 31 >> 3) }
            var isNew = Preconditions()
            isNew.ifNoneMatch = .any
            let upload = try await bucket.filledUpload(
                "object", bytes, ObjectAttributes(), isNew, declared: false)
            _ = try await upload.finish()
            await #expect(throws: BucketError.self) { try await upload.commit(isNew) }
            #expect(try await bucket.stat("object").etag == old.etag)
            var same = Preconditions()
            same.ifMatch = .tags([old.etag])
            let result = try await upload.commit(same)
            #expect(result.replaced && result.metadata.size == UInt64(size))
            let reader = try await bucket.open("object", ReadPlan())
            #expect(try await readAll(reader, 0..<UInt64(size)) == bytes)
            await bucket.close()
        }
    }
}
