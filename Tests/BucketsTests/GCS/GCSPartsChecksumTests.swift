import BucketConformance
import OpenSSL
import System
import TestSupport
import Testing
import Wire

@testable import Buckets

@Suite("Checksums of uploads in parts in Cloud Storage", .timeLimit(.minutes(2)))
struct GCSPartsChecksumTests {
    private static let parts = [pattern(5 << 20, seed: 1), pattern(1000, seed: 2)]
    private static let selection = [SelectedPart(1), SelectedPart(2)]

    private static func crc32c(_ bytes: [UInt8]) -> UInt32 {
        var crc = CRC32C()
        crc.update(bytes.span.bytes)
        return crc.value
    }

    private static var whole: UInt32 { crc32c(parts.flatMap { $0 }) }

    private func begin(_ bucket: GCSBucket) async throws -> any PartsUpload {
        let upload = try await bucket.beginUpload("n")
        for (index, bytes) in Self.parts.enumerated() {
            let part = try await upload.beginPart(
                index + 1, PartPlan(size: UInt64(bytes.count), checksum: .sha256))
            try await part.fill(bytes)
            _ = try await part.finish()
            _ = try await part.keep()
        }
        return upload
    }

    @Test("The process that has sent a part lists its checksums, until the part is another")
    func computed() async throws {
        let model = GCSModel()
        try await onLoop {
            let (bucket, other) = (model.bucket(), model.bucket())
            let upload = try await begin(bucket)
            func checksums(_ bucket: GCSBucket) async throws -> [PartChecksum?] {
                let upload = try await bucket.openParts(upload.id, "n", key: upload.key)
                return try await upload.parts(after: 0, limit: 10).map(\.checksum)
            }
            let sums = Self.parts.map { PartChecksum(.sha256, digest(.sha256, $0)) }
            #expect(try await checksums(bucket) == sums)
            #expect(try await upload.parts(after: 1, limit: 1).first?.crc32c == Self.crc32c(Self.parts[1]))
            // Another process knows only the tags.
            #expect(try await checksums(other) == [nil, nil])
            _ = try await other.openParts(upload.id, "n", key: upload.key).send(2, [1])
            #expect(try await checksums(bucket) == [sums[0], nil])
            try await upload.commitAll([1, 2])
            await bucket.close()
            await other.close()
        }
    }

    @Test("The checksums of the least recently used upload are forgotten first")
    func limit() {
        let checksums = ComputedChecksums(limit: 3)
        let ids = (0..<3).map { UploadSessionID(expires: Int64($0)) }
        let md5 = digest(.md5, [])
        func part(_ number: Int, etag: String = Hexadecimal.encode(digest(.md5, []))) -> Part {
            Part(number: number, size: 0, etag: etag, crc32c: nil, updated: 0)
        }
        var known = part(1)
        known.crc32c = 7
        checksums.keep(known, of: ids[0], md5: md5)
        checksums.keep(known, of: ids[1], md5: md5)
        // A tag that is no md5 may be that of other bytes, too.
        var odd = known
        odd.etag = "x"
        checksums.keep(odd, of: ids[1], md5: md5)
        #expect(checksums.completed([part(1), part(2)], of: ids[1]).map(\.crc32c) == [7, nil])
        #expect(checksums.completed([part(1, etag: "x")], of: ids[1]).map(\.crc32c) == [nil])
        known.number = 2
        checksums.keep(known, of: ids[0], md5: md5)
        checksums.keep(known, of: ids[2], md5: md5)
        let left = ids.map { checksums.completed([part(1), part(2)], of: $0).map(\.crc32c) }
        #expect(left == [[7, 7], [nil, nil], [nil, 7]])
        checksums.forget(ids[0])
        #expect(checksums.completed([part(1)], of: ids[0]).map(\.crc32c) == [nil])
    }

    @Test("The object has the service's crc32c if its creator wants it")
    func stores() async throws {
        let model = GCSModel()
        let value = Self.whole.bigEndianBytes
        try await onLoop {
            for expected in [nil, value] {
                let (bucket, other) = (model.bucket(), model.bucket())
                let upload = try await begin(bucket)
                let another = try await other.openParts(upload.id, "n", key: upload.key)
                _ = model.requests()
                try await another.select(Self.selection, checksum: .storesCRC32C(expected: expected))
                let facts = try await another.finish()
                let result = try await another.commit(facts, Preconditions(), resultUntil: .max)
                #expect(model.requests()["patch"] == 1 && model.requests()["stat"] == nil)
                let repeated = try await upload.commit(facts, Preconditions(), resultUntil: .max)
                let object = try await bucket.stat("n")
                for found in [result.metadata, repeated.metadata, object] {
                    #expect(found.attributes.system.s3?.checksum == S3Properties.Checksum(.crc32c, value))
                }
                // A copy keeps it.
                let copy = try await bucket.copy(to: "copy", CopyPlan(object, object.attributes)).metadata
                #expect(copy.attributes.system.s3 == object.attributes.system.s3)
                await bucket.close()
                await other.close()
            }
        }
    }

    @Test("An object whose crc32c is not the expected one does not become visible", arguments: [false, true])
    func unexpected(isComputed: Bool) async throws {
        let model = GCSModel()
        let wrong = (~Self.whole).bigEndianBytes
        try await onLoop {
            let bucket = model.bucket()
            let upload = try await begin(bucket)
            let checksum = S3Properties.Checksum(.crc32c, wrong)
            try await upload.select(
                Self.selection, checksum: isComputed ? .computed(checksum) : .storesCRC32C(expected: wrong))
            let facts = try await upload.finish()
            let error = await #expect(throws: SessionError.self) {
                _ = try await upload.commit(facts, Preconditions(), resultUntil: .max)
            }
            let isRight = if case .otherBytes? = error { true } else { false }
            #expect(isRight, "\(error as Any)")
            await #expect(throws: SessionError.self) { try await upload.select(Self.selection) }
            await bucket.close()
            #expect(model.commits == 0 && model.bytes("n") == nil)
            try await model.sweep()
        }
        #expect(model.leftovers == [])
    }
}
