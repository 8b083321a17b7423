import Buckets
import HTTPServer
import TestSupport
import Testing
import Wire

@testable import Gateway

private func text(_ bytes: [UInt8]) -> String { String(decoding: bytes, as: UTF8.self) }

@Suite struct JSONTests {
    @Test func writesExactEscapes() {
        var json = JSONWriter(reserving: 0)
        json.beginArray()
        json.string("\"\\/\u{8}\t\n\u{c}\r\u{0}\u{1f}\u{7f}é\u{2028}🌲")
        json.string("")
        json.endArray()
        #expect(
            text(json.bytes)
                == #"["\"\\/\b\t\n\f\r\u0000\u001f\#u{7f}é\#u{2028}🌲",""]"#)
    }

    @Test func writesNestedMembers() {
        var json = JSONWriter(reserving: 0)
        json.beginObject()
        json.member("a", 1)
        json.key("b")
        json.beginObject()
        json.endObject()
        json.key("c")
        json.beginArray()
        json.beginObject()
        json.member(key: "d\"", "x")
        json.member("e", "y")
        json.endObject()
        json.string("z")
        json.endArray()
        json.member("f", "g")
        json.endObject()
        #expect(text(json.bytes) == #"{"a":1,"b":{},"c":[{"d\"":"x","e":"y"},"z"],"f":"g"}"#)
    }

    @Test(arguments: [
        ("null", JSONValue.null), (" true ", .boolean(true)), ("-0.5e+3", .number("-0.5e+3")),
        ("0", .number("0")),
        (#""a\u00e9\ud83c\udf32\/\b\f\n\r\t\"\\""#, .string("aé🌲/\u{8}\u{c}\n\r\t\"\\")),
        ("[ ]", .array([])), ("[1,[2]]", .array([.number("1"), .array([.number("2")])])),
        (
            #"{"a":null,"b":{"c":"d"}}"#,
            .object([
                JSONMember(key: "a", value: .null),
                JSONMember(key: "b", value: .object([JSONMember(key: "c", value: .string("d"))])),
            ])
        ),
    ])
    func reads(json: String, expected: JSONValue) throws {
        #expect(try JSONReader.parse(Array(json.utf8)) == expected)
    }

    @Test(arguments: [
        "", " ", "{", "}", "[1,]", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{a:1}", "nul", "nulll",
        "01",
        "1.", ".5", "+1", "1e", "-", "\"", "\"\\x\"", "\"\\u12\"", "\"\\ud800\"", "\"\\udc00\"",
        "\"\\ud800\\u0041\"", "\"\t\"", "\"a\nb\"", "1 2", "{\"a\":1,\"a\":2}", "'a'", "\u{feff}{}",
        "{\"\\u0061\":1,\"a\":2}", "NaN", "[1 2]",
        String(repeating: "[", count: 66) + String(repeating: "]", count: 66),
    ])
    func rejects(json: String) {
        #expect(throws: JSONReader.Malformed.self) { try JSONReader.parse(Array(json.utf8)) }
    }

    @Test func rejectsTooManyValues() throws {
        let text = Array("[1,2,{\"a\":3}]".utf8)
        _ = try JSONReader.parse(text, maximumValues: 5)
        #expect(throws: JSONReader.Malformed.self) {
            try JSONReader.parse(text, maximumValues: 4)
        }
    }

    @Test func rejectsInvalidUTF8() {
        #expect(throws: JSONReader.Malformed.self) { try JSONReader.parse([0x22, 0xff, 0x22]) }
    }

    @Test func readsBackWhatIsWritten() throws {
        var random = SeededGenerator(9)
        for _ in 0..<5_000 {
            let string = String(
                decoding: random.mutation(of: ["a\u{0}\u{1f}", "é🌲\"\\"]), as: UTF8.self)
            var json = JSONWriter(reserving: 0)
            json.string(string)
            #expect(try JSONReader.parse(json.bytes) == .string(string))
        }
    }

