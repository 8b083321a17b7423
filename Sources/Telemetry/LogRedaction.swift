import Wire

/// Removes secrets from log text.
///
/// All untrusted text is redacted before it is written: error causes, messages, paths, metadata. Secrets are found by
/// their names (`token=…`, `Authorization: …`, `"X-Goog-Signature": "…"`, also percent-encoded), by an authentication
/// scheme (`Bearer …`), by the form of a JWT or a static token, and by the path of an upload session (`/u/TOKEN`,
/// `/tus/TOKEN`). When in doubt, text is redacted.
enum LogRedaction {
    static let mark: StaticString = "<redacted>"

    /// Parts of names, in lower case, whose values are secret.
    private static let secretNames = [
        "token", "secret", "passw", "signature", "credential", "authoriz", "cookie", "apikey", "api-key", "api_key",
        "x-amz-", "x-goog-", "uploadid", "upload-id", "upload_id", "accesskey", "access-key", "access_key", "private",
    ].map { Array($0.utf8) }
    /// Names, in lower case, whose values extend to the end of the line, because they are lists or pairs.
    private static let wholeLineNames = ["authoriz", "cookie"].map { Array($0.utf8) }
    /// Whether a secret name begins with this byte, in lower case. Most bytes of most texts are none of these.
    private static let beginsSecretName: [Bool] = {
        var begins = Array(repeating: false, count: 256)
        for name in secretNames { begins[Int(name[0])] = true }
        return begins
    }()
    private static let longestName = 64

    /// Whether a value with this name is secret.
    static func isSecret(name: String) -> Bool { contains(name.utf8.span, secretNames) }

    /// How many levels of percent-encoding are decoded to find a secret. Text with more levels is redacted as a whole.
    private static let maximumEncodings = 8

    /// The text with its secrets replaced, also percent-encoded ones; nil if it has none.
    static func redacted(_ text: Span<UInt8>) -> [UInt8]? {
        var secrets = self.secrets(in: text)
        if var decoded = DecodedText(text) {
            for _ in 1..<maximumEncodings {
                secrets += self.secrets(in: decoded.bytes.span).map { decoded.origin(of: $0) }
                guard decoded.decode() else { break }
            }
            secrets += self.secrets(in: decoded.bytes.span).map { decoded.origin(of: $0) }
            if decoded.decode() { secrets = [0..<text.count] }
            secrets.sort { $0.lowerBound < $1.lowerBound }
        }
        if secrets.isEmpty { return nil }
        var result: [UInt8] = []
        var copied = 0
        for secret in secrets {
            if secret.lowerBound >= copied {
                append(text, copied..<secret.lowerBound, to: &result)
                mark.withUTF8Buffer { result.append(contentsOf: $0) }
            }
            copied = max(copied, secret.upperBound)
        }
        append(text, copied..<text.count, to: &result)
        return result
    }

    /// The ranges of the secrets, in order.
    private static func secrets(in text: Span<UInt8>) -> [Range<Int>] {
        var secrets: [Range<Int>] = []
        var index = 0
        while index < text.count {
            guard let secret = secret(in: text, at: index) else {
                index += 1
                continue
            }
            secrets.append(secret)
            index = secret.upperBound
        }
        return secrets
    }

