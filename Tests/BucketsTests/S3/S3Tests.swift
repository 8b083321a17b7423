import HTTPClient
import Testing
import Wire
import XML

@testable import Buckets

@Suite("Responses to the S3 driver")
struct S3Tests {
    @Test func propertiesComeBackFromFields() {
        let all = ObjectAttributes(
            contentType: "text/plain", cacheControl: "no-store", contentDisposition: "ü  x",
            contentEncoding: "gzip", contentLanguage: "de",
            customMetadata: [
                "plain": "a value", "Upper": "x", "": "no key", "empty": "", "two": "a  b",
                "line": "a\r\nb", "ü": "é", "word": "=?UTF-8?Q?x?=",
            ],
            system: SystemMetadata(
                downloadTokens: ["a", "b"], uploadSession: UploadSessionID(expires: 7)))
        let odd = ObjectAttributes(system: SystemMetadata(downloadTokens: ["ü", " b"]))
        for attributes in [
            all, odd, ObjectAttributes(), ObjectAttributes(contentType: "binary/octet-stream"),
        ] {
            var fields = HeaderFields()
            S3Fields.append(attributes, to: &fields)
            S3Fields.append(generation: 1_700_000_000_000_001, md5: nil, crc32c: 7, to: &fields)
            fields.append("etag", "\"900150983cd24fb0d6963f7d28e17f72\"")
            let object = S3Head(fields).metadata("n", size: 3, isAWS: false)
            #expect(object.attributes == attributes)
            #expect(object.generation == 1_700_000_000_000_001)
            #expect(object.metageneration == 1)
            #expect(object.created == 1_700_000_000_000)
            #expect(object.crc32c == 7)
            #expect(object.md5?.count == 16)
        }
    }

    @Test func reservedKeysAreNeverCustomMetadata() {
        var fields = HeaderFields()
        S3Fields.append(
            ObjectAttributes(customMetadata: [
                "Firebasestoragedownloadtokens": "packed", "Sluice-Session": "packed", "k": "v",
            ]), to: &fields)
        fields.append("x-amz-meta-sluice-unknown", "1")
        fields.append("x-amz-meta-firebasestoragedownloadtokens", "a,,b")
        let attributes = S3Head(fields).metadata("n", size: 3, isAWS: false).attributes
        #expect(attributes.customMetadata == ["k": "v"])
        #expect(attributes.system == SystemMetadata(downloadTokens: ["a", "b"]))
    }

    @Test func aSessionThatWasCarriedToOtherBytesDoesNotCount() {
        let system = SystemMetadata(uploadSession: UploadSessionID(expires: 7))
        var fields = HeaderFields()
        S3Fields.append(ObjectAttributes(system: system), to: &fields)
        S3Fields.append(
            generation: 5, md5: [UInt8](repeating: 1, count: 16), crc32c: 1, to: &fields)
        #expect(S3Head(fields).metadata("n", size: 3, isAWS: false).attributes.system == system)
        fields.append("etag", "\"900150983cd24fb0d6963f7d28e17f72\"")
        #expect(S3Head(fields).metadata("n", size: 3, isAWS: false).attributes.system.isEmpty)
    }

    @Test func othersObjectsHaveAGenerationOfTheirTimeAndTag() {
        var fields = HeaderFields()
        fields.append("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT")
        fields.append("etag", "\"5d41402a-2\"")
        let object = S3Head(fields).metadata("n", size: 3, isAWS: false)
        #expect(object.generation / 1_000_000 == 784_111_777)
        #expect(object.created / 1000 == 784_111_777)
        #expect(object.md5 == nil)
    }

    /// The fields of an object whose tag is the MD5 of other bytes than our metadata says.
    private var otherBytesFields: HeaderFields {
        var fields = HeaderFields()
        S3Fields.append(
            generation: 5, md5: [UInt8](repeating: 1, count: 16), crc32c: 1, to: &fields)
        fields.append("etag", "\"900150983cd24fb0d6963f7d28e17f72\"")
        return fields
    }

    @Test func keysOfOtherBytesAreIgnored() {
        var fields = otherBytesFields
        fields.append("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT")
        let object = S3Head(fields).metadata("n", size: 3, isAWS: false)
        #expect(object.generation != 5)
        #expect(object.crc32c == nil)
    }

    @Test func tenThousandPartsHoldFiveTebibytes() {
        let limit: UInt64 = 5 << 30
        for size: UInt64? in [nil, 5 << 40, (5 << 40) - 1] {
            var sent: UInt64 = 0
            for part in 1...10_000 where size == nil || sent < size ?? 0 {
                let length = S3Multipart.length(
                    ofPart: part, size: size, minimum: 8 << 20, limit: limit, parts: 10_000,
                    sent: sent)
                #expect(length > 0 && length <= limit)
                sent += length
            }
            if let size { #expect(sent == size) } else { #expect(sent >= 5 << 40) }
        }
        #expect(
            S3Multipart.length(
                ofPart: 1, size: 100, minimum: 8 << 20, limit: limit, parts: 10_000, sent: 0)
                == 100)
    }

