import Wire

/// The boundary of a multipart body (RFC 2046, section 5.1.1).
struct MultipartBoundary {
    let bytes: [UInt8]

    /// The maximum length of a boundary in characters.
    private static let maximumLength = 70

    /// Parses a `Content-Type`; nil if it is another type, or its boundary is missing or invalid. The boundary may be
    /// quoted, by some clients also with apostrophes.
    /// - Parameter type: The media type, in lower case.
    init?(_ contentType: String, type: StaticString = "multipart/related") {
        var rest = Array(contentType.utf8)[...]
        let essence = ASCII.trimmed(rest.prefix { $0 != UInt8(ascii: ";") })
        guard ASCII.isEqual(essence.span, ignoringCase: type) else { return nil }
        rest = rest[essence.endIndex...].drop { $0 != UInt8(ascii: ";") }
        var found: [UInt8]?
        while let next = rest.popFirst() {
            guard next == UInt8(ascii: ";"),
                let (name, value) = MultipartBoundary.parameter(&rest)
            else { return nil }
            guard ASCII.isEqual(name.span, ignoringCase: "boundary") else { continue }
            if found != nil { return nil }
            found = value
        }
        guard var found else { return nil }
        let quote = UInt8(ascii: "'")
        if found.count > 2, found.first == quote, found.last == quote {
            found = Array(found[1..<found.count - 1])
        }
        guard (1...MultipartBoundary.maximumLength).contains(found.count), found.last != 0x20,
            found.allSatisfy(MultipartBoundary.isPossible)
        else { return nil }
        bytes = found
    }

    /// Parses `name=value` up to the next semicolon or the end. An empty name is a parameter that is left out.
    static func parameter(_ rest: inout ArraySlice<UInt8>) -> (ArraySlice<UInt8>, [UInt8])? {
        let name = ASCII.trimmed(
            rest.prefix { $0 != UInt8(ascii: "=") && $0 != UInt8(ascii: ";") })
        rest = rest[name.endIndex...].drop(while: ASCII.isSpace)
        guard rest.first == UInt8(ascii: "=") else {
            return name.isEmpty && (rest.isEmpty || rest.first == UInt8(ascii: ";")) ? (name, []) : nil
        }
        rest = rest.dropFirst().drop(while: ASCII.isSpace)
        guard rest.first == UInt8(ascii: "\"") else {
            let value = rest.prefix { $0 != UInt8(ascii: ";") }
            rest = rest[value.endIndex...]
            return (name, Array(ASCII.trimmed(value)))
        }
        rest = rest.dropFirst()
        var value: [UInt8] = []
        while let byte = rest.popFirst() {
            if byte == UInt8(ascii: "\"") {
                rest = rest.drop(while: ASCII.isSpace)
                return (name, value)
            }
            guard byte == UInt8(ascii: "\\") else {
                value.append(byte)
                continue
            }
            guard let escaped = rest.popFirst() else { return nil }
            value.append(escaped)
        }
        return nil
    }

    private static func isPossible(_ byte: UInt8) -> Bool {
        ASCII.isLetter(byte) || ASCII.isDigit(byte) || "'()+_,-./:=? ".utf8.contains(byte)
    }
}

/// Finds the delimiter of a multipart body while it arrives, and passes on the bytes before it.
struct MultipartScanner {
    /// The length of CRLF, with which the delimiter begins. The first boundary needs no line end before it.
    private static let lineEnd = 2

    /// CRLF or LF, two hyphens, and the boundary. Its first byte is only at its beginning.
    private var delimiter: [UInt8]
    /// The number of matched bytes of the delimiter. They may turn out to be content.
    private var matched: Int
    /// The bytes at the start of the delimiter that are content and were not passed on yet.
    private var held = 0..<0
    /// Whether the last content was not taken completely.
    private(set) var isBusy = false

    init(_ boundary: MultipartBoundary) {
        delimiter = Array("\r\n--".utf8) + boundary.bytes
        matched = MultipartScanner.lineEnd
    }

    /// The number of matched bytes of a boundary at the start of a line.
    var matchedAtLine: Int { matched - MultipartScanner.lineEnd }

    /// Searches for the boundary at the start of the next line, instead of after its end.
    mutating func restart() { matched = MultipartScanner.lineEnd }

    /// From now on, lines end with LF alone.
    mutating func useBareLF() { delimiter.removeFirst() }

    /// Matches one more byte of the delimiter.
    /// - Returns: Whether the delimiter is complete; nil if the byte does not belong to it.
    mutating func match(_ byte: UInt8) -> Bool? {
        guard byte == delimiter[matched] else { return nil }
        matched += 1
        guard matched == delimiter.count else { return false }
        matched = 0
        return true
    }

    /// Passes on the bytes of a part, up to the next delimiter.
    /// - Parameter take: Takes a prefix of the bytes and returns its length; less means: wait.
    /// - Returns: The offset after the bytes that were parsed, and whether the delimiter ends there.
    mutating func read(
        _ bytes: RawSpan, from start: Int, _ take: (RawSpan) throws -> Int
    ) throws -> (offset: Int, isAtDelimiter: Bool) {
        isBusy = false
        // The bytes that looked like a delimiter belong to the part.
        if !held.isEmpty {
            let text = delimiter
            let span = text.span
            let taken = try take(span.bytes.extracting(held))
            held = held.lowerBound + taken..<held.upperBound
            if !held.isEmpty {
                isBusy = true
                return (start, false)
            }
        }
        if matched > 0 {
            if let isComplete = match(bytes[start]) { return (start + 1, isComplete) }
            held = 0..<matched
            matched = 0
            return (start, false)
        }
        let end = bytes.firstIndex(of: delimiter[0], from: start)
        if end == start {
            matched = 1
            return (start + 1, false)
        }
        let taken = try take(bytes.extracting(start..<end))
        isBusy = taken < end - start
        return (start + taken, false)
    }
}

extension RawSpan {
    subscript(offset: Int) -> UInt8 {
        unsafeLoad(fromByteOffset: offset, as: UInt8.self)
    }

    /// The offset of the first such byte from `start` on, or the end.
    func firstIndex(of byte: UInt8, from start: Int) -> Int {
        withUnsafeBytes { $0[start...].firstIndex(of: byte) } ?? byteCount
    }
}
