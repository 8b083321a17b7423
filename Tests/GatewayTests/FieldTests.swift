import Buckets
import HTTPServer
import TestSupport
import Testing
import Wire

@testable import Gateway

private func fields(_ pairs: [(String, String)]) -> HeaderFields {
    var fields = HeaderFields()
    for (name, value) in pairs { fields.append(name: name, value) }
    return fields
}

private let object = ObjectMetadata(
    name: "a", generation: 7, metageneration: 2, size: 10, created: 784_111_777_500,
    updated: 784_111_778_000, md5: nil, crc32c: nil, etag: "e7",
    attributes: ObjectAttributes())

@Suite struct HTTPDateTests {
    /// 2026-01-01.
    private let now: Int64 = 1_767_225_600

    @Test(arguments: [
        ("Sun, 06 Nov 1994 08:49:37 GMT", 784_111_777),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 784_111_777),
        ("Sun Nov  6 08:49:37 1994", 784_111_777),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
        ("Wed, 31 Dec 1969 23:59:59 GMT", -1),
        ("Thu, 29 Feb 2024 12:00:00 GMT", 1_709_208_000),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 253_402_300_799),
        ("Sat, 01 Jan 0000 00:00:00 GMT", -62_167_219_200),
        ("Sat, 31 Dec 2016 23:59:60 GMT", 1_483_228_799),
        ("Friday, 01-Jan-76 00:00:00 GMT", 3_345_062_400),
        ("Saturday, 01-Jan-77 00:00:00 GMT", 220_924_800),
        ("Tue Nov 16 08:49:37 1999", 942_742_177),
    ])
    func readsTheThreeForms(text: String, seconds: Int) {
        #expect(HTTPDate.parse(bytes(text), now: now) == Int64(seconds))
    }

    @Test(arguments: [
        "", "x", "Sun, 6 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:37 UTC",
        "sun, 06 nov 1994 08:49:37 gmt", "Sun, 31 Nov 1994 08:49:37 GMT",
        "Sun, 29 Feb 1900 08:49:37 GMT", "Sun, 06 Nov 1994 24:00:00 GMT",
        "Sun, 06 Nov 1994 08:60:00 GMT", "Sun, 06 Nov 1994 08:49:61 GMT",
        "Sun, 06 Nov 1994 08:49:37 GMT ", "Sun, 00 Nov 1994 08:49:37 GMT",
        "1994-11-06T08:49:37Z", "784111777", "Sunday, 06-Nov-1994 08:49:37 GMT",
        "Sun Nov 06 08:49:37 94", "Sun, +6 Nov 1994 08:49:37 GMT", ",,,", "Sun,",
    ])
    func rejectsOthers(text: String) { #expect(HTTPDate.parse(bytes(text), now: now) == nil) }

    @Test func writesWhatItReads() {
        #expect(HTTPDate.imfFixdate(seconds: 784_111_777) == "Sun, 06 Nov 1994 08:49:37 GMT")
        #expect(HTTPDate.imfFixdate(seconds: -5) == "Thu, 01 Jan 1970 00:00:00 GMT")
        #expect(HTTPDate.imfFixdate(seconds: .max) == "Fri, 31 Dec 9999 23:59:59 GMT")
        var random = SeededGenerator(3)
        for _ in 0..<20_000 {
            let seconds = Int64.random(in: 0...253_402_300_799, using: &random)
            let text = HTTPDate.imfFixdate(seconds: seconds)
            #expect(HTTPDate.parse(bytes(text), now: now) == seconds)
        }
    }

    @Test func writesThreeDecimals() {
        #expect(HTTPDate.rfc3339(milliseconds: 784_111_777_005) == "1994-11-06T08:49:37.005Z")
        #expect(HTTPDate.rfc3339(milliseconds: 0) == "1970-01-01T00:00:00.000Z")
        #expect(HTTPDate.rfc3339(milliseconds: -1) == "1970-01-01T00:00:00.000Z")
        #expect(HTTPDate.rfc3339(milliseconds: 951_782_400_999) == "2000-02-29T00:00:00.999Z")
    }

    @Test func survivesAnyBytes() {
        var random = SeededGenerator(4)
        let seeds = [
            "Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ]
        for _ in 0..<20_000 {
            let seconds = HTTPDate.parse(random.mutation(of: seeds)[...], now: now)
            if let seconds { #expect(seconds <= 253_402_300_799) }
        }
    }
}

@Suite struct ByteRangeTests {
    @Test(arguments: [
        ("bytes=0-4", 10, ByteRange.Selection.part(0..<5)), ("bytes=5-", 10, .part(5..<10)),
        ("bytes=-3", 10, .part(7..<10)), ("bytes=-30", 10, .part(0..<10)),
        ("bytes=9-9", 10, .part(9..<10)), ("bytes=8-100", 10, .part(8..<10)),
        ("BYTES = 0-0", 10, .whole), ("Bytes=0-0", 10, .part(0..<1)),
        ("bytes= 0-0 ", 10, .part(0..<1)), ("bytes=,1-2,", 10, .part(1..<3)),
        ("bytes=10-", 10, .unsatisfiable), ("bytes=10-11", 10, .unsatisfiable),
        ("bytes=-0", 10, .unsatisfiable), ("bytes=0-", 0, .unsatisfiable),
        ("bytes=-5", 0, .whole), ("bytes=0-1,3-4", 10, .whole), ("bytes=4-2", 10, .whole),
        ("bytes=", 10, .whole), ("bytes=-", 10, .whole), ("bytes=a-b", 10, .whole),
        ("bytes=1", 10, .whole), ("lines=1-2", 10, .whole), ("bytes=0-4-5", 10, .whole),
        ("bytes=+1-2", 10, .whole), ("bytes=1 -2", 10, .whole), ("", 10, .whole),
        ("bytes=0-99999999999999999999999", 10, .part(0..<10)),
        ("bytes=99999999999999999999999-", 10, .unsatisfiable),
        ("bytes=-99999999999999999999999", 10, .part(0..<10)),
        ("bytes=18446744073709551615-18446744073709551615", 10, .unsatisfiable),
    ])
    func selects(text: String, size: Int, expected: ByteRange.Selection) {
        let range = ByteRange(bytes(text))
        #expect((range?.select(size: UInt64(size)) ?? .whole) == expected)
    }

    @Test func survivesAnyBytes() {
        var random = SeededGenerator(5)
        for _ in 0..<20_000 {
            let input = random.mutation(of: ["bytes=0-4", "bytes=-3", "bytes=5-,", "bytes=1-2,3-4"])
            for size in [0, 1, 10, UInt64.max] {
                guard case .part(let part)? = ByteRange(input[...])?.select(size: size) else {
                    continue
                }
                #expect(!part.isEmpty && part.upperBound <= size)
            }
        }
    }

    private static let etag = ("if-range", "\"e7\"")

    @Test(arguments: [
        ([("range", "bytes=0-1"), ("if-range", "\"e7\"")], ByteRange.Selection.part(0..<2)),
        ([("range", "bytes=0-1"), ("if-range", "\"e8\"")], .whole),
        ([("range", "bytes=0-1"), ("if-range", "W/\"e7\"")], .whole),
        ([("range", "bytes=0-1"), ("if-range", "e7")], .whole),
        ([("range", "bytes=0-1"), ("if-range", "Sun, 06 Nov 1994 08:49:37 GMT")], .whole),
        ([("range", "bytes=0-1"), ("range", "bytes=3-4")], .whole),
        ([("range", "bytes=0-1"), ("if-range", "\"e7\""), ("if-range", "\"e8\"")], .whole),
        ([("range", "bytes=0-1"), ("if-range", "Sun, 06 Nov 1994 08:49:38 GMT")], .whole),
        ([("range", "bytes=99-"), ("if-range", "\"e8\"")], .whole),
        ([("range", "bytes=99-"), ("if-range", "\"e7\"")], .unsatisfiable),
        ([("if-range", "\"e7\"")], .whole),
    ])
    func ifRange(pairs: [(String, String)], expected: ByteRange.Selection) {
        #expect(RangeRequest(fields(pairs)).select(from: object) == expected)
    }
}

@Suite struct ConditionTests {
    @Test(arguments: [
        ("\"a\"", [("a", false)]), ("\"a\", W/\"b\"", [("a", false), ("b", true)]),
        (" ,\"a\",, \"b\" ,", [("a", false), ("b", false)]), ("\"\"", [("", false)]),
        ("\"a,b\"", [("a,b", false)]), ("\"a\"\t,\"b\"", [("a", false), ("b", false)]),
    ])
    func readsTags(text: String, expected: [(String, Bool)]) {
        #expect(
            EntityTag.list(bytes(text)) == expected.map { EntityTag(value: $0.0, isWeak: $0.1) })
    }

    @Test(arguments: [
        "", ",", "a", "\"a", "a\"", "\"a\" \"b\"", "w/\"a\"", "W/a", "*", "\"a\", *", "\"a b\"",
        "\"a\"x",
    ])
    func rejectsOtherTags(text: String) { #expect(EntityTag.list(bytes(text)) == nil) }

    @Test func readsConditions() throws {
        let conditions = try Preconditions(
            fields([
                ("if-match", "\"a\", W/\"b\""), ("if-match", "\"c\""),
                ("if-none-match", "W/\"d\", \"e\""),
                ("if-modified-since", "Sun, 06 Nov 1994 08:49:37 GMT"),
                ("if-unmodified-since", "no date"), ("x-object-generation-match", "0"),
                ("x-object-metageneration-match", "12"),
            ]), now: 0)
        #expect(conditions.ifMatch == .tags(["a", "c"]))
        #expect(conditions.ifNoneMatch == .tags(["d", "e"]))
        #expect(conditions.ifModifiedSince == 784_111_777)
        #expect(conditions.ifUnmodifiedSince == nil)
        #expect(conditions.generation == 0)
        #expect(conditions.metageneration == 12)
        #expect(try Preconditions(fields([("if-match", " * ")]), now: 0).ifMatch == .any)
        #expect(try Preconditions(fields([]), now: 0).isEmpty)
    }

    @Test(arguments: [
        ("x-object-generation-match", "-1"), ("x-object-generation-match", "a"),
        ("x-object-generation-match", ""), ("x-object-generation-match", "9223372036854775808"),
        ("x-object-metageneration-match", "1, 2"), ("if-match", "abc"),
        ("if-none-match", "*, \"a\""),
    ])
    func rejectsInvalidValues(name: String, value: String) {
        #expect(throws: Problem.self) { try Preconditions(fields([(name, value)]), now: 0) }
    }

    @Test func survivesAnyBytes() {
        var random = SeededGenerator(6)
        for _ in 0..<20_000 {
            _ = EntityTag.list(random.mutation(of: ["\"a\", W/\"b\"", "*", ",\"\""])[...])
        }
    }
}

@Suite struct DigestFieldTests {
    private let md5 = "1B2M2Y8AsgTpgAmY7PhCfg=="
    private let sha256 = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="

    @Test func readsAllFields() throws {
        let digests = try ExpectedDigests(
            fields([
                ("content-md5", md5), ("content-digest", "sha-256=:\(sha256):;x=1, unixsum=30637"),
                // Not of RFC 9530.
                ("content-digest", "crc32=:AAAAAA==:, crc64nvme=:AAAAAAAAAAA=:, sha1=1"),
                ("repr-digest", "crc32c=:AAAAAA==:, md5=:\(md5):"),
            ]))
        #expect(digests.md5 == Base64.decode(bytes(md5)))
        #expect(digests.crc32c == 0)
        #expect(digests.others == [.sha256: Base64.decode(bytes(sha256))!])
        let facts = ContentFacts(
            size: 0, md5: digests.md5!, crc32c: 0, digests: digests.others)
        #expect(digests.mismatch(facts) == nil)
        #expect(digests.mismatch(ContentFacts(size: 0, md5: digests.md5!, crc32c: 0)) == "sha-256")
        var other = facts
        other.crc32c = 1
        #expect(digests.mismatch(other) == "crc32c")
        other.md5 = []
        #expect(digests.mismatch(other) == "md5")
    }

    @Test(arguments: [
        ("content-md5", "abc", Problem.Code.invalidArgument),
        ("content-md5", "AAAA", .invalidArgument), ("content-md5", "", .invalidArgument),
        ("content-digest", "md5", .invalidArgument), ("content-digest", "md5=1", .invalidArgument),
        ("content-digest", "md5=:AAAA:", .invalidArgument),
        ("content-digest", "sha-256=:!:", .invalidArgument),
        ("content-digest", "SHA-256=:AAAA:", .invalidArgument),
        ("content-digest", "x=:AAAA:,", .invalidArgument),
        ("content-digest", "x=:AAAA", .invalidArgument),
        ("repr-digest", "=", .invalidArgument),
        (
            "repr-digest", "md5=:AAAAAAAAAAAAAAAAAAAAAA==:", .checksumMismatch
        ),
    ])
    func rejectsInvalidFields(name: String, value: String, code: Problem.Code) {
        let both = fields([("content-md5", name == "content-md5" ? value : md5), (name, value)])
        let problem = #expect(throws: Problem.self) { try ExpectedDigests(both) }
        #expect(problem?.code == code)
    }

    @Test(arguments: [
        "", "  ", "a", "a;b;c=1", "a=1", "a=-1.5", "a=tok/en:x", "a=\"q\\\"\"", "a=?0", "a=@123",
        "a=(1 2);x", "a=()", "a=1,\t b=2", "*a.b-c_d=*x",
    ])
    func readsDictionaries(text: String) {
        var dictionary = StructuredDictionary(bytes(text))
        #expect(dictionary.parse() != nil)
    }

    @Test(arguments: [
        "A=1", "a=", "a=1 b", "a=,", ",", "a=\"x", "a=\"\\n\"", "a=(1,2)", "a=(1", "a=1.",
        "a=1.1234",
        "a=?2", "a=1234567890123456", "a;=1", "a=(1\"x\")", "a=@x", "a=\u{e9}",
    ])
    func rejectsOthers(text: String) {
        var dictionary = StructuredDictionary(bytes(text))
        #expect(dictionary.parse() == nil)
    }

    @Test func aLaterMemberReplacesAnEarlier() {
        var dictionary = StructuredDictionary(bytes("a=:AA==:, b=1, a=:AQ==:"))
        let members = dictionary.parse()
        #expect(members?.map(\.key) == ["b", "a"])
        #expect(members?.last?.value == [1])
    }

    @Test func survivesAnyBytes() {
        var random = SeededGenerator(7)
        let seeds = ["sha-256=:\(sha256):, md5=:\(md5):", "a=(1 2);x=\"y\\\"\", b=?1", "c=-1.5;d"]
        for _ in 0..<20_000 {
            var dictionary = StructuredDictionary(random.mutation(of: seeds)[...])
            _ = dictionary.parse()
        }
    }
}

@Suite struct Base64Tests {
    @Test(arguments: [
        ("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="),
        ("fooba", "Zm9vYmE="), ("foobar", "Zm9vYmFy"),
    ])
    func vectorsOfTheSpecification(plain: String, encoded: String) {
        #expect(Base64.encode(Array(plain.utf8)) == encoded)
        #expect(Base64.decode(bytes(encoded)) == Array(plain.utf8))
    }

    @Test(arguments: ["Zg", "Zg=", "Zh==", "Zm9=", "Z===", "====", "Zm9v=", "Zm-_", "Zm 9", "=Zg="])
    func rejectsInexactText(text: String) { #expect(Base64.decode(bytes(text)) == nil) }

    @Test func roundTrip() {
        var random = SeededGenerator(8)
        for count in 0..<200 {
            let data = (0..<count).map { _ in UInt8.random(in: 0...255, using: &random) }
            #expect(Base64.decode(bytes(Base64.encode(data))) == data)
            #expect(Base64.decodeForURL(bytes(Base64.encodeForURL(data))) == data)
        }
    }
}

@Suite struct ContentDispositionTests {
    @Test(arguments: [
        ("attachment", "attachment"),
        (#"attachment; filename="a.png""#, #"attachment; filename="a.png""#),
        (
            #"attachment; filename="имя.png""#,
            #"attachment; filename="___.png"; filename*=UTF-8''%D0%B8%D0%BC%D1%8F.png"#
        ),
        ("inline;FileName = ü ;x=1", "inline;FileName = _ ;x=1; filename*=UTF-8''%C3%BC"),
        (
            #"inline; filename="ü\"; \\a"; size=3"#,
            #"inline; filename="_\"; \\a"; size=3; filename*=UTF-8''%C3%BC%22%3B%20%5Ca"#
        ),
        // The exact name is there already.
        (
            "inline; filename=ü; filename*=UTF-8''%C3%A4",
            "inline; filename=_; filename*=UTF-8''%C3%A4"
        ),
        // No name, or a malformed one: nothing is added to it.
        (#"inline; filename="ü"#, #"inline; filename="_"#),
        (#"inline; filename="ü\"#, #"inline; filename="_\"#),
        ("ü", "_"), ("filename=ü", "filename=_"),
        ("inline; other=😀; filename=a", "inline; other=_; filename=a"),
        (";;=;filename=ü", ";;=;filename=_; filename*=UTF-8''%C3%BC"),
    ])
    func isASCII(_ value: String, _ field: String) {
        #expect(ContentDisposition.field(value) == field)
    }
}