    /// The secret that the byte at `index` introduces or begins. Never empty.
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
            case UInt8(ascii: "d"), UInt8(ascii: "a"): return named(text, separator: index..<index + 3)
            default: return nil
            }
        case UInt8(ascii: " "), UInt8(ascii: "+"), UInt8(ascii: "\t"):
            return afterScheme(text, space: index..<index + 1)
        case UInt8(ascii: "J"): return jsonWebToken(text, at: index - 2)
        case UInt8(ascii: "."): return signedToken(text, dot: index)
        case UInt8(ascii: "_"): return staticToken(text, at: index - 6)
        case UInt8(ascii: "/"): return uploadToken(text, slash: index)
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
        let name = text.extracting(start..<end)
        guard contains(name, secretNames) else { return nil }
        let isHeader = separator.count == 1 && text[separator.lowerBound] == UInt8(ascii: ":")
        // An error message such as "credentials: can't be read" follows; no field or parameter has that name.
        if isHeader, ASCII.isEqual(name, ignoringCase: "credentials") { return nil }
        return value(
            text, from: separator.upperBound,
            toLineEnd: isHeader || contains(name, wholeLineNames))
    }

    private static func value(_ text: Span<UInt8>, from start: Int, toLineEnd: Bool) -> Range<Int>? {
        var start = start
        while start < text.count, text[start] == UInt8(ascii: " ") { start += 1 }
        if start + 1 < text.count, text[start] == UInt8(ascii: "\\") { start += 1 }
        var quote: UInt8?
        if start < text.count, text[start] == UInt8(ascii: "\"") || text[start] == UInt8(ascii: "'") {
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

    // MARK: By form

    /// The credentials after an authentication scheme and a space.
    /// - Parameter space: The range of the space, which may be percent-encoded.
    private static func afterScheme(_ text: Span<UInt8>, space: Range<Int>) -> Range<Int>? {
        var start = space.lowerBound
        while start > 0, space.lowerBound - start < 9, isNameByte(text[start - 1]) { start -= 1 }
        guard isScheme(text.extracting(start..<space.lowerBound)) else { return nil }
        let end = tokenEnd(text, from: space.upperBound)
        return end - space.upperBound > 7 ? space.upperBound..<end : nil
    }

    private static func isScheme(_ word: Span<UInt8>) -> Bool {
        ASCII.isEqual(word, ignoringCase: "bearer") || ASCII.isEqual(word, ignoringCase: "firebase")
            || ASCII.isEqual(word, ignoringCase: "basic") || ASCII.isEqual(word, ignoringCase: "aws4-hm")
    }

    private static func jsonWebToken(_ text: Span<UInt8>, at index: Int) -> Range<Int>? {
        guard index >= 0, text[index] == UInt8(ascii: "e"), text[index + 1] == UInt8(ascii: "y") else { return nil }
        let end = tokenEnd(text, from: index)
        guard end - index >= 20 else { return nil }
        for at in index..<end where text[at] == UInt8(ascii: ".") { return index..<end }
        return nil
    }

    /// A JWS (RFC 7515, section 3.1) whose header does not begin with `{"`, recognized only by the lengths of its three
    /// parts. The shortest signature, of HS256, has 43 characters.
    /// - Parameter dot: The index of the dot after the header.
    private static func signedToken(_ text: Span<UInt8>, dot: Int) -> Range<Int>? {
        var start = dot
        while start > 0, isBase64URLByte(text[start - 1]) { start -= 1 }
        let payloadEnd = base64URLEnd(text, from: dot + 1)
        guard dot - start >= 10, payloadEnd - dot > 2, payloadEnd < text.count, text[payloadEnd] == UInt8(ascii: ".")
        else { return nil }
        let end = base64URLEnd(text, from: payloadEnd + 1)
        return end - payloadEnd > 43 ? start..<end : nil
    }

    /// A token of `sluice token new`: `sluice_` and 43 characters. No metric name is that long.
    private static func staticToken(_ text: Span<UInt8>, at index: Int) -> Range<Int>? {
        let start = "sluice_".utf8
        guard index >= 0, index + start.count <= text.count,
            zip(index..., start).allSatisfy({ text[$0] == $1 })
        else { return nil }
        let end = tokenEnd(text, from: index)
        return end - index >= start.count + 43 ? index..<end : nil
    }

    /// The shortest run of base64url that may be the token of an upload session, or a large part of one.
    private static let shortestUploadToken = 32

    /// Whether `/u` or `/tus` ends before a slash: the token of an upload session may follow.
    static func isUploadRoot(_ text: Span<UInt8>, before slash: Int) -> Bool {
        func precedes(_ root: StaticString) -> Bool {
            let count = root.utf8CodeUnitCount
            guard slash >= count else { return false }
            for index in 0..<count where text[slash - count + index] != root.utf8Start[index] {
                return false
            }
            return true
        }
        return precedes("/u") || precedes("/tus")
    }

    /// The token of an upload session after `slash`: the whole segment, since a damaged token is still a secret.
    private static func uploadToken(_ text: Span<UInt8>, slash: Int) -> Range<Int>? {
        guard isUploadRoot(text, before: slash) else { return nil }
        var (end, run, longest) = (slash + 1, 0, 0)
        while end < text.count, !isSegmentEnd(text[end]) {
            run = isBase64URLByte(text[end]) ? run + 1 : 0
            longest = max(longest, run)
            end += 1
        }
        return longest >= shortestUploadToken ? slash + 1..<end : nil
    }

    private static func isSegmentEnd(_ byte: UInt8) -> Bool {
        switch byte {
        case UInt8(ascii: "/"), UInt8(ascii: "?"), UInt8(ascii: "#"), UInt8(ascii: "\""), UInt8(ascii: "'"), ...0x20:
            true
        default: false
        }
    }

    /// The end of the token68 (RFC 9110, section 11.2) that begins at `start`.
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

    private static func base64URLEnd(_ text: Span<UInt8>, from start: Int) -> Int {
        var end = start
        while end < text.count, isBase64URLByte(text[end]) { end += 1 }
        return end
    }

    // MARK: Bytes

    private static func isBase64URLByte(_ byte: UInt8) -> Bool {
        isNameByte(byte) && byte != UInt8(ascii: ".")
    }

    private static func isNameByte(_ byte: UInt8) -> Bool {
        switch byte {
        case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "A")...UInt8(ascii: "Z"),
            UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "_"), UInt8(ascii: "-"), UInt8(ascii: "."):
            return true
        default: return false
        }
    }

    private static func isQuoteOrSpace(_ byte: UInt8) -> Bool {
        byte == UInt8(ascii: "\"") || byte == UInt8(ascii: "'") || byte == UInt8(ascii: "\\")
            || byte == UInt8(ascii: " ")
    }

    /// Whether one of `parts`, which are secret names, occurs in a name of any case.
    private static func contains(_ name: Span<UInt8>, _ parts: [[UInt8]]) -> Bool {
        let begins = beginsSecretName
        for start in name.indices where begins[Int(ASCII.lowercased(name[start]))] {
            for part in parts where part.count <= name.count - start {
                if part.indices.allSatisfy({ ASCII.lowercased(name[start + $0]) == part[$0] }) {
                    return true
                }
            }
        }
        return false
    }

    private static func append(_ text: Span<UInt8>, _ range: Range<Int>, to result: inout [UInt8]) {
        text.extracting(range).withUnsafeBufferPointer { result.append(contentsOf: $0) }
    }
}