    @Test func xml() throws {
        let text = "<?xml version=\"1.0\"?><Error><Code>Slow&amp;Down</Code><A><B/></A></Error>"
        #expect(S3ErrorResponse.code(in: Array(text.utf8)) == "Slow&Down")
        let bomb = "<!DOCTYPE x [<!ENTITY a \"aaaa\">]><Error><Code>&a;</Code></Error>"
        #expect(throws: XMLReader.Malformed.self) {
            try XMLReader.read(Array(bomb.utf8)) { _, _, _ in }
        }
        let deep = String(repeating: "<a>", count: 17) + String(repeating: "</a>", count: 17)
        #expect(throws: XMLReader.Malformed.self) {
            try XMLReader.read(Array(deep.utf8)) { _, _, _ in }
        }
        #expect(throws: XMLReader.Malformed.self) { try XMLReader.read([]) { _, _, _ in } }
        let long = "<a>" + String(repeating: "x", count: 20_000) + "</a>"
        #expect(throws: XMLReader.Malformed.self) {
            try XMLReader.read(Array(long.utf8)) { _, _, _ in }
        }
    }

    @Test(arguments: [
        // An entry that is dropped, and a token that contains an element instead of text.
        "<CommonPrefixes><Prefix>%FF/</Prefix></CommonPrefixes>"
            + "<NextContinuationToken><a>token</a></NextContinuationToken>",
        "<Contents><Key>%FF</Key></Contents>",
        "<NextContinuationToken>token</NextContinuationToken>",
        "",
    ])
    func aPageThatIsNotTheLastHasASuccessor(_ rest: String) throws {
        let head =
            "<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>"
        let page = Array((head + rest + "</ListBucketResult>").utf8)
        #expect(throws: BucketError.self) { try S3ListPage(page) }
        // A token leads past dropped entries.
        let dropped =
            "<Contents><Key>%FF</Key></Contents>"
            + "<NextContinuationToken>token</NextContinuationToken></ListBucketResult>"
        #expect(try S3ListPage(Array((head + dropped).utf8)).next == .token("token"))
    }

    @Test func propertiesAreListedOnlyIfEachItemHasThem() throws {
        func page(_ contents: [String], withProperties: Bool = true) throws -> S3ListPage {
            let body =
                "<ListBucketResult><EncodingType>url</EncodingType><IsTruncated>false</IsTruncated>"
                + contents.map { "<Contents>\($0)</Contents>" }.joined() + "</ListBucketResult>"
            return try S3ListPage(Array(body.utf8), withProperties: withProperties)
        }
        let time = "<LastModified>2026-01-02T03:04:05.000Z</LastModified>"
        let rest = time + "<ETag>&quot;e&quot;</ETag><Size>7</Size>"
        let owner = "<Owner><ID>i</ID><Size>9</Size></Owner>"
        let items = ["<Key>a%20b</Key>\(rest)\(owner)", "<Key>%FF</Key>\(rest)"]
        let wanted = ListedProperties(size: 7, updated: 1_767_323_045_000, etag: "e")
        #expect(try page(items).properties == ["a b": wanted])
        #expect(try page(items, withProperties: false).properties.isEmpty)
        // Otherwise one item could get the properties of another.
        for lacking in [
            "<Key>c</Key>", "<Key>c</Key>\(time)<ETag>e</ETag>",
            "<Key>c</Key>\(time)<Size>-1</Size><ETag>e</ETag>",
        ] {
            let found = try page([items[0], lacking])
            #expect(found.items == ["a b", "c"] && found.properties.isEmpty)
        }
    }

    @Test func aTagThatContradictsTheServicesOwnChecksumIsNoMD5() {
        var fields = otherBytesFields
        fields.append("x-amz-checksum-crc32c", "AAAAAQ==")
        let object = S3Head(fields).metadata("n", size: 3, isAWS: false)
        #expect(object.generation == 5 && object.md5 == [UInt8](repeating: 1, count: 16))
        let learned = S3Head(fields).metadata("n", size: 3, isAWS: false, tagsAreMD5: false)
        #expect(learned == object)
    }

    @Test(arguments: ["ConditionalRequestConflict", "OperationAborted"])
    func aConflictIsABusyService(_ code: String) {
        let body = Array("<Error><Code>\(code)</Code></Error>".utf8)
        for status in [200, 409] {
            let failure = S3ErrorResponse(
                CollectedResponse(status: status, fields: HeaderFields(), body: body))
            #expect(failure.isRejection && failure.error("upload").code == .overloaded)
        }
    }

    @Test func listPagesMergeAndSkipWhatWasShown() {
        let query = ListQuery(prefix: "", delimited: true, limit: 2)
        var first = CloudList(query, after: nil)
        #expect(first.start == .beginning)
        first.add(items: ["c", "a", "b//x"], prefixes: ["a/", "b//"], isLast: true)
        #expect(first.page.items == ["a"])
        #expect(first.page.prefixes == ["a/"])
        #expect(first.page.end == "a/")
        var second = CloudList(query, after: "a/")
        #expect(second.start == .after("a/\u{10FFFF}"))
        second.add(items: ["c"], prefixes: ["a/"], isLast: true)
        #expect(second.page.items == ["c"])
        #expect(second.page.prefixes == [])
        #expect(second.page.end == nil)
        #expect(
            CloudList(ListQuery(prefix: "x//", delimited: false, limit: 1), after: nil).isHidden)
    }
}
