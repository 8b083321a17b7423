import Testing
import Wire

@testable import HTTPClient

/// Reads one head that comes in one piece.
private func parse(_ text: String, respondsToHead: Bool = false) throws(HTTP1SyntaxError)
    -> HTTP1ResponseHead?
{
    var parser = HTTP1ResponseParser(respondsToHead: respondsToHead)
    return try parser.parse(Array(text.utf8).span)
}

@Suite("The parser of HTTP/1.1 responses")
struct ResponseParserTests {
    @Test("Status, fields and framing are read")
    func reading() throws {
        let text =
            "HTTP/1.1 206 Partial Content\r\nETag: \"x\" \r\nContent-Length:  12\t\r\nX-Empty:\r\n\r\nrest"
        let head = try #require(try parse(text))
        #expect(head.status == 206)
        #expect(head.fields["etag"] == "\"x\"")
        #expect(head.fields["x-empty"] == "")
        #expect(head.framing == .length(12) && head.contentLength == 12)
        #expect(head.keepAlive)
        #expect(head.length == text.utf8.count - 4)
    }

    @Test(
        "Status, method and fields determine the framing of the body",
        arguments: [
            ("HTTP/1.1 200 OK\r\n\r\n", .untilClose, false),
            ("HTTP/1.1 200\r\ncontent-length: 3\r\n\r\n", .length(3), true),
            ("HTTP/1.1 200 \r\ncontent-length: 0\r\n\r\n", .none, true),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n", .chunked, true),
            ("HTTP/1.1 204 X\r\ncontent-length: 3\r\n\r\n", .none, true),
            ("HTTP/1.1 304 X\r\ntransfer-encoding: chunked\r\n\r\n", .none, true),
            ("HTTP/1.1 100 Continue\r\n\r\n", .none, true),
            (
                "HTTP/1.1 200 OK\r\nconnection: Foo, CLOSE\r\ncontent-length: 3\r\n\r\n",
                .length(3), false
            ),
            ("HTTP/1.0 200 OK\r\ncontent-length: 3\r\n\r\n", .length(3), false),
            (
                "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\ncontent-length: 3\r\n\r\n",
                .length(3), true
            ),
            ("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\n", .untilClose, false),
        ] as [(String, HTTP1ResponseHead.Framing, Bool)])
    func framing(text: String, framing: HTTP1ResponseHead.Framing, keepAlive: Bool) throws {
        let head = try #require(try parse(text))
        #expect(head.framing == framing)
        #expect(head.keepAlive == keepAlive)
        let response = try #require(try parse(text, respondsToHead: true))
        #expect(response.framing == .none)
        #expect(response.contentLength == head.contentLength)
    }

    @Test(
        "Input that two parsers could read differently is rejected",
        arguments: [
            "SSH-2.0-x", "HTTP/2", "HTTP/1.1x200 OK\r\n\r\n", "HTTP/1.2 200 OK\r\n\r\n",
            "\r\nHTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 99 X\r\n\r\n", "HTTP/1.1 600 X\r\n\r\n", "HTTP/1.1 2x0 X\r\n\r\n",
            "HTTP/1.1 2000 X\r\n\r\n",
            "HTTP/1.1  200 X\r\n\r\n", "HTTP/1.1 200 O\u{1}K\r\n\r\n", "HTTP/1.1 200 OK\n\r\n",
            "HTTP/1.1 101 Switching\r\n\r\n",
            "HTTP/1.1 200 OK\r\na: b\n\r\n", "HTTP/1.1 200 OK\r\na: b\r\n c\r\n\r\n",
            "HTTP/1.1 200 OK\r\n a: b\r\n\r\n",
            "HTTP/1.1 200 OK\r\na : b\r\n\r\n", "HTTP/1.1 200 OK\r\n: b\r\n\r\n",
            "HTTP/1.1 200 OK\r\nab\r\n\r\n",
            "HTTP/1.1 200 OK\r\na: b\0c\r\n\r\n", "HTTP/1.1 200 OK\r\na: b\rc\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 1, 1\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: +1\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length:\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: identity\r\n\r\n",
            "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        ])
    func rejects(text: String) {
        #expect(throws: HTTP1SyntaxError.self) { try parse(text) }
    }

    @Test("A TLS alert is reported as such")
    func alert() {
        let error = #expect(throws: HTTP1SyntaxError.self) { try parse("\u{15}\u{3}\u{1}") }
        #expect(error?.reason.contains("speaks TLS") == true)
    }

    @Test("A head can arrive byte by byte, or in two pieces")
    func pieces() throws {
        let text =
            "HTTP/1.1 200 OK\r\nServer: a b\r\nContent-Length: 5\r\nX-Long: \(String(repeating: "y", count: 90))\r\n\r\n"
        let bytes = Array(text.utf8)
        let whole = try #require(try parse(text))
        for split in 0..<bytes.count {
            var parser = HTTP1ResponseParser(respondsToHead: false)
            let early = try parser.parse(bytes.span.extracting(first: split))
            #expect(early == nil)
            let head = try #require(try parser.parse(bytes.span))
            #expect(head.fields == whole.fields && head.length == whole.length)
        }
        var parser = HTTP1ResponseParser(respondsToHead: false)
        for end in 1..<bytes.count {
            let early = try parser.parse(bytes.span.extracting(first: end))
            #expect(early == nil)
        }
        #expect(try parser.parse(bytes.span)?.fields == whole.fields)
    }

    @Test("A head has at most 64 KiB and 1,024 fields")
    func limits() throws {
        let many = String(repeating: "a: b\r\n", count: HTTP1ResponseParser.maximumFields)
        #expect(try parse("HTTP/1.1 200 OK\r\n\(many)\r\n")?.fields.count == 1024)
        let tooMany = #expect(throws: HTTP1SyntaxError.self) {
            try parse("HTTP/1.1 200 OK\r\n\(many)c: d\r\n\r\n")
        }
        #expect(tooMany?.isTooLong == true)
        let start = "HTTP/1.1 200 OK\r\na: "
        let room = HTTP1ResponseParser.maximumBytes - start.utf8.count - 4
        let fits = start + String(repeating: "b", count: room) + "\r\n\r\n"
        #expect(try parse(fits)?.length == HTTP1ResponseParser.maximumBytes)
        for text in [
            start + String(repeating: "b", count: room + 1) + "\r\n\r\n",
            start + String(repeating: "b", count: room + 4),
        ] {
            let tooLong = #expect(throws: HTTP1SyntaxError.self) { try parse(text) }
            #expect(tooLong?.isTooLong == true)
        }
    }
}
