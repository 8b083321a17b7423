import BucketConformance
import HTTPClient
import System
import Testing
import Wire
import XML

@testable import Buckets

@Suite("S3 objects beyond what one request holds", .serialized, .timeLimit(.minutes(5)))
struct S3CopyTests {
    /// A patch of an object that is too large for one copy copies it in parts, with all its properties.
    @Test(
        .enabled(if: S3Server.directory != nil), arguments: [S3Server.seaweedfs, .moto])
    func aPatchCopiesInParts(_ server: S3Server) async throws {
        let running = try RunningServer(server)
        try await onLoop {
            let bucket = try await running.makeBucket {
                // The minimum that the services accept.
                $0.minimumPart = 5 << 20
                $0.singleLimit = 5 << 20
            }
            let bytes = (0..<(11 << 20) + 7).map { UInt8(truncatingIfNeeded: $0 &* 31 >> 7) }
            let attributes = ObjectAttributes(
                contentType: "text/plain", customMetadata: ["kept": "yes", "Upper": "ü"])
            let before = try await bucket.put("large", bytes, attributes).metadata
            var patch = AttributePatch()
            patch.cacheControl = .set("no-store")
            patch.customMetadata = ["new": "1"]
            let after = try await bucket.patch("large", patch, Preconditions())
            let found = try await bucket.stat("large")
            #expect(found == after)
            #expect(found.generation == before.generation && found.metageneration == 2)
            #expect(
                found.size == UInt64(bytes.count) && found.attributes.cacheControl == "no-store")
            #expect(found.attributes.contentType == "text/plain")
            #expect(
                found.attributes.customMetadata == ["kept": "yes", "Upper": "ü", "new": "1"])
            #expect(found.etag.hasSuffix("-3"), "it was not copied in three parts: \(found.etag)")
            let reader = try await bucket.open("large", ReadPlan())
            #expect(try await readAll(reader, 0..<found.size) == bytes)
            let uploads = try await bucket.call(
                ClientRequest("GET", bucket.target(nil, "uploads=")))
            #expect(XMLReader.first("UploadId", in: uploads.body) == nil)
            await bucket.close()
        }
    }

    /// An object that is too large for one copy is copied in parts, to another name.
    @Test(.enabled(if: S3Server.directory != nil), arguments: [S3Server.seaweedfs, .moto])
    func aLargeObjectIsCopiedInParts(_ server: S3Server) async throws {
        let running = try RunningServer(server)
        try await onLoop {
            let bucket = try await running.makeBucket {
                $0.minimumPart = 5 << 20
                $0.singleLimit = 5 << 20
            }
            let bytes = (0..<(11 << 20) + 7).map { UInt8(truncatingIfNeeded: $0 &* 31 >> 7) }
            let source = try await bucket.put("large", bytes, ObjectAttributes(contentType: "text/plain")).metadata
            var conditions = Preconditions()
            conditions.generation = 0
            let plan = CopyPlan(source, ObjectAttributes(contentType: "image/png"), preconditions: conditions)
            let made = try await bucket.copy(to: "copy", plan)
            let found = try await bucket.stat("copy")
            #expect(found == made.metadata && !made.replaced)
            #expect(found.etag.hasSuffix("-3"), "it was not copied in three parts: \(found.etag)")
            #expect(found.attributes.contentType == "image/png" && found.crc32c == source.crc32c)
            #expect(try await bucket.get("copy") == bytes)
            await #expect(throws: BucketError.self) { try await bucket.copy(to: "copy", plan) }
            await bucket.cleaning.finish()
            let uploads = try await bucket.call(ClientRequest("GET", bucket.target(nil, "uploads=")))
            #expect(XMLReader.first("UploadId", in: uploads.body) == nil)
            await bucket.close()
        }
    }

    /// The upload that was begun for a failed copy is aborted.
    @Test(.enabled(if: S3Server.directory != nil))
    func aCopyOfWhatIsGoneLeavesNothing() async throws {
        let running = try RunningServer(.moto)
        try await onLoop {
            let bucket = try await running.makeBucket()
            let parts = S3Multipart(bucket, "gone", size: 10 << 20)
            var source = HeaderFields()
            source.append("x-amz-copy-source", "/\(bucket.settings.bucket)/gone")
            await #expect(throws: BucketError.self) {
                try await parts.copy(source, 0..<(5 << 20), HeaderFields())
            }
            parts.abort()
            await bucket.cleaning.finish()
            let uploads = try await bucket.call(
                ClientRequest("GET", bucket.target(nil, "uploads=")))
            #expect(uploads.status == 200 && XMLReader.first("UploadId", in: uploads.body) == nil)
            await bucket.close()
        }
    }
}
