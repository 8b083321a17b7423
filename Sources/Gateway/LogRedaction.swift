/// The one place that keeps secrets out of the log.
///
/// Every text that others chose passes it before it is written: error causes, messages, paths, metadata. It finds
/// values by their names (`token=…`, `Authorization: …`, `"X-Goog-Signature": "…"`, also percent-encoded), by an
/// authentication scheme (`Bearer …`) and by the look of a JWT or a static token. Where in doubt it takes too much.
enum LogRedaction {
    static let mark: StaticString = "<redacted>"

    /// Parts of names, in lower case, whose values are secret.
    private static let secretNames = [
        "token", "secret", "passw", "signature", "credential", "authoriz", "cookie", "apikey",
        "api-key", "api_key", "x-amz-", "x-goog-", "uploadid", "upload-id", "upload_id",
        "accesskey", "access-key", "access_key", "private",
    ].map { Array($0.utf8) }
    /// Names, in lower case, whose values go on to the end of the line: lists and pairs stand in them.
    private static let wholeLineNames = ["authoriz", "cookie"].map { Array($0.utf8) }
    private static let longestName = 64

    /// Whether a value of this name is secret.
    static func isSecret(name: String) -> Bool {
        contains(lowercased(name.utf8.span, 0..<name.utf8.count), secretNames)
    }

    /// The text with its secrets replaced; nil where there is none.
    static func redacted(_ text: Span<UInt8>) -> [UInt8]? {
        var result: [UInt8] = []
        var copied = 0
        var index = 0
        while index < text.count {
            guard let secret = secret(in: text, at: index) else {
                index += 1
                continue
            }
            append(text, copied..<max(copied, secret.lowerBound), to: &result)
            mark.withUTF8Buffer { result.append(contentsOf: $0) }
            copied = secret.upperBound
            index = secret.upperBound
        }
        guard copied > 0 else { return nil }
        append(text, copied..<text.count, to: &result)
        return result
    }

    /// The secret, never empty, that the byte at `index` introduces or begins.
    private static func secret(in text: Span<UInt8>, at index: Int) -> Range<Int>? {
        switch text[index] {
        case UInt8(ascii: "="), UInt8(ascii: ":"):
            return named(text, separator: index..<index + 1)
        case UInt8(ascii: "%"):
            guard index + 3 <= text.count else { return nil }
            if text[index + 1] == UInt8(ascii: "2"), text[index + 2] == UInt8(ascii: "0") {
                return afterScheme(text, space: index..<index + 3)
            }
            guard text[index + 1] == UInt8(ascii: "3") else { return nil }
            // %3D is "=" and %3A is ":".
            switch text[index + 2] | 0x20 {
            case UInt8(ascii: "d"), UInt8(ascii: "a"):
                return named(text, separator: index..<index + 3)
            default: return nil
            }
        case UInt8(ascii: " "), UInt8(ascii: "+"):
            return afterScheme(text, space: index..<index + 1)
        case UInt8(ascii: "J"): return jsonWebToken(text, at: index - 2)
        case UInt8(ascii: "_"): return staticToken(text, at: index - 6)
        default: return nil
        }
    }

    // MARK: By name

    private static func named(_ text: Span<UInt8>, separator: Range<Int>) -> Range<Int>? {
        var end = separator.lowerBound
        while end > 0, isQuoteOrSpace(text[end - 1]) { end -= 1 }
        var start = end
        while start > 0, end - start < longestName, isNameByte(text[start - 1]) { start -= 1 }
        guard start < end else { return nil }
        let name = lowercased(text, start..<end)
        guard contains(name, secretNames) else { return nil }
        let isHeader = separator.count == 1 && text[separator.lowerBound] == UInt8(ascii: ":")
        // What follows is why they could not be had: no field and no parameter has that name.
        if isHeader, name.elementsEqual("credentials".utf8) { return nil }
        return value(
            text, from: separator.upperBound,
            toLineEnd: isHeader || contains(name, wholeLineNames))
    }

    private static func value(_ text: Span<UInt8>, from start: Int, toLineEnd: Bool) -> Range<Int>?
    {
        var start = start
        while start < text.count, text[start] == UInt8(ascii: " ") { start += 1 }
        if start + 1 < text.count, text[start] == UInt8(ascii: "\\") { start += 1 }
        var quote: UInt8?
        if start < text.count, text[start] == UInt8(ascii: "\"") || text[start] == UInt8(ascii: "'")
        {
            quote = text[start]
            start += 1
        }
        var end = start
        while end < text.count, !isValueEnd(text, end, quote, toLineEnd) { end += 1 }
        return start < end ? start..<end : nil
    }

