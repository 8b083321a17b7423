import CHTTPParser
import TestSupport
import Testing
import Wire

@testable import HTTPClient

/// What libhttp-parser reads of a response's head.
private struct Verdict {
    var status = 0
    var isChunked = false
    var contentLength: UInt64?
    var keepAlive = false
    var isComplete = false

    init(_ bytes: [UInt8]) {
        var parser = http_parser()
        http_parser_init(&parser, HTTP_RESPONSE)
        var settings = http_parser_settings()
        // 2: neither a body nor another message is read.
        settings.on_headers_complete = { _ in 2 }
        let taken = bytes.withUnsafeBytes {
            http_parser_execute(
                &parser, &settings, $0.baseAddress?.assumingMemoryBound(to: CChar.self), $0.count)
        }
        status = Int(parser.status_code)
        isChunked = parser.flags & UInt32(F_CHUNKED.rawValue) != 0
        contentLength =
            parser.flags & UInt32(F_CONTENTLENGTH.rawValue) != 0
            ? parser.content_length : nil
        keepAlive = http_should_keep_alive(&parser) != 0
        isComplete = parser.http_errno == 0 || taken > 0 && parser.upgrade != 0
    }
}

/// Whatever head ours reads, libhttp-parser reads alike; it may refuse less.
@Suite("HTTP/1.1 responses beside libhttp-parser")
struct ResponseDifferentialTests {
    private static let seeds = [
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nETag: \"x\"\r\n\r\n",
        "HTTP/1.1 206 Partial Content\r\nTransfer-Encoding: chunked\r\nServer: a\r\n\r\n",
        "HTTP/1.0 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 503 Busy\r\nConnection: keep-alive, x\r\ncontent-length: 0012\r\n\r\n",
        "HTTP/1.1 200 \r\nX: \t y \r\nConnection: X, Close\r\n\r\n",
    ].map { Array($0.utf8) }
    private static let pieces = [
        "\r\n", "\n", "\r", "\0", " ", "\t", ":", ",", "0", "1", "-", "+", "\u{b}", "\u{212a}",
        "Content-Length: 3\r\n", "Transfer-Encoding: chunked\r\n",
        "Transfer-Encoding: identity\r\n", "Connection: close\r\n", " z\r\n", "HTTP/1.0",
        "close", "chunked", "keep-alive",
    ].map { Array($0.utf8) }

    @Test("Both parsers give the same result", arguments: [1, 2, 3, 4] as [UInt64])
    func comparison(seed: UInt64) {
        var dice = SeededGenerator(seed)
        var compared = 0
        for _ in 0..<10_000 {
            let bytes = dice.mutation(of: Self.seeds, with: Self.pieces)
            var parser = HTTP1ResponseParser(respondsToHead: false)
            guard let head = try? parser.parse(bytes.span) else { continue }
            let theirs = Verdict(Array(bytes[..<head.length]))
            let shown = Comment(
                rawValue: String(decoding: bytes, as: UTF8.self).debugDescription)
            compared += 1
            #expect(theirs.status == head.status, shown)
            if case .chunked = head.framing {
                // It knows no tab after the coding's name, which is white space there (RFC 9112, section 5).
                #expect(theirs.isChunked || shown.rawValue.contains("hunked\\t"), shown)
            }
            if case .length(let length) = head.framing {
                #expect(theirs.contentLength == length && !theirs.isChunked, shown)
            }
            // If only one of them kept the connection, the next response would begin at a wrong byte. libhttp-parser takes
            // names that only begin with Transfer-Encoding for it, and so rejects a Content-Length beside them.
            let isExcused = head.fields.all(withPrefix: "transfer-encoding")
                .contains { !$0.suffix.isEmpty }
            if head.keepAlive, !isExcused { #expect(theirs.keepAlive, shown) }
        }
        #expect(compared > 2000)
    }
}