/// A text whose percent-encoding is decoded level by level, with each byte's offset in the original text.
private struct DecodedText {
    private(set) var bytes: [UInt8]
    /// The offset of each byte in the original text, and that text's length.
    private var starts: [Int]

    /// Decodes the first level; nil if nothing is encoded.
    init?(_ text: Span<UInt8>) {
        var isEncoded = false
        for index in text.indices where text[index] == UInt8(ascii: "%") {
            isEncoded = true
            break
        }
        guard isEncoded else { return nil }
        bytes = text.withUnsafeBufferPointer { Array($0) }
        starts = Array(0...bytes.count)
        guard decode() else { return nil }
    }

    /// Decodes one more level.
    /// - Returns: Whether anything was encoded.
    mutating func decode() -> Bool {
        var decoded: [UInt8] = []
        var origins: [Int] = []
        var index = 0
        while index < bytes.count {
            origins.append(starts[index])
            if bytes[index] == UInt8(ascii: "%"), index + 2 < bytes.count,
                let high = DecodedText.digit(bytes[index + 1]), let low = DecodedText.digit(bytes[index + 2])
            {
                decoded.append(high << 4 | low)
                index += 3
            } else {
                decoded.append(bytes[index])
                index += 1
            }
        }
        guard decoded.count < bytes.count else { return false }
        origins.append(starts[bytes.count])
        (bytes, starts) = (decoded, origins)
        return true
    }

    private static func digit(_ byte: UInt8) -> UInt8? {
        switch byte {
        case UInt8(ascii: "0")...UInt8(ascii: "9"): byte - UInt8(ascii: "0")
        case UInt8(ascii: "a")...UInt8(ascii: "f"): byte - UInt8(ascii: "a") + 10
        case UInt8(ascii: "A")...UInt8(ascii: "F"): byte - UInt8(ascii: "A") + 10
        default: nil
        }
    }

    /// The range in the original text for a range of the decoded bytes.
    func origin(of range: Range<Int>) -> Range<Int> {
        starts[range.lowerBound]..<starts[range.upperBound]
    }
}
