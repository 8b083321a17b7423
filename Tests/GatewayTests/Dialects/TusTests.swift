import Buckets
import TestSupport
import Testing
import Wire

@testable import Gateway

/// The fields of tus requests.
@Suite("tus") struct TusTests {
    private func metadata(_ text: String?) throws(Problem) -> UploadMetadata {
        var fields = HeaderFields()
        if let text { fields.append("upload-metadata", text) }
        return try UploadMetadata(fields)
    }

    private func encoded(_ text: String) -> String { Base64.encode(Array(text.utf8)) }

    private func attributes(_ pairs: [(String, String)], name: String = "a.txt") throws(Problem)
        -> ObjectAttributes
    {
        let text = pairs.map { "\($0.0) \(encoded($0.1))" }.joined(separator: ",")
        let name = try! ObjectName(name)
        return try metadata(text).attributes(name)
    }

    @Test func metadataIsReadAsItStands() throws {
        let text = "objectName \(encoded("a/é")) ,\tbucketName \(encoded("b")),empty,e ,bin /w=="
        let read = try metadata(text)
        #expect(read.text == text)
        #expect(try read.required("objectName") == "a/é" && read.required("bucketName") == "b")
        for key in ["empty", "e", "none", "bin", "objectname"] {
            #expect(throws: Problem.self) { try read.required(key) }
        }
    }

    @Test(arguments: [
        nil, "", ",", "a,", ",a", "a,,b", "a b", "a YQ", "a YR==", "a YQ==,a YQ==", "a,a",
        "a YQ== YQ==", "a  YQ==", "a YQ==;b", "\u{e9} YQ==", "a\tYQ==", "a Y Q==", " ", "a Y-==",
    ])
    func malformedMetadataIsRejected(text: String?) {
        let problem = #expect(throws: Problem.self) { try metadata(text) }
        #expect(problem?.code == .invalidArgument)
    }

    @Test func attributesFollow() throws {
        let read = try attributes([
            ("contentType", "image/png"), ("cacheControl", "60"),
            ("metadata", #"{"s":"x","n":1.50,"b":true,"z":null,"a":[1, {"k":"v\n"}],"o":{}}"#),
        ])
        #expect(read.contentType == "image/png" && read.cacheControl == "max-age=60")
        #expect(
            read.customMetadata == [
                "s": "x", "n": "1.50", "b": "true", "z": "null", "a": #"[1,{"k":"v\n"}]"#,
                "o": "{}",
            ])
        #expect(try attributes([("x", "")]).contentType == "text/plain")
        #expect(try attributes([("contentType", "")]).contentType == "text/plain")
        #expect(try attributes([("cacheControl", "60s")]).cacheControl == "60s")
        for (key, value) in [
            ("contentType", "a\r\nb"), ("contentType", " a"), ("cacheControl", "\u{7f}"),
            ("contentType", String(repeating: "x", count: 2049)), ("metadata", "1"),
            ("metadata", "{"), ("metadata", #"{"":1}"#), ("metadata", #"{"a":"\u0000"}"#),
            ("metadata", #"{"a":1,"a":2}"#),
        ] {
            #expect(throws: Problem.self) { try attributes([(key, value)]) }
        }
    }

    /// Whatever is accepted can be repeated in a response, and has each key once.
    @Test func changedMetadataIsAcceptedOrRejected() {
        var random = SeededGenerator(3)
        let seeds = [
            "objectName YQ==,bucketName YQ==,metadata e30=", "a,b YQ==, c ", "contentType dGV4dA==",
        ]
        for _ in 0..<20_000 {
            let text = String(decoding: random.mutation(of: seeds), as: UTF8.self)
            guard let read = try? metadata(text) else { continue }
            #expect(read.text.utf8.allSatisfy { ASCII.isVisible($0) || ASCII.isSpace($0) })
            let keys = text.split(separator: ",").map { pair in
                BytewiseString(String(pair.drop { $0 == " " || $0 == "\t" }.prefix { $0 != " " }))
            }
            #expect(Set(keys).count == keys.count)
        }
    }

    private func checksum(_ text: String?) throws(Problem) -> UploadChecksum {
        var fields = HeaderFields()
        if let text { fields.append("upload-checksum", text) }
        return try UploadChecksum(fields)
    }

    @Test func checksums() throws {
        let none = try checksum(nil)
        #expect(none.sha1 == nil && none.digests.isEmpty)
        #expect(try checksum("sha1 Kq5sNclPz7QV2+lfQIuc6R7oRu0=").sha1?.first == 0x2a)
        #expect(try checksum("crc32c AQIDBA==").digests.crc32c == 0x0102_0304)
        #expect(try checksum("md5 AAAAAAAAAAAAAAAAAAAAAA==").digests.md5?.count == 16)
        let sha256 = try checksum("sha256 \(Base64.encode([UInt8](repeating: 7, count: 32)))")
        #expect(sha256.digests.others[.sha256] == [UInt8](repeating: 7, count: 32))
        for text in [
            "", "sha1", "sha1 ", "sha1  AAAA", "SHA1 Kq5sNclPz7QV2+lfQIuc6R7oRu0=",
            "crc32 AAAAAA==",
            "crc32c AAAA", "sha512 AAAA", "md5 AAAAAAAAAAAAAAAAAAAAAA", "crc32c AQIDBA==, md5 x",
        ] {
            #expect(throws: Problem.self) { try checksum(text) }
        }
    }

    @Test func aBucketWithoutSessionsSaysSo() async {
        let client = Client(MemoryBucket())
        let fields = [
            ("tus-resumable", "1.0.0"), ("upload-length", "5"),
            ("upload-metadata", "bucketName \(encoded("photos")),objectName \(encoded("a"))"),
        ]
        let reply = await client.send("POST", "/tus", fields)
        #expect(reply.status == 501 && reply.fields["tus-resumable"] == "1.0.0")
        let other = await client.send("POST", "/tusx", fields)
        #expect(other.status == 404 && !other.fields.contains("tus-resumable"))
    }
}
