import Testing
import Wire

@testable import HTTPServer

@Suite struct HTTP1ParserTests {
    private func parse(_ text: String, limits: ServerLimits = ServerLimits()) throws -> HTTP1Head? {
        try HTTP1Parser(limits: limits).parse(Array(text.utf8).span)
    }

    private func status(_ text: String, limits: ServerLimits = ServerLimits()) -> Int? {
        do {
            _ = try parse(text, limits: limits)
            return nil
        } catch {
            return (error as? HTTP1Error)?.status
        }
    }

    @Test func readsAHead() throws {
        let text = "PUT /a?b HTTP/1.1\r\nHost: h:1\r\nX-Y: \t z \r\nContent-Length: 7\r\n\r\nrest"
        let head = try #require(try parse(text))
        #expect(head.request.method == "PUT")
        #expect(head.request.target == "/a?b")
        #expect(head.request.authority == "h:1")
        #expect(head.request.fields["x-y"] == "z")
        #expect(head.request.contentLength == 7)
        #expect(head.framing == .length(7))
        #expect(head.keepAlive)
        #expect(head.length == text.utf8.count - 4)
    }

    @Test func waitsForEveryByteOfAHead() throws {
        let text = "\r\nPUT /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
        for count in 0..<text.utf8.count {
            #expect(try parse(String(text.prefix(utf8: count))) == nil, "\(count)")
        }
        #expect(try #require(try parse(text)).framing == .chunked)
    }

    @Test(arguments: [
        ("http://b.c:8/x?y", "b.c:8", "/x?y"), ("HTTPS://b", "b", "/"), ("http://b?q", "b", "/?q"),
        ("http://[::1]:2/", "[::1]:2", "/"), ("/x", "h", "/x"),
        ("http://b/\u{301}x", "b", "/\u{301}x"),
    ])
    func readsTargets(target: String, authority: String, path: String) throws {
        let head = try #require(try parse("GET \(target) HTTP/1.1\r\nHost: h\r\n\r\n"))
        #expect(head.request.authority == authority)
        #expect(head.request.target.utf8.elementsEqual(path.utf8))
    }

    @Test(arguments: [
        "GET http://me@b/ HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET http://b\"/ HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET http:// HTTP/1.1\r\nHost: h\r\n\r\n", "GET * HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /a#b HTTP/1.1\r\nHost: h\r\n\r\n", "GET / HTTP/1.1\r\nHost: a<b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n", "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: h\r\n X: y\r\n\r\n", "GET / HTTP/1.1\nHost: h\r\n\r\n",
        "GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
    ])
    func rejects(text: String) { #expect(status(text) == 400) }

    @Test func aKelvinSignIsNoK() {
        let head = "PUT / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: "
        #expect(status(head + "chun\u{212a}ed\r\n\r\n") == 501)
        #expect(status(head + "cHuNKed\r\n\r\n") == nil)
    }

    @Test func keepsToItsLimits() {
        var limits = ServerLimits()
        limits.targetBytes = 10
        limits.headerFields = 3
        limits.headerBytes = 120
        let host = " HTTP/1.1\r\nHost: h\r\n"
        #expect(status("GET /345678901\(host)\r\n", limits: limits) == nil)
        #expect(status("GET /3456789012\(host)\r\n", limits: limits) == 414)
        #expect(status("GET /" + String(repeating: "a", count: 200), limits: limits) == 414)
        #expect(status("GET /\(host)A: b\r\nA: b\r\nA: b\r\n\r\n", limits: limits) == 431)
        #expect(
            status("GET /\(host)A: " + String(repeating: "b", count: 200), limits: limits) == 431)
        limits.headerFields = 100
        #expect(status("GET /\(host)A: b\r\nA: b\r\nA: b\r\n\r\n", limits: limits) == 431)
    }
}

@Suite struct ChunkedDecoderTests {
    private func body(_ text: String, limit: Int = 100) throws -> [UInt8]? {
        var limits = ServerLimits()
        limits.chunkLineBytes = limit
        var place = 0
        return try readChunks(Array(text.utf8), &place, limits)
    }

    @Test(arguments: [
        ("0\r\n\r\n", ""), ("5\r\nhello\r\n0\r\n\r\n", "hello"),
        ("1\r\na\r\n01;x=\"y z\"\r\nb\r\n000\r\n\r\n", "ab"),
        ("A\r\n0123456789\r\n0\r\nX: y\r\nZ:\r\n\r\n", "0123456789"),
    ])
    func decodes(text: String, wanted: String) throws {
        #expect(try body(text) == Array(wanted.utf8))
        for count in 0..<text.utf8.count {
            #expect(try body(String(text.prefix(utf8: count))) == nil)
        }
    }

    @Test func aSplitChangesNothing() throws {
        let bytes = Array("3;a\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\nX: y\r\n\r\n".utf8)
        for split in 0...bytes.count {
            var decoder = ChunkedDecoder(lineLimit: 100)
            var taken: [UInt8] = []
            var ended = false
            for part in [Array(bytes[..<split]), Array(bytes[split...])] {
                var place = 0
                parts: while !ended {
                    switch try decoder.next(part.span, at: &place) {
                    case .data(let count):
                        taken += part[place..<place + count]
                        place += count
                    case .incomplete: break parts
                    case .end: ended = true
                    }
                }
            }
            #expect(ended && taken == Array("abc0123456789abcdef".utf8))
        }
    }

    @Test(arguments: [
        "\r\n", "x\r\n", "+1\r\n", "0x1\r\n", " 1\r\n", "1 \r\n", "1\n", "1\r\r", "1\r\nab",
        "1\r\na\n",
        "10000000000000000\r\n", "1;a\nb", "1;\u{1}", "0\r\nX\r\n", "0\r\n: y\r\n",
        "0\r\nX: y\r\n z\r\n",
        "0\r\nX: y\r\n\n", "0\r\n\n",
    ])
    func rejects(text: String) { #expect(throws: HTTP1Error.self) { try body(text) } }

    @Test func boundsLinesAndTrailers() {
        let long = String(repeating: "a", count: 200)
        #expect(throws: HTTP1Error.self) { try body("1;" + long) }
        #expect(throws: HTTP1Error.self) { try body("0\r\nX: " + long) }
        let many = String(repeating: "X: y\r\n", count: 40)
        #expect(throws: HTTP1Error.self) { try body("0\r\n" + many) }
    }
}

extension String {
    fileprivate func prefix(utf8 count: Int) -> String {
        String(decoding: Array(utf8.prefix(count)), as: UTF8.self)
    }
}