    @Test func survivesAnyBytes() {
        var random = SeededGenerator(10)
        let seeds = [
            #"{"a":[1,-2.5e3,null,"\u00e9"],"b":{}}"#, "[[[[[[", "true", "\"\\ud83c\\udf32\"",
        ]
        for _ in 0..<20_000 { _ = try? JSONReader.parse(random.mutation(of: seeds)) }
    }
}

@Suite struct PatchTests {
    private func patch(_ json: String) throws(Problem) -> AttributePatch {
        try AttributePatch(mergePatch: Array(json.utf8))
    }

    @Test func changesOnlyNamedProperties() throws {
        let patch = try patch(
            #"{"contentType":"a/b","cacheControl":null,"customMetadata":{"K":"v","gone":null}}"#)
        #expect(patch.contentType == .set("a/b"))
        #expect(patch.cacheControl == .remove)
        #expect(patch.contentLanguage == .keep)
        let old = ObjectAttributes(
            cacheControl: "x", contentLanguage: "de", customMetadata: ["gone": "1", "stays": "2"])
        let new = patch.applied(to: old)
        #expect(new.contentType == "a/b" && new.cacheControl == nil && new.contentLanguage == "de")
        #expect(new.customMetadata == ["K": "v", "stays": "2"])
    }

    @Test func removesAllPairs() throws {
        let patch = try patch(#"{"customMetadata":null}"#)
        #expect(
            patch.applied(to: ObjectAttributes(customMetadata: ["a": "b"])).customMetadata.isEmpty)
        #expect(!patch.addsCustomMetadata)
        #expect(try self.patch("{}") == AttributePatch())
        let system = SystemMetadata(downloadTokens: ["a"])
        let attributes = ObjectAttributes(customMetadata: ["a": "b"], system: system)
        #expect(patch.applied(to: attributes) == ObjectAttributes(system: system))
        #expect(try self.patch(#"{"customMetadata":{}}"#) == AttributePatch())
    }

    @Test(arguments: [
        ("[]", "object"), ("1", "object"), ("{", "byte 1"), (#"{"size":"1"}"#, "size is read-only"),
        (#"{"name":null}"#, "name is read-only"), (#"{"md5Hash":"x"}"#, "md5Hash"),
        (#"{"colour":"x"}"#, "'colour' is not a property"),
        (#"{"ContentType":"x"}"#, "ContentType"),
        (#"{"contentType":1}"#, "contentType"), (#"{"contentType":{}}"#, "contentType"),
        (#"{"contentType":"a","contentType":"b"}"#, "'contentType' is given twice"),
        (#"{"contentType":"a\r\nx: y"}"#, "contentType has a control"),
        (#"{"contentType":" a"}"#, "contentType"), (#"{"cacheControl":"a\u0000"}"#, "cacheControl"),
        (#"{"customMetadata":"x"}"#, "customMetadata"),
        (#"{"customMetadata":[]}"#, "customMetadata"),
        (#"{"customMetadata":{"a":1}}"#, "customMetadata.a"),
        (#"{"customMetadata":{"":"a"}}"#, "empty"), (#"{"customMetadata":{"a":"\u0000"}}"#, "NUL"),
        (#"{"customMetadata":{"a":"b","a":null}}"#, "'a' is given twice"),
        (#"{"customMetadata":{"firebaseStorageDownloadTokens":"a"}}"#, "reserved"),
        (#"{"customMetadata":{"FirebaseStorageDownloadTokens":null}}"#, "reserved"),
        (#"{"customMetadata":{"sluice-a":"b"}}"#, "reserved"),
        (#"{"customMetadata":{"SLUICE-":null}}"#, "reserved"),
    ])
    func namesWhatCanNotBe(json: String, detail: String) {
        let problem = #expect(throws: Problem.self) { try patch(json) }
        #expect(problem?.code == .invalidArgument)
        #expect(problem?.detail.contains(detail) == true, "\(problem?.detail ?? "")")
    }

    @Test func limitsCustomMetadata() throws {
        let value = String(repeating: "a", count: 8191)
        #expect(throws: Never.self) { try patch(#"{"customMetadata":{"k":"\#(value)"}}"#) }
        #expect(throws: Problem.self) { try patch(#"{"customMetadata":{"kk":"\#(value)"}}"#) }
        #expect(throws: Problem.self) {
            try patch(#"{"contentLanguage":"\#(value)"}"#)
        }
    }

    @Test func survivesAnyBytes() {
        var random = SeededGenerator(11)
        let seeds = [
            #"{"contentType":"a/b","customMetadata":{"k":null}}"#, #"{"cacheControl":null}"#,
        ]
        for _ in 0..<20_000 { _ = try? AttributePatch(mergePatch: random.mutation(of: seeds)) }
    }
}

@Suite struct ObjectFieldsTests {
    private func attributes(_ pairs: [(String, String)], name: String = "a.jpg") throws
        -> ObjectAttributes
    {
        var fields = HeaderFields()
        for (name, value) in pairs { fields.append(name: name, value) }
        return try ObjectAttributes(fields, name: ObjectName(name))
    }

    @Test func readsAnUpload() throws {
        let attributes = try attributes([
            ("content-type", "text/plain; charset=utf-8"), ("cache-control", "public"),
            ("cache-control", "max-age=1"), ("content-disposition", "attachment"),
            ("content-encoding", "gzip"), ("content-language", "de"),
            ("x-object-meta-author", "Zoë"), ("x-object-meta-empty", ""), ("x-other", "1"),
        ])
        #expect(
            attributes
                == ObjectAttributes(
                    contentType: "text/plain; charset=utf-8", cacheControl: "public, max-age=1",
                    contentDisposition: "attachment", contentEncoding: "gzip",
                    contentLanguage: "de", customMetadata: ["author": "Zoë", "empty": ""]))
    }

    @Test(arguments: [
        [("content-type", "a/b"), ("content-type", "c/d")], [("x-object-meta-", "x")],
        [("x-object-meta-a", "1"), ("x-object-meta-a", "2")], [("x-object-meta-a", "a\u{1}")],
        [("content-type", "a\u{0}")], [("cache-control", String(repeating: "a", count: 2049))],
        [("x-object-meta-a", String(repeating: "a", count: 8192))],
    ])
    func rejectsMetadataThatGetsCouldNotReturn(pairs: [(String, String)]) {
        #expect(throws: Problem.self) { try attributes(pairs) }
    }

    @Test(arguments: [
        ("a.jpg", "image/jpeg"), ("A.JPG", "image/jpeg"), ("x/y.html", "text/html"),
        ("a.tar.gz", "application/gzip"), ("a.json", "application/json"), ("a.md", "text/markdown"),
        ("a.webp", "image/webp"), ("a.yaml", "application/yaml"), ("a.wasm", "application/wasm"),
        ("a", "application/octet-stream"), ("a.", "application/octet-stream"),
        ("a.b/c", "application/octet-stream"), ("a.nosuchthing", "application/octet-stream"),
        (".png", "image/png"), ("a.csv", "text/csv"), ("a.svg", "image/svg+xml"),
        ("a.js", "text/javascript"), ("a.mp4", "video/mp4"), ("a.pdf", "application/pdf"),
        ("a.ü", "application/octet-stream"),
    ])
    func infersTheType(name: String, type: String) throws {
        #expect(try attributes([], name: name).contentType == type)
    }

    private let object = ObjectMetadata(
        name: "d/a\"b", generation: 7, metageneration: 2, size: 10, created: 784_111_777_500,
        updated: 784_111_778_001, md5: Array(0..<16), crc32c: 0x0102_0304, etag: "e7",
        attributes: ObjectAttributes(
            contentType: "text/plain", cacheControl: "no-cache",
            customMetadata: [
                "ok": "a b", "Upper": "v", "a": "1", "A": "2", "é": "x", "k": "é", "s": " x",
                "t": "\t", "line": "a\r\nb", "not token": "x",
            ]))

    @Test func respondsWithFields() {
        var fields = HeaderFields()
        object.appendFields(to: &fields)
        #expect(fields["content-type"] == "text/plain")
        #expect(fields["cache-control"] == "no-cache")
        #expect(fields["etag"] == "\"e7\"")
        #expect(fields["last-modified"] == "Sun, 06 Nov 1994 08:49:37 GMT")
        #expect(fields["accept-ranges"] == "bytes")
        #expect(fields["x-content-type-options"] == "nosniff")
        #expect(fields["x-object-generation"] == "7")
        #expect(fields["x-object-metageneration"] == "2")
        #expect(
            fields["repr-digest"] == "md5=:AAECAwQFBgcICQoLDA0ODw==:, crc32c=:AQIDBA==:")
        let custom = fields.all(withPrefix: "x-object-meta-").map(\.suffix)
        #expect(custom == ["ok", "upper"])
        #expect(!fields.contains("content-encoding"))
    }

    @Test func respondsWithJSON() {
        var patch = AttributePatch()
        patch.clearCustomMetadata = true
        patch.customMetadata = ["B": "1", "a": "\n"]
        let plain = object.patched(patch, now: 0)
        #expect(
            text(plain.json(bucket: "photos"))
                == #"{"bucket":"photos","fullPath":"d/a\"b","name":"a\"b","generation":"7","metageneration":"3","size":"10","timeCreated":"1994-11-06T08:49:37.500Z","updated":"1994-11-06T08:49:38.001Z","etag":"e7","md5Hash":"AAECAwQFBgcICQoLDA0ODw==","crc32c":"AQIDBA==","contentType":"text/plain","cacheControl":"no-cache","customMetadata":{"B":"1","a":"\n"}}"#
        )
    }
}

@Suite struct RouteTests {
    @Test(arguments: [
        ("/b/photos/o", "photos", nil), ("/b/photos/o/", "photos", ""),
        ("/b/photos/o/a/b", "photos", "a/b"), ("/b/ph%6Ftos/o/a", "photos", "a"),
        ("/b/a%2Fb/o/x", "a/b", "x"), ("/b/p/o//x", "p", "/x"), ("/b/p/o/a?x/o", "p", "a"),
        ("/b/p/o/o/o", "p", "o/o"),
    ])
    func leads(target: String, bucket: String, path: String?) throws {
        let route = try Route(target: target)
        #expect(route.bucket == bucket)
        #expect(route.path == path.map { Route.Path.named(bytes($0)) } ?? .bucket)
    }

    @Test(arguments: [
        "/", "", "*", "/b", "/b/", "/b/photos", "/b/photos/", "/b/photos/p", "/b/photos/of",
        "/b//o",
        "/c/photos/o/a", "/b/photos?x/o", "b/p/o/a", "//b/p/o/a", "/B/p/o/a", "/b/p/O/a",
    ])
    func nothingElse(target: String) {
        let problem = #expect(throws: Problem.self) { try Route(target: target) }
        #expect(problem?.code == .notFound)
    }

    @Test(arguments: [
        ("/b/p/o/", true), ("/b/p/o/a/", true), ("/b/p/o/a%2F", true), ("/b/p/o/a%2f", true),
        ("/b/p/o", false), ("/b/p/o/a", false), ("/b/p/o/a%252F", false), ("/b/p/o/2F", false),
    ])
    func folders(target: String, expected: Bool) throws {
        #expect(try Route(target: target).isFolder == expected)
    }

    private func query(_ text: String) throws(Problem) -> Query {
        try Query(QueryParameters(bytes(text)))
    }

    @Test func readsQueries() throws {
        let query = try self.query(
            "prefix=a%2Fb+c%2B&delimiter=%2F&maxResults=7&pageToken=x&metadata&y=%ZZ&=&&z")
        #expect(query.prefix == "a/b c+")
        #expect(query.isDelimited == true)
        #expect(query.maxResults == 7)
        #expect(query.pageToken == "x")
        #expect(try self.query("delimiter=").isDelimited == false)
        #expect(try Query(QueryParameters(nil)) == Query())
        for (text, expected) in [
            ("metadata", true), ("a&metadata=0", true), ("met%61data", true), ("metadatax", false),
            ("maxResults=0&metadata", true), ("", false),
        ] {
            #expect(try Route(target: "/b/p/o/a?" + text).asksForMetadata == expected)
        }
    }

    @Test(arguments: [
        "maxResults=0", "maxResults=1001", "maxResults=", "maxResults=a", "maxResults=-1",
        "maxResults=99999999999999999999", "delimiter=,", "delimiter=//", "prefix=%00",
        "prefix=%0A",
        "prefix=%FF", "prefix=%", "prefix=a&prefix=b", "delimiter&delimiter",
        "prefix=" + String(repeating: "a", count: 1025),
    ])
    func rejectsInvalidValues(query: String) {
        let problem = #expect(throws: Problem.self) { try self.query(query) }
        #expect(problem?.code == .invalidArgument)
    }

    @Test func survivesAnyBytes() throws {
        var random = SeededGenerator(12)
        let seeds = [
            "/b/p/o/a?metadata", "/b/p/o?prefix=a%2F&maxResults=3&delimiter=/", "/b/%70/o/",
        ]
        for _ in 0..<20_000 {
            let target = String(decoding: random.mutation(of: seeds), as: UTF8.self)
            guard let route = try? Route(target: target) else { continue }
            _ = try? Query(route.query)
            _ = route.methods
        }
    }
}

@Suite struct PageTokenTests {
    private let token = PageToken.encode(
        after: "a/ü", bucket: "p", prefix: "a/", isDelimited: true)

    private func decode(
        _ token: String, bucket: String = "p", prefix: String = "a/", isDelimited: Bool = true
    ) -> String? {
        PageToken.decode(token, bucket: bucket, prefix: prefix, isDelimited: isDelimited)
    }

    @Test func isBoundToItsList() {
        #expect(decode(token) == "a/ü")
        #expect(decode(token, bucket: "q") == nil)
        #expect(decode(token, prefix: "a") == nil)
        #expect(decode(token, prefix: "") == nil)
        #expect(decode(token, isDelimited: false) == nil)
        #expect(decode("") == nil)
        // What moves from one part to its neighbour is another list.
        let other = PageToken.encode(after: "x", bucket: "pa", prefix: "b", isDelimited: false)
        #expect(decode(other, bucket: "p", prefix: "ab", isDelimited: false) == nil)
    }

    @Test func everyDamageIsDetected() {
        let bytes = Array(token.utf8)
        for place in bytes.indices {
            for other in "AZaz09-_.=".utf8 where other != bytes[place] {
                var damaged = bytes
                damaged[place] = other
                #expect(decode(text(damaged)) == nil)
            }
            #expect(decode(text(Array(bytes[..<place]))) == nil)
        }
        #expect(decode(token + "A") == nil)
    }

    @Test func survivesAnyBytes() {
        var random = SeededGenerator(13)
        for _ in 0..<20_000 {
            let input = random.mutation(of: [token, "AAAA", ""])
            let text = String(decoding: input, as: UTF8.self)
            if text != token { #expect(decode(text) == nil) }
        }
    }

    @Test func requestIdsDiffer() {
        let ids = RequestIDs(start: .max - 10)
        let made = Set((0..<1000).map { _ in ids.next() })
        #expect(made.count == 1000)
        #expect(made.allSatisfy { $0.utf8.count == 13 && $0.utf8.allSatisfy(ASCII.isToken) })
    }
}
