import Testing
import Wire

@testable import Buckets
@testable import HTTPClient

@Suite("The metadata of objects that are read again")
struct S3HeadCacheTests {
    private let usual = [
        ("date", "Sun, 06 Nov 1994 08:49:37 GMT"), ("x-amz-request-id", "1"), ("etag", "\"a\""),
        ("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT"), ("content-length", "5"),
        ("x-amz-meta-color", "red"), ("x-amz-checksum-crc32c", "AAAAAA=="),
    ]

    private func response(_ list: [(String, String)], length: UInt64? = 5) -> ClientResponse {
        var fields = HeaderFields()
        for (name, value) in list { fields.append(name: name, value) }
        return ClientResponse(
            status: 200, fields: fields, contentLength: length, body: EmptySource.shared)
    }

    private func replaced(_ name: String, _ value: String?) -> [(String, String)] {
        usual.compactMap { $0.0 == name ? value.map { (name, $0) } : $0 }
    }

    @Test("They are known only if every field that is read is the same")
    func sameFields() {
        let cache = S3HeadCache()
        let first = response(usual)
        let object = S3Head(first.fields).metadata("a", size: 5, isAWS: true)
        func known(
            _ response: ClientResponse, name: String = "a", tagsAreMD5: Bool = true
        ) -> ObjectMetadata? {
            cache.object(name, response, tagsAreMD5: tagsAreMD5)
        }
        #expect(known(first) == nil)
        cache.keep(object, first, tagsAreMD5: true)
        #expect(known(first) === object)
        #expect(known(response(replaced("date", "Mon, 07 Nov 1994 08:49:37 GMT"))) === object)
        #expect(known(response(replaced("x-amz-request-id", nil))) === object)
        for (name, value) in usual.dropFirst(2) {
            #expect(known(response(replaced(name, value + "0"))) == nil)
            #expect(known(response(replaced(name, nil))) == nil)
        }
        #expect(known(response(usual + [("x-amz-meta-size", "2")])) == nil)
        #expect(known(response(usual + [("content-range", "bytes 0-4/9")])) == nil)
        #expect(
            known(response(usual, length: 6)) == nil && known(response(usual, length: nil)) == nil)
        #expect(known(first, name: "b") == nil && known(first, tagsAreMD5: false) == nil)
    }

    @Test("Large headers are not kept")
    func largeHeaders() {
        let cache = S3HeadCache()
        let large = response(usual + [("x-amz-meta-note", String(repeating: "x", count: 1024))])
        let object = S3Head(large.fields).metadata("a", size: 5, isAWS: true)
        cache.keep(object, large, tagsAreMD5: true)
        #expect(cache.object("a", large, tagsAreMD5: true) == nil)
    }
}
