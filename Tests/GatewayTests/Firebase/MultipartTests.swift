import Testing
import Wire

@testable import Gateway

@Suite("Multipart bodies") struct MultipartTests {
    /// What a body came to.
    struct Outcome: Equatable {
        var description: String?
        var type: String?
        var content: String?
        var reason: String?
    }

    /// - Parameters:
    ///   - chunk: Bytes that arrive at a time.
    ///   - room: Bytes of content that are taken at a time.
    private func parse(_ body: String, chunk: Int = .max, room: Int = .max, limit: Int = 1000)
        -> Outcome
    {
        var parser = MultipartParser(
            MultipartBoundary("multipart/related; boundary=B")!, maximumDescription: limit)
        var content: [UInt8] = []
        let bytes = Array(body.utf8)
        do {
            var offset = 0
            while offset < bytes.count {
                let part = Array(bytes[offset..<min(bytes.count, offset + min(chunk, bytes.count))])
                offset += try parser.write(part.span.bytes) { bytes in
                    let taken = min(room, bytes.byteCount)
                    bytes.extracting(0..<taken).withUnsafeBytes { content += $0 }
                    return taken
                }
            }
            try parser.end()
        } catch {
            return Outcome(reason: (error as? MultipartParser.Malformed)?.reason ?? "\(error)")
        }
        return Outcome(
            description: String(decoding: parser.description, as: UTF8.self),
            type: parser.contentType, content: String(decoding: content, as: UTF8.self))
    }

    private func body(_ description: String, _ content: String, lineEnd: String = "\r\n") -> String {
        let lines = [
            "--B", "Content-Type: application/json", "", description, "--B", "X-A: b",
            "content-type:\ta/b ", "", content, "--B--",
        ]
        return lines.joined(separator: lineEnd)
    }

    @Test(arguments: [
        "", "x", "\r\n", "\r", "\r\n--", "\r\n-", "\r\r\n--A", "\r\n--\r\n--", "--B--",
        "\r\n\r\n--C",
        "\r\n--b\r\n\r\n", "\r\n-\r\n--\r\n",
    ])
    func keepsContentHoweverItArrives(content: String) {
        let wanted = Outcome(description: "{}", type: "a/b", content: content)
        for chunk in [1, 2, 3, 7, .max] {
            for room in [1, 2, 5, .max] {
                #expect(parse(body("{}", content), chunk: chunk, room: room) == wanted)
                #expect(parse(body("{}", content) + "\r\nepilogue--B", chunk: chunk) == wanted)
            }
        }
    }

    @Test(arguments: [
        "", "x", "\n", "\r", "\r\n", "\r\n-", "\n--", "\n\n--A", "--B--", "\r\n--b\n\n",
        "\n-\n--\n",
    ])
    func linesMayEndWithLFAlone(content: String) {
        let wanted = Outcome(description: "{}", type: "a/b", content: content)
        let text = body("{}", content, lineEnd: "\n")
        for chunk in [1, 2, 3, 7, .max] {
            for room in [1, 2, 5, .max] {
                #expect(parse(text, chunk: chunk, room: room) == wanted)
                #expect(parse(text + "\nepilogue--B", chunk: chunk) == wanted)
            }
        }
    }

