import Testing
import Wire

@testable import Buckets

@Suite("Texts of Cloud Storage")
struct GCSTextTests {
    @Test func rangesOfResponses() throws {
        #expect(ContentRange("bytes 0-9/10") == ContentRange("bytes 0-9/10"))
        #expect(ContentRange("bytes 2-4/10")?.range == 2..<5)
        for wrong in [
            "", "bytes", "bytes 0-9", "bytes 5-4/10", "bytes 0-10/10", "bytes */10", "bytes 0-9/*",
            "bytes -1-2/3", "bytes 0-18446744073709551615/18446744073709551615", "items 0-9/10",
            "bytes 0-9/9223372036854775808", "bytes 0-18446744073709551613/18446744073709551614",
        ] { #expect(ContentRange(wrong) == nil, "\(wrong)") }
        #expect(try GCSSession.kept("bytes=0-41") == 42)
        for wrong in [
            "", "bytes=1-2", "bytes=0-", "bytes=0-x", "bytes=0-+5", "bytes=0-18446744073709551615",
        ] {
            #expect(throws: BucketError.self, "\(wrong)") { try GCSSession.kept(wrong) }
        }
    }

    @Test func theTargetOfASession() {
        for location in ["https://storage.googleapis.com/a?b", "HTTP://[::1]:1/a?b", "/a?b"] {
            #expect(GCSSession.target(location) == "/a?b", "\(location)")
        }
        for wrong in [
            "", "a", "https://", "https:///a", "https://storage.googleapis.com", "ftp://host/a",
            "https://storage.googleapis.com/a b", "https://storage.googleapis.com?/a\u{e9}",
        ] { #expect(GCSSession.target(wrong) == nil, "\(wrong)") }
    }

    @Test func aPatchOfCustomMetadataKeepsSystemMetadata() throws {
        var patch = AttributePatch()
        patch.clearCustomMetadata = true
        patch.contentType = .remove
        patch.customMetadata = ["new": "1"]
        let current = ObjectAttributes(
            customMetadata: ["old": "2"],
            system: SystemMetadata(
                downloadTokens: ["a"], uploadSession: UploadSessionID(expires: 7)))
        let json = try JSONReader.parse(GCSObject.patch(patch, current: current))
        #expect(json["contentType"] == .null)
        #expect(json["metadata"]?["new"]?.text == "1" && json["metadata"]?["old"] == .null)
        #expect(json["metadata"]?["firebaseStorageDownloadTokens"] == nil)
        #expect(json["metadata"]?["sluice-session"] == nil)
    }

    @Test(arguments: [(["a", "b"], "a,b"), ([], nil)] as [([String], String?)])
    func aPatchOfTokensNamesThemAlone(tokens: [String], text: String?) throws {
        var patch = AttributePatch()
        patch.downloadTokens = tokens
        let json = try JSONReader.parse(GCSObject.patch(patch, current: nil))
        let wanted = text.map { JSONValue.string($0) } ?? .null
        #expect(json["metadata"]?["firebaseStorageDownloadTokens"] == wanted)
        guard case .object(let members)? = json["metadata"] else {
            Issue.record("no metadata")
            return
        }
        #expect(members.count == 1)
    }

    @Test func reservedKeysOfAnObjectAreNotCustomMetadata() throws {
        let session = UploadSessionID(expires: 7)
        let text = """
            {"name":"n","generation":"1","metageneration":"1","size":"0",
            "timeCreated":"2026-01-02T03:04:05Z","metadata":{"k":"v","Sluice-Other":"x",
            "firebasestoragedownloadtokens":"x","firebaseStorageDownloadTokens":"a,,b",
            "sluice-session":"\(session.text)"}}
            """
        let json = try JSONReader.parse(Array(text.utf8))
        let attributes = try #require(GCSObject.metadata(json)).attributes
        #expect(attributes.customMetadata == ["k": "v"])
        #expect(attributes.system.downloadTokens == ["a", "b"])
        #expect(attributes.system.uploadSession == session)
    }

    @Test(
        arguments: [
            ("2026-01-02T03:04:05Z", 1_767_323_045_000), ("1970-01-01T00:00:00.1234Z", 123),
            ("1970-01-01T01:00:00.5+01:00", 500), ("1970-01-01", nil), ("1970-01-01T00:00:00", nil),
            ("1970-13-01T00:00:00Z", nil), ("1970-01-01T00:00:00.Z", nil),
        ] as [(String, Int64?)])
    func times(text: String, milliseconds: Int64?) {
        #expect(HTTPDate.parse(rfc3339: text) == milliseconds)
    }
}
