import Wire

/// Parses a `multipart/related` body of exactly two parts while it arrives: a description, which is kept, and content,
/// which is passed on. What precedes the first part or follows the last one is ignored. Otherwise it is strict: each part
/// has one `Content-Type`, and all lines end as that of the first boundary, with CRLF, or with LF alone as some clients
/// write them.
struct MultipartParser: PrefacedParser {
    /// Why a body is malformed.
    struct Malformed: Error, Equatable {
        var reason: String
    }
    private enum State {
        /// At the first boundary, if the line is one.
        case opening
        /// In a line before the first boundary.
        case preamble
        /// After a boundary: the end of its line, or of the body.
        case boundaryEnd
        case fields
        case description
        case content
        case epilogue
    }

    /// The maximum size of a part's header fields in bytes.
    static let maximumFieldBytes = 8 * 1024
    /// The maximum size of what precedes the first boundary in bytes.
    static let maximumPreamble = 8 * 1024

    private var scanner: MultipartScanner
    /// Whether lines end with LF alone; nil before the end of the first boundary's line.
    private var hasBareLF: Bool?
    private var preambleBytes = 0
    private let maximumDescription: Int
    private var state = State.opening
    /// The line being read, and the bytes of all fields of the part.
    private var line: [UInt8] = []
    private var fieldBytes = 0
    private var parts = 0
    private var type: String?
    /// The first part.
    private(set) var description: [UInt8] = []
    /// The content type of the second part; nil before its bytes.
    private(set) var contentType: String?

    /// - Parameter maximumDescription: The maximum size of the description in bytes.
    init(_ boundary: MultipartBoundary, maximumDescription: Int) {
        scanner = MultipartScanner(boundary)
        self.maximumDescription = maximumDescription
    }

    /// Parses the next bytes.
    /// - Parameter content: Takes a prefix of the content's next bytes and returns its length; less means: wait.
    /// - Returns: The number of bytes that were parsed: fewer than given only if not all content was taken.
    /// - Throws: ``Malformed``, or what `content` throws. No more bytes may follow.
    mutating func write(_ bytes: RawSpan, _ content: (RawSpan) throws -> Int) throws -> Int {
        var offset = 0
        while offset < bytes.byteCount {
            switch state {
            case .opening:
                let before = scanner.matchedAtLine
                if let isComplete = scanner.match(bytes[offset]) {
                    offset += 1
                    if isComplete { beginBoundaryEnd() }
                } else {
                    preambleBytes += before
                    state = .preamble
                }
            case .preamble:
                let end = bytes.firstIndex(of: 0x0a, from: offset)
                let next = min(end + 1, bytes.byteCount)
                preambleBytes += next - offset
                guard preambleBytes <= MultipartParser.maximumPreamble else {
                    throw Malformed(reason: "the body does not begin with the boundary")
                }
                offset = next
                if end < bytes.byteCount {
                    state = .opening
                    scanner.restart()
                }
            case .boundaryEnd:
                try endBoundary(bytes[offset])
                offset += 1
            case .fields:
                try readField(bytes[offset])
                offset += 1
            case .description:
                var text: [UInt8] = []
                offset = try readPart(bytes, from: offset) { part in
                    part.withUnsafeBytes { text.append(contentsOf: $0) }
                    return part.byteCount
                }
                description += text
                guard description.count <= maximumDescription else {
                    throw Malformed(reason: "the first part has more than \(maximumDescription) bytes")
                }
            case .content:
                offset = try readPart(bytes, from: offset, content)
                if scanner.isBusy { return offset }
            case .epilogue: return bytes.byteCount
            }
        }
        return offset
    }

    var isAtContent: Bool { contentType != nil }

    /// - Throws: ``Malformed`` if the body is not complete.
    func end() throws(Malformed) {
        guard state == .epilogue else {
            throw Malformed(reason: "the body ends before its last boundary")
        }
    }

    // MARK: Boundaries

    private mutating func beginBoundaryEnd() {
        line = []
        state = .boundaryEnd
    }

    /// `--` at the end of the body, or else spaces and the end of the line.
    private mutating func endBoundary(_ byte: UInt8) throws(Malformed) {
        line.append(byte)
        if line == [UInt8(ascii: "-")] { return }
        if line == Array("--".utf8) {
            guard parts == 2 else { throw Malformed(reason: "the body has two parts") }
            state = .epilogue
            return
        }
        switch byte {
        case 0x20, 0x09: if line.allSatisfy(ASCII.isSpace), line.count <= 128 { return }
        case 0x0d: if hasBareLF != true, line.dropLast().allSatisfy(ASCII.isSpace) { return }
        case 0x0a:
            let isBare = line.dropLast().last != 0x0d
            if isBare == hasBareLF ?? isBare,
                line.dropLast(isBare ? 1 : 2).allSatisfy(ASCII.isSpace)
            {
                guard parts < 2 else { throw Malformed(reason: "the body has two parts") }
                if isBare, hasBareLF == nil { scanner.useBareLF() }
                hasBareLF = isBare
                parts += 1
                (line, fieldBytes, type, state) = ([], 0, nil, .fields)
                return
            }
        default: break
        }
        throw Malformed(reason: "a boundary is followed by the end of its line, or by two hyphens at the end")
    }

    // MARK: Fields

    private mutating func readField(_ byte: UInt8) throws(Malformed) {
        fieldBytes += 1
        guard fieldBytes <= MultipartParser.maximumFieldBytes else {
            throw Malformed(reason: "the fields of a part are too long")
        }
        let isBare = hasBareLF == true
        if byte == 0x0a, isBare || line.last == 0x0d {
            if !isBare { line.removeLast() }
            try line.isEmpty ? endFields() : takeField()
            line = []
            return
        }
        guard line.last != 0x0d, byte == 0x0d && !isBare || byte == 0x09 || !ASCII.isControl(byte) else {
            throw Malformed(reason: "a field has a control character")
        }
        line.append(byte)
    }

    private mutating func takeField() throws(Malformed) {
        guard let colon = line.firstIndex(of: UInt8(ascii: ":")), colon > 0, line[..<colon].allSatisfy(ASCII.isToken)
        else { throw Malformed(reason: "a line is not a field") }
        let name = line[..<colon]
        guard ASCII.isEqual(name.span, ignoringCase: "content-type") else { return }
        let value = String(validating: ASCII.trimmed(line[(colon + 1)...]), as: UTF8.self)
        guard type == nil, let value, !value.isEmpty else {
            throw Malformed(reason: "each part has one Content-Type")
        }
        type = value
    }

    private mutating func endFields() throws(Malformed) {
        guard let type else { throw Malformed(reason: "each part has one Content-Type") }
        if parts == 1 {
            state = .description
        } else {
            contentType = type
            state = .content
        }
    }

    // MARK: Parts

    /// Forwards the bytes of a part, up to the next delimiter.
    /// - Returns: The offset after the bytes that were parsed.
    private mutating func readPart(
        _ bytes: RawSpan, from start: Int, _ take: (RawSpan) throws -> Int
    ) throws -> Int {
        let (offset, isAtDelimiter) = try scanner.read(bytes, from: start, take)
        if isAtDelimiter { beginBoundaryEnd() }
        return offset
    }
}
