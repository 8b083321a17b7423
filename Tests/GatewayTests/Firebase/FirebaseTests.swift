import Buckets
import Testing
import Wire

@testable import Gateway

@Suite("The Firebase dialect's texts") struct FirebaseTests {
    @Test(arguments: [
        ("start", UploadCommand.start), ("query", .query), ("Cancel", .cancel), ("upload", .upload),
        ("finalize", .finalize), ("upload, finalize", .uploadAndFinalize),
        (" FINALIZE ,\tupload,,", .uploadAndFinalize), ("upload, upload", .upload),
    ])
    func readsCommands(text: String, command: UploadCommand) {
        #expect(UploadCommand(text) == command)
    }

    @Test(arguments: [
        "", ",", "uploads", "upload finalize", "upload; finalize", "start, upload", "query, cancel",
        "upload, finalize, cancel", "up load",
    ])
    func rejectsOtherCommands(text: String) { #expect(UploadCommand(text) == nil) }

    @Test(arguments: [
        ("1", "1"), ("1.0", "1"), ("-0", "0"), ("1e3", "1000"), ("0.5", "0.5"), ("-2.50", "-2.5"),
        ("12345678901234", "12345678901234"), ("1e400", "null"),
        ("1e21", "1e+21"), ("1e20", "100000000000000000000"), ("1e-7", "1e-7"),
        ("0.000001", "0.000001"), ("0.00000123", "0.00000123"), ("-1.5e-9", "-1.5e-9"),
        ("123456789012345678901234", "1.2345678901234569e+23"), ("5e-324", "5e-324"),
        ("1.7976931348623157e308", "1.7976931348623157e+308"), ("123.456e5", "12345600"),
        ("12345678901234567890", "12345678901234567000"), ("0.1", "0.1"), ("100", "100"),
    ])
    func writesNumbersAsJavaScript(text: String, number: String) {
        #expect(FirebaseJSON.number(text) == number)
    }

    private func upload(_ json: String) throws -> ObjectAttributes {
        try UploadDescription(json: Array(json.utf8), type: "a/b").attributes()
    }

    @Test func readsAnUpload() throws {
        let attributes = try upload(
            #"{"contentType":"","metadata":{"o":{"a":[1.0,"x\"",null,true]},"n":2.0,"s":"t"},"etag":3}"#
        )
        #expect(attributes.contentType == "a/b" && attributes.system.downloadTokens.count == 1)
        #expect(
            attributes.customMetadata == ["o": #"{"a":[1,"x\"",null,true]}"#, "n": "2", "s": "t"])
        #expect(
            try upload(#"{"contentType":"c/d","contentEncoding":"identity"}"#).contentEncoding
                == nil)
        #expect(
            try UploadDescription(json: [], type: nil).attributes().contentType
                == MediaTypes.unknown)
    }

    @Test func readsAPatch() throws {
        let text =
            #"{"metadata":{"a":[1,[2,null],{}],"b":null,"c":1.50,"FirebaseStorageDownloadTokens":"x"},"contentDisposition":"inline","size":4}"#
        let patch = try AttributePatch(firebase: Array(text.utf8))
        #expect(patch.customMetadata == ["a": "1,2,,[object Object]", "b": nil, "c": "1.5"])
        #expect(patch.contentDisposition == .remove && patch.downloadTokens == nil)
        #expect(try AttributePatch(firebase: Array(#"{"metadata":null}"#.utf8)).clearCustomMetadata)
    }

    @Test func changesTokens() throws {
        #expect(try TokenChange.create.applied(to: ["a"])?.first == "a")
        #expect(try TokenChange.delete("b").applied(to: ["a", "b", "c"]) == ["a", "c"])
        #expect(try TokenChange.delete("x").applied(to: ["a"]) == nil)
        let last = try TokenChange.delete("a").applied(to: ["a"])
        #expect(last?.count == 1 && last != ["a"])
        #expect(throws: Problem.self) {
            try TokenChange.create.applied(to: (0..<16).map { "\($0)" })
        }
        let token = Array(TokenChange.newToken().utf8)
        #expect(token.count == 36 && token[14] == UInt8(ascii: "4"))
        #expect("89ab".utf8.contains(token[19]) && TokenChange.newToken() != TokenChange.newToken())
    }

    @Test func comparesAllTokens() {
        func object(_ tokens: [String]) -> CurrentObject {
            .object(
                ObjectMetadata(
                    name: "a", generation: 1, metageneration: 1, size: 0, created: 0, updated: 0,
                    md5: nil, crc32c: nil, etag: "e",
                    attributes: ObjectAttributes(system: SystemMetadata(downloadTokens: tokens))))
        }
        let token = DownloadToken("two")
        #expect(token.decide(.unknown, now: 0) == .needsExisting)
        #expect(token.decide(.absent, now: 0) == nil)
        #expect(token.decide(object(["one", "two", "three"]), now: 0) == .allow)
        #expect(token.decide(object(["one", "tw", "twoo", "Two"]), now: 0) == nil)
        #expect(token.decide(object([]), now: 0) == nil)
        #expect(DownloadToken("").decide(object([]), now: 0) == nil)
    }

    @Test(arguments: [
        ("a/b.txt", "inline; filename*=utf-8''b.txt"),
        ("a b\"", "inline; filename*=utf-8''a%20b%22"),
        ("ä\t", "inline; filename*=utf-8''%C3%A4%09"),
    ])
    func namesFiles(name: String, disposition: String) {
        #expect(FirebaseAPI.disposition(of: name) == disposition)
    }
}