    @Test("A bare LF is content if lines end with CRLF", arguments: ["\n--B", "\n--B--", "\n"])
    func bareLF(content: String) {
        let wanted = Outcome(description: "{}", type: "a/b", content: content)
        for chunk in [1, 3, .max] { #expect(parse(body("{}", content), chunk: chunk) == wanted) }
    }

    @Test(arguments: [
        "\r\n", "\n", "preamble\r\n", "several\nlines\r\n\n", "-\n", "--\n", "--A\r\n", " --B\n",
        "--\r\n--\r\n",
        String(repeating: "x", count: 8191) + "\n",
    ])
    func ignoresWhatPrecedesTheFirstBoundary(preamble: String) {
        let wanted = Outcome(description: "{}", type: "a/b", content: "x")
        for chunk in [1, 2, 5, .max] {
            for lineEnd in ["\r\n", "\n"] {
                let text = preamble + body("{}", "x", lineEnd: lineEnd)
                #expect(parse(text, chunk: chunk) == wanted)
            }
        }
    }

    @Test(arguments: [
        ("", "before its last boundary"), ("--B", "before its last boundary"),
        ("x", "before its last boundary"), ("\r\n--B\r\n", "before its last boundary"),
        (String(repeating: "x", count: 8193), "does not begin with"),
        (String(repeating: "x\n", count: 4097), "does not begin with"),
        ("--B--", "two parts"), ("--Bx", "end of its line"), ("x\n--Bx", "end of its line"),
        ("--B \r\r\n", "end of its line"), ("--B -", "end of its line"),
        ("--B-\n", "end of its line"),
        ("--B\nContent-Type: a\n\n{}\n--B\r\n", "end of its line"),
        ("--B\r\nContent-Type: a\r\n\r\n{}\r\n--B\n", "end of its line"),
        ("--B\nA: b\r\n", "control character"),
        ("--B\r\n\r\n", "one Content-Type"), ("--B\r\nA\r\n", "not a field"),
        ("--B\r\n: x\r\n", "not a field"), ("--B\r\nA b: x\r\n", "not a field"),
        ("--B\r\nA: b\n\r\n", "control character"), ("--B\r\nA: b\rx", "control character"),
        ("--B\r\nContent-Type: \r\n", "one Content-Type"),
        ("--B\r\nContent-Type: a\r\nCONTENT-TYPE: a\r\n", "one Content-Type"),
        ("--B\r\nA: \(String(repeating: "a", count: 8200))", "too long"),
        ("--B\r\nContent-Type: a\r\n\r\n{}\r\n--B--", "two parts"),
        ("--B\r\nContent-Type: a\r\n\r\n\(String(repeating: "a", count: 1001))", "1000 bytes"),
    ])
    func saysWhatIsWrong(body: String, reason: String) {
        for chunk in [1, 3, .max] {
            let found = parse(body, chunk: chunk).reason
            #expect(found?.contains(reason) == true, "\(found ?? "nothing")")
        }
    }

    /// Damaged bodies come to the same however they arrive.
    @Test func randomBodies() {
        var state: UInt64 = 7
        func random(_ below: Int) -> Int {
            state = state &* 6_364_136_223_846_793_005 &+ 1_442_695_040_888_963_407
            return Int(state >> 33) % below
        }
        let pieces = [
            "\r", "\n", "--", "--B", "B", "\r\n--B", "\r\n--B--", "\r\n\r\n", "x", ":", "A: b",
        ]
        var complete = 0
        for _ in 0..<3000 {
            var text = Array(body("{}", "content").utf8)
            for _ in 0..<random(3) {
                let start = random(text.count)
                let end = min(text.count, start + random(4))
                text.replaceSubrange(start..<end, with: Array(pieces[random(pieces.count)].utf8))
            }
            let damaged = String(decoding: text, as: UTF8.self)
            let whole = parse(damaged)
            if whole.reason == nil { complete += 1 }
            #expect(parse(damaged, chunk: 1) == whole)
            #expect(parse(damaged, chunk: 1 + random(9), room: 1 + random(5)) == whole)
            #expect(whole.content?.contains("\r\n--B") != true)
        }
        #expect((100...2900).contains(complete))
    }

    @Test func hasNoThirdPart() {
        let third = body("{}", "x").dropLast(2) + "\r\nContent-Type: a\r\n\r\ny\r\n--B--"
        #expect(parse(String(third)).reason == "the body has two parts")
        #expect(parse(String(body("{}", "x").dropLast())).reason != nil)
    }

    @Test func takesNoContentBeforeItIsWanted() throws {
        var parser = MultipartParser(
            MultipartBoundary("multipart/related; boundary=B")!, maximumDescription: 10)
        let text = body("{}", "content")
        let bytes = Array(text.utf8)
        let taken = try parser.write(bytes.span.bytes) { _ in 0 }
        #expect(parser.contentType == "a/b" && parser.description == Array("{}".utf8))
        #expect(String(decoding: bytes[taken...], as: UTF8.self) == "content\r\n--B--")
    }

    @Test(arguments: [
        ("multipart/related;boundary=B", "B"),
        ("Multipart/Related ; a=b; Boundary = \"a b\" ; c", nil),
        ("Multipart/Related ; a=b; Boundary = \"a b\" ; c=\";\"", "a b"),
        ("multipart/related; boundary=\"a\\b\"", "ab"), ("multipart/related; boundary='x'", "x"),
        ("multipart/related; boundary=''", "''"), ("multipart/related; boundary=\"a \"", nil),
        ("multipart/related; boundary=a\"b", nil), ("multipart/form-data; boundary=B", nil),
        ("multipart/related", nil), ("boundary=B", nil), ("multipart/related; boundary=\"B", nil),
        ("multipart/related;; boundary=B;", "B"),
        ("multipart/related; boundary=B; boundary=B", nil),
    ])
    func readsBoundaries(type: String, boundary: String?) {
        let found = MultipartBoundary(type).map { String(decoding: $0.bytes, as: UTF8.self) }
        #expect(found == boundary)
    }
}
