import BucketConformance
import Testing
import Wire

@testable import Buckets

@Suite("What clients of S3 see of an object")
struct S3PropertiesTests {
    private static let md5 = digest(.md5, [1])

    private static let all = S3Properties(
        tag: "0123456789abcdef0123456789abcdef-7", parts: PartSizes([5, 5, 5, 9, 1, 1, 0]),
        checksum: S3Properties.Checksum(.sha256, digest(.sha256, []), isComposite: true),
        expires: "Thu, 01 Dec 2094 16:00:00 GMT; =%,ä*:")

    @Test("The text is parsed again, fits into a field, and has at most 1 KiB")
    func text() {
        for each in [
            Self.all, S3Properties(tag: "x"), S3Properties(parts: PartSizes([1])), S3Properties(expires: ""),
            S3Properties(checksum: S3Properties.Checksum(.crc32, [1, 2, 3, 4])),
        ] {
            #expect(S3Properties(text: each.text) == each)
            #expect(S3Fields.isExact(each.text))
        }
        var unknown = S3Properties()
        unknown.hasStoresCRC32C = true
        #expect(unknown.text == "sum=store" && S3Properties(text: unknown.text) == unknown && !unknown.isEmpty)
        unknown.complete(crc32c: nil)
        #expect(unknown.checksum == nil)
        unknown.complete(crc32c: 0x0102_0304)
        #expect(unknown == S3Properties(checksum: S3Properties.Checksum(.crc32c, [1, 2, 3, 4])))
        let sizes = (0..<PartSizes.maximumRuns).map { UInt64(Int64.max) / 16 - UInt64($0) }
        var largest = Self.all
        largest.parts = PartSizes(sizes)
        largest.expires = String(repeating: "\u{7f}", count: S3Properties.maximumExpires)
        #expect(largest.parts != nil && largest.text.utf8.count <= 1024)
        largest.expires = String(repeating: "a", count: S3Properties.maximumExpires + 1)
        #expect(largest.expires == nil)
        #expect(PartSizes(sizes + [1]) == nil && PartSizes([]) == nil)
    }

    @Test(
        "Malformed members are ignored",
        arguments: [
            "", ";", "tag", "tag=%", "tag=%0A", "parts=", "parts=1", "parts=1*0", "parts=1*10001", "parts=-1*1",
            "parts=9223372036854775807*2", "parts=9223372036854775807*1,1*1", "parts=1*1,", "sum=crc32:full:",
            "sum=crc32:full:AAAA", "sum=crc32:other:AAAAAA==", "sum=md5:full:AAAAAA==", "expires=%0d%0aa", "new=1",
            "parts=" + (0..<13).map { "\($0)*1" }.joined(separator: ","),
        ])
    func malformed(_ text: String) {
        #expect(S3Properties(text: text) == nil)
        #expect(S3Properties(text: "\(text);tag=x") == S3Properties(tag: "x"))
    }

    @Test("Parts have ranges")
    func ranges() {
        let object = object(S3Properties(parts: PartSizes([5, 5, 9, 0, 1])), size: 20)
        #expect(object.partCount == 5)
        #expect((0...6).map { object.partRange($0) } == [nil, 0..<5, 5..<10, 10..<19, 19..<19, 19..<20, nil])
        #expect(self.object(S3Properties(parts: PartSizes([5, 5])), size: 11).partRange(1) == nil)
        let unknown = self.object(S3Properties(tag: "0123456789abcdef0123456789abcdef-2"), size: 11)
        #expect(unknown.partCount == 2 && unknown.partRange(1) == nil)
        let plain = self.object(nil, size: 11)
        #expect(plain.partCount == nil && plain.partRange(1) == 0..<11 && plain.partRange(2) == nil)
    }

    private func object(
        _ s3: S3Properties?, size: UInt64 = 1, etag: String = "7", md5: [UInt8]? = nil, created: Int64 = 0,
        updated: Int64 = 0
    ) -> ObjectMetadata {
        ObjectMetadata(
            name: "n", generation: 7, metageneration: 1, size: size, created: created, updated: updated, md5: md5,
            crc32c: nil, etag: etag, attributes: ObjectAttributes(system: SystemMetadata(s3: s3)))
    }

    @Test("The tag is the stored one, the service's own, the md5, or none that looks like an md5")
    func tags() {
        let stored = S3Properties(tag: "stored-1")
        #expect(object(stored, etag: "own", md5: Self.md5).s3Tag == "stored-1")
        #expect(object(nil, etag: "own", md5: Self.md5).s3Tag == "own")
        #expect(object(nil, md5: Self.md5).s3Tag == Hexadecimal.encode(Self.md5))
        #expect(object(nil).s3Tag == Hexadecimal.encode(digest(.md5, Array("7".utf8))) + "-1")
        #expect(object(nil).partCount == nil)
        let service = "0123456789abcdef0123456789abcdef-12"
        #expect(object(nil, etag: service).partCount == 12)
        for other in ["x-12", "0123456789abcdef0123456789abcdef-", "0123456789abcdef0123456789abcdef-10001"] {
            #expect(object(nil, etag: other).partCount == nil)
        }
    }

    @Test("Conditions of S3 compare its tags, and the time of the last change in whole seconds")
    func preconditions() {
        let object = object(nil, md5: Self.md5, created: 5_999, updated: 9_999)
        var (own, s3) = (Preconditions(), Preconditions())
        s3.comparesS3Tags = true
        #expect(s3.isEmpty)
        own.ifMatch = .tags(["7"])
        s3.ifMatch = .tags([object.s3Tag])
        #expect(own.evaluate(object, reading: true) == nil && s3.evaluate(object, reading: true) == nil)
        swap(&own.ifMatch, &s3.ifMatch)
        #expect(own.evaluate(object, reading: true) == .preconditionFailed)
        #expect(s3.evaluate(object, reading: true) == .preconditionFailed)
        (own.ifMatch, s3.ifMatch) = (nil, nil)
        (own.ifNoneMatch, s3.ifNoneMatch) = (.tags(["7"]), .tags([object.s3Tag]))
        #expect(own.evaluate(object, reading: true) == .notModified)
        #expect(s3.evaluate(object, reading: true) == .notModified)
        (own.ifNoneMatch, s3.ifNoneMatch) = (nil, nil)
        for (time, isOwn, isS3) in [(4, true, true), (5, false, true), (8, false, true), (9, false, false)] {
            (own.ifUnmodifiedSince, s3.ifUnmodifiedSince) = (Int64(time), Int64(time))
            #expect((own.evaluate(object, reading: false) != nil) == isOwn, "\(time)")
            #expect((s3.evaluate(object, reading: false) != nil) == isS3, "\(time)")
        }
    }
}
