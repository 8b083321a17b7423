import Testing

@testable import Wire

@Suite struct FieldLineTests {
    /// What RFC 9112, section 5, says of a line, byte by byte.
    private func expected(_ line: [UInt8]) -> (name: [UInt8], value: [UInt8])? {
        let name = line.prefix { ASCII.isToken($0) }
        guard !name.isEmpty, name.count < 256, line.dropFirst(name.count).first == 0x3a else {
            return nil
        }
        let value = ASCII.trimmed(line[(name.count + 1)...])
        guard !value.contains(where: { ASCII.isControl($0) && $0 != 0x09 }) else { return nil }
        return (name.map(ASCII.lowercased), Array(value))
    }

    private func check(_ line: [UInt8]) {
        var fields = HeaderFields()
        fields.append("first", "1")
        let before = fields
        let parts = try? fields.append(line: line.span)
        guard let (name, value) = expected(line) else {
            #expect(parts == nil && fields == before)
            return
        }
        #expect(parts?.nameLength == name.count && (parts?.value).map { Array(line[$0]) } == value)
        let all = fields.all(withPrefix: "")
        #expect(all.count == 2 && Array(all[1].suffix.utf8) == name && all[1].value == value)
    }

    @Test func readsALineLikeItsGrammar() {
        let lines = [
            "", ":", "a:", "a: b", "Content-Type: text/html", "x_y.z:\t 12345678 \t", "A-B:1234567",
            "Last-Modified: Wed, 25 Nov 2026 17:53:31 GMT", "no colon here", " a: b", "a : b",
            "Some-Longer-Name-1:12345678", "a:\u{e9}\u{fc}",
        ]
        for line in lines {
            let bytes = Array(line.utf8)
            check(bytes)
            // Every byte at every place.
            for index in bytes.indices {
                for byte in UInt8.min ... .max {
                    var changed = bytes
                    changed[index] = byte
                    check(changed)
                }
            }
        }
        for count in [254, 255, 256, 300] {
            check([UInt8](repeating: 0x41, count: count) + Array(": x".utf8))
        }
    }

    @Test func comparesTheSelectedFields() {
        func fields(_ list: [(String, String)]) -> HeaderFields {
            var fields = HeaderFields()
            for (name, value) in list { fields.append(name: name, value) }
            return fields
        }
        func agree(_ left: [(String, String)], _ right: [(String, String)]) -> Bool {
            fields(left).agrees(with: fields(right)) { $0.first != UInt8(ascii: "d") }
        }
        let base = [("date", "1"), ("etag", "a"), ("x", "")]
        #expect(agree(base, base) && agree([], []) && agree([("d", "1")], []))
        #expect(agree(base, [("etag", "a"), ("date", "22"), ("x", ""), ("date", "3")]))
        #expect(!agree(base, [("etag", "b"), ("x", "")]))
        #expect(!agree(base, [("etag", "a")]) && !agree([("etag", "a")], base))
        #expect(!agree(base, [("x", ""), ("etag", "a")]))
        #expect(!agree([("ab", "c")], [("a", "bc")]))
    }

    @Test func comparesATextWithBytes() {
        for (text, bytes) in [("", ""), ("a", "a"), ("a", "b"), ("a", ""), ("", "a")] {
            let isEqual = Array(bytes.utf8).withUnsafeBufferPointer {
                BytewiseString.areEqual(text, $0)
            }
            #expect(isEqual == (text == bytes))
        }
        let long = String(repeating: "example.org", count: 9)
        #expect(Array(long.utf8).withUnsafeBufferPointer { BytewiseString.areEqual(long, $0) })
    }
}