    private static func isValueEnd(
        _ text: Span<UInt8>, _ index: Int, _ quote: UInt8?, _ toLineEnd: Bool
    ) -> Bool {
        let byte = text[index]
        if byte == UInt8(ascii: "\n") || byte == UInt8(ascii: "\r") { return true }
        if let quote { return byte == quote }
        if toLineEnd { return false }
        return byte <= 0x20 || byte == UInt8(ascii: "&") || byte == UInt8(ascii: ",")
            || byte == UInt8(ascii: ";") || byte == UInt8(ascii: "#")
    }

    // MARK: By look

    /// - Parameter space: Where it stands, perhaps encoded.
    private static func afterScheme(_ text: Span<UInt8>, space: Range<Int>) -> Range<Int>? {
        var start = space.lowerBound
        while start > 0, space.lowerBound - start < 9, isNameByte(text[start - 1]) { start -= 1 }
        let scheme = String(
            decoding: lowercased(text, start..<space.lowerBound), as: UTF8.self)
        guard ["bearer", "firebase", "basic", "aws4-hm"].contains(scheme) else { return nil }
        let end = tokenEnd(text, from: space.upperBound)
        return end - space.upperBound > 7 ? space.upperBound..<end : nil
    }

    private static func jsonWebToken(_ text: Span<UInt8>, at index: Int) -> Range<Int>? {
        guard index >= 0, text[index] == UInt8(ascii: "e"), text[index + 1] == UInt8(ascii: "y")
        else { return nil }
        let end = tokenEnd(text, from: index)
        guard end - index >= 20 else { return nil }
        for at in index..<end where text[at] == UInt8(ascii: ".") { return index..<end }
        return nil
    }

    /// What `sluice token new` makes: `sluice_` and 43 characters. No name of a metric is that long.
    private static func staticToken(_ text: Span<UInt8>, at index: Int) -> Range<Int>? {
        let start = "sluice_".utf8
        guard index >= 0, index + start.count <= text.count,
            zip(index..., start).allSatisfy({ text[$0] == $1 })
        else { return nil }
        let end = tokenEnd(text, from: index)
        return end - index >= start.count + 43 ? index..<end : nil
    }

    /// Where a token68 (RFC 9110, section 11.2) that begins at `start` ends.
    private static func tokenEnd(_ text: Span<UInt8>, from start: Int) -> Int {
        var end = start
        while end < text.count {
            switch text[end] {
            case UInt8(ascii: "+"), UInt8(ascii: "/"), UInt8(ascii: "="), UInt8(ascii: "~"): break
            case let byte where isNameByte(byte): break
            default: return end
            }
            end += 1
        }
        return end
    }

    // MARK: Bytes

    private static func isNameByte(_ byte: UInt8) -> Bool {
        switch byte {
        case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "A")...UInt8(ascii: "Z"),
            UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "_"), UInt8(ascii: "-"),
            UInt8(ascii: "."):
            return true
        default: return false
        }
    }

    private static func isQuoteOrSpace(_ byte: UInt8) -> Bool {
        byte == UInt8(ascii: "\"") || byte == UInt8(ascii: "'") || byte == UInt8(ascii: "\\")
            || byte == UInt8(ascii: " ")
    }

    private static func lowercased(_ text: Span<UInt8>, _ range: Range<Int>) -> [UInt8] {
        range.map { index in
            let byte = text[index]
            return byte >= UInt8(ascii: "A") && byte <= UInt8(ascii: "Z") ? byte | 0x20 : byte
        }
    }

    private static func contains(_ name: [UInt8], _ parts: [[UInt8]]) -> Bool {
        parts.contains { part in
            guard name.count >= part.count else { return false }
            return (0...name.count - part.count).contains {
                name[$0..<$0 + part.count].elementsEqual(part)
            }
        }
    }

    private static func append(_ text: Span<UInt8>, _ range: Range<Int>, to result: inout [UInt8]) {
        text.extracting(range).withUnsafeBufferPointer { result.append(contentsOf: $0) }
    }
}
