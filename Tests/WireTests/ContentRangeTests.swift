import Testing
import Wire

/// `Content-Range`.
@Suite struct ContentRangeTests {
    @Test func readsRanges() throws {
        let part = try #require(ContentRange("bytes 2-4/10"))
        #expect(part.range == 2..<5 && part.size == 10)
        #expect(ContentRange("bytes 0-0/1")?.range == 0..<1)
        let last = "9223372036854775806"
        #expect(
            ContentRange("bytes \(last)-\(last)/9223372036854775807")?.size == UInt64(Int64.max))
    }

    @Test(arguments: [
        "", "bytes ", "bytes 0-9", "bytes 0-9/*", "bytes */10", "bytes 5-4/10", "bytes 0-10/10",
        "bytes 0-9/9223372036854775808", "bytes 0-18446744073709551615/18446744073709551616",
        "bytes +0-9/10", "bytes -9/10", "bytes 0-/10", "bytes 0-9/", "bytes  0-9/10",
        "bytes 0-9/10 ", "bytes 0/9-10", "bytes 1/2-3/4", "Bytes 0-9/10", "items 0-9/10",
        "bytes=0-9/10", "bytes 0-9/10/11", "bytes 0--9/10",
    ])
    func takesNothingElse(text: String) {
        #expect(ContentRange(text) == nil)
    }
}
