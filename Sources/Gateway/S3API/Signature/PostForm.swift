import Wire

/// The fields of an upload by a form (POST), before its file.
struct PostForm: Equatable {
    struct Field: Equatable {
        /// In lower case.
        var name: String
        var value: String
    }
    /// In order, each name once.
    var fields: [Field] = []
    /// The last segment of the file's name; empty if it has none.
    var fileName = ""
    /// The file's `Content-Type`; nil if its part has none.
    var fileType: String?

    /// The value of a field, by its name in lower case.
    subscript(_ name: String) -> String? { fields.first { $0.name == name }?.value }

    /// The key, with `${filename}` replaced by the file's name; nil if there is none.
    var key: String? { self["key"]?.replacing("${filename}", with: fileName) }
}

/// Parses a `multipart/form-data` body (RFC 7578) while it arrives: the fields before the file, which are kept, and the
/// file, which is passed on. What follows the file is ignored. All lines end with CRLF.
struct PostFormParser: PrefacedParser {
    /// The maximum size of everything before the file's content, in bytes.
    static let maximumPreface = 20 * 1024

    private enum State {
        case opening, boundaryEnd, fields, value, file, done
    }

    private var scanner: MultipartScanner
    private var state = State.opening
    private var prefaceBytes = 0
    private var line: [UInt8] = []
    /// The properties of the current part.
    private var name: String?
    private var fileName: String?
    private var type: String?
    private var value: [UInt8] = []
    /// Complete once ``isAtContent`` is true.
    private(set) var form = PostForm()

    init(_ boundary: MultipartBoundary) { scanner = MultipartScanner(boundary) }

    var isAtContent: Bool { state == .file || state == .done }

    static func malformed(_ what: String) -> Problem {
        .s3(
            .invalidArgument, 400, "MalformedPOSTRequest",
            "The body of your POST request is not well-formed multipart/form-data.", cause: what)
    }

    static let noFile = S3Error.invalidArgument(
        "POST requires exactly one file upload per request.", "file", "0")

    /// - Throws: ``Problem``: `MalformedPOSTRequest`, `MaxPostPreDataLengthExceeded`, `InvalidArgument`; or what
    ///   `content` throws.
    mutating func write(_ bytes: RawSpan, _ content: (RawSpan) throws -> Int) throws -> Int {
        var offset = 0
        while offset < bytes.byteCount {
            let start = offset
            switch state {
            case .opening:
                guard let isComplete = scanner.match(bytes[offset]) else {
                    throw PostFormParser.malformed("it does not begin with the boundary")
                }
                offset += 1
                if isComplete { state = .boundaryEnd }
            case .boundaryEnd:
                try endBoundary(bytes[offset])
                offset += 1
            case .fields:
                try readField(bytes[offset])
                offset += 1
            case .value:
                var text: [UInt8] = []
                let room = PostFormParser.maximumPreface - prefaceBytes
                let read = try scanner.read(bytes, from: offset) { part in
                    guard part.byteCount <= room else { throw PostFormParser.tooLong }
                    part.withUnsafeBytes { text += $0 }
                    return part.byteCount
                }
                value += text
                offset = read.offset
                if read.isAtDelimiter { try endValue() }
            case .file:
                let read = try scanner.read(bytes, from: offset, content)
                offset = read.offset
                if read.isAtDelimiter { state = .done }
                if scanner.isBusy { return offset }
                continue
            case .done: return bytes.byteCount
            }
            prefaceBytes += offset - start
            guard prefaceBytes <= PostFormParser.maximumPreface else { throw PostFormParser.tooLong }
        }
        return offset
    }

    /// - Throws: ``Problem``: `IncompleteBody`.
    func end() throws(Problem) {
        guard state == .done else { throw .incompleteBody }
    }

