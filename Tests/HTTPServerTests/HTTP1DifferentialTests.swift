import TestSupport
import Testing

@testable import HTTPServer

/// Whatever ours reads, libhttp-parser must read alike. It may refuse less than ours; where it rejects more, the
/// difference is listed with its reason.
@Suite struct HTTP1DifferentialTests {
    static let seeds = [
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /b/photos/o/x?metadata HTTP/1.1\r\nhost: a:80\r\nUser-Agent: t \r\nRange: bytes=0-1\r\n\r\n",
        "PUT /x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
        "PUT /x HTTP/1.1\r\nHost: a\r\nContent-Length: 0012\r\n\r\nhello, world",
        "PUT /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "PUT /x HTTP/1.1\r\nTransfer-Encoding: Chunked\r\nHost: a\r\n\r\n"
            + "a;b=c\r\n0123456789\r\n00\r\nX: y\r\nContent-Length: 3\r\n\r\n",
        "POST http://b.c:1/x?y HTTP/1.1\r\nHost: a\r\nConnection: keep-alive\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
        "GET / HTTP/1.0\r\nA: \t b\t\r\n\r\n",
        "\r\nHEAD /%2e%2e/ HTTP/1.1\r\nHost: [::1]\r\nExpect: 100-continue\r\n\r\n",
        "GET /1 HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: a\r\n\r\n",
        "PUT /x HTTP/1.1\r\nHost: a\r\nContent-Length: 33\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n",
    ].map { Array($0.utf8) }

    static let pieces = [
        "\r\n", "\n", "\r", "\0", " ", "\t", ":", ";", ",", "0", "1", "ff", "-", "+", "0x",
        "Content-Length: 3\r\n", "Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n",
        "Transfer-Encoding: identity\r\n", "Host: b\r\n", "Connection: close\r\n", "X: y\r\n z\r\n",
        "chunked", ", chunked", "\u{212a}", "\u{b}", "HTTP/1.1", "HTTP/1.0", "GET / HTTP/1.1\r\n",
        "\r\n\r\n",
        "\r\n0\r\n\r\n", "5\r\nhello\r\n",
    ].map { Array($0.utf8) }

    /// Whether libhttp-parser has a reason of its own to refuse what ours reads as `message`.
    private func isExcused(_ error: String?, _ message: HTTP1Message) -> Bool {
        switch error {
        // It knows a list of methods; any token is one (RFC 9110, section 9.1).
        case "HPE_INVALID_METHOD": !Oracle.methods.contains(message.method)
        // It takes no raw UTF-8, which curl sends, and no absolute form with a path left out before the query.
        case "HPE_INVALID_URL": !message.target.utf8.allSatisfy { $0 < 0x80 }
        // It reads trailers as if they were fields; ours reads them over.
        case "HPE_INVALID_CONTENT_LENGTH", "HPE_UNEXPECTED_CONTENT_LENGTH": message.isChunked
        // It takes names that only begin with Transfer-Encoding for it, and so do its rules for lengths.
        case "HPE_INVALID_TRANSFER_ENCODING":
            message.fields.contains {
                $0.starts(with: "transfer-encoding".utf8)
                    && $0.count > "transfer-encoding".utf8.count
            }
        default: false
        }
    }

    @Test(arguments: [1, 2, 3, 4] as [UInt64])
    func whateverIsReadLibhttpParserReadsAlike(seed: UInt64) {
        var dice = SeededGenerator(seed)
        var compared = 0
        for _ in 0..<6000 {
            let bytes = dice.mutation(of: Self.seeds, with: Self.pieces)
            let ours = readAsSluice(bytes)
            guard !ours.messages.isEmpty else { continue }
            let oracle = Oracle(bytes)
            for (index, message) in ours.messages.enumerated() {
                let shown = Comment(
                    rawValue: String(decoding: bytes, as: UTF8.self).debugDescription)
                guard index < oracle.messages.count else {
                    #expect(
                        isExcused(oracle.error, message),
                        "\(oracle.error ?? "incomplete"): \(shown)")
                    break
                }
                compared += 1
                var theirs = oracle.messages[index]
                if !theirs.target.hasPrefix("/"),
                    theirs.target.hasSuffix(message.target.dropFirst())
                {
                    theirs.target = message.target
                }
                #expect(message == theirs, shown)
            }
        }
        #expect(compared > 1000)
    }
}