    private static let tooLong = Problem.s3(
        .payloadTooLarge, 400, "MaxPostPreDataLengthExceeded",
        "Your POST request fields preceding the upload file were too large.",
        members: [("MaxPostPreDataLengthBytes", "\(maximumPreface)")])

    // MARK: Parts

    private mutating func endBoundary(_ byte: UInt8) throws(Problem) {
        line.append(byte)
        guard line.count == 2 else { return }
        let end = line
        line = []
        // The body ends before a file.
        if end == Array("--".utf8) { throw PostFormParser.noFile }
        guard end == [0x0d, 0x0a] else { throw PostFormParser.malformed("a boundary is followed by other bytes") }
        (name, fileName, type, value) = (nil, nil, nil, [])
        state = .fields
    }

    private mutating func readField(_ byte: UInt8) throws(Problem) {
        guard byte == 0x0a else {
            line.append(byte)
            return
        }
        guard line.popLast() == 0x0d else { throw PostFormParser.malformed("a line does not end with CRLF") }
        let text = line
        line = []
        guard !text.isEmpty else { return try endFields() }
        guard let colon = text.firstIndex(of: UInt8(ascii: ":")), text[..<colon].allSatisfy(ASCII.isToken),
            let value = String(validating: ASCII.trimmed(text[(colon + 1)...]), as: UTF8.self),
            !value.utf8.contains(where: { ASCII.isControl($0) && $0 != 0x09 })
        else { throw PostFormParser.malformed("a line of a part is not a field") }
        let field = text[..<colon]
        if ASCII.isEqual(field.span, ignoringCase: "content-disposition") {
            try takeDisposition(value)
        } else if ASCII.isEqual(field.span, ignoringCase: "content-type") {
            type = value
        }
    }

    /// Takes `form-data; name="…"[; filename="…"]` (RFC 7578, section 4.2).
    private mutating func takeDisposition(_ value: String) throws(Problem) {
        var rest = Array(value.utf8)[...]
        let kind = ASCII.trimmed(rest.prefix { $0 != UInt8(ascii: ";") })
        guard name == nil, ASCII.isEqual(kind.span, ignoringCase: "form-data") else {
            throw PostFormParser.malformed("a part is not form-data")
        }
        rest = rest.drop { $0 != UInt8(ascii: ";") }
        while let next = rest.popFirst() {
            guard next == UInt8(ascii: ";"), let (parameter, bytes) = MultipartBoundary.parameter(&rest) else {
                throw PostFormParser.malformed("the name of a part is malformed")
            }
            guard let text = String(validating: bytes, as: UTF8.self) else {
                throw PostFormParser.malformed("the name of a part is not UTF-8")
            }
            if ASCII.isEqual(parameter.span, ignoringCase: "name") {
                guard name == nil else { throw PostFormParser.malformed("a part has two names") }
                name = text.asciiLowercased()
            } else if ASCII.isEqual(parameter.span, ignoringCase: "filename") {
                guard fileName == nil else { throw PostFormParser.malformed("a file has two names") }
                fileName = text
            }
        }
    }

    private mutating func endFields() throws(Problem) {
        guard let name, !name.isEmpty else { throw PostFormParser.malformed("a part has no name") }
        guard name == "file" else {
            state = .value
            return
        }
        let full = fileName ?? ""
        // Some browsers send the path on their machine.
        let start = full.utf8.lastIndex { $0 == UInt8(ascii: "/") || $0 == UInt8(ascii: "\\") }
        form.fileName = start.map { String(full[full.utf8.index(after: $0)...]) } ?? full
        form.fileType = type
        state = .file
    }

    private mutating func endValue() throws(Problem) {
        guard let name, let text = String(validating: value, as: UTF8.self) else {
            throw PostFormParser.malformed("a field is not UTF-8")
        }
        guard form[name] == nil else {
            throw S3Error.invalidArgument("The form has a field twice.", name)
        }
        form.fields.append(PostForm.Field(name: name, value: text))
        value = []
        state = .boundaryEnd
    }
}
