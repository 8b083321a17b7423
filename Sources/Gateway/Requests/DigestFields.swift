import Buckets
import HTTPServer
import Wire

/// The digests that an upload must have, from `Content-MD5`, `Content-Digest` and `Repr-Digest`.
struct ExpectedDigests: Equatable {
    var md5: [UInt8]?
    var crc32c: UInt32?
    var others: [DigestAlgorithm: [UInt8]] = [:]
    /// The SHA-256 that a signature covers.
    var payload: [UInt8]?
    /// The checksum that follows the bytes (``UploadBody/trailer``).
    var trailer: ChecksumAlgorithm?

    init() {}

    /// The digests to compute besides md5 and crc32c.
    var algorithms: Set<DigestAlgorithm> {
        var algorithms = Set(others.keys)
        if payload != nil { algorithms.insert(.sha256) }
        if let digest = trailer?.digest { algorithms.insert(digest) }
        return algorithms
    }

    /// - Throws: ``Problem``: `invalid-argument` for a malformed field, `checksum-mismatch` for contradicting fields.
    init(_ fields: HeaderFields) throws(Problem) {
        try self.init(ofWhole: fields)
        if let text = fields.list("content-digest") { try take(text, "Content-Digest") }
    }

    /// The digests of this part of an upload, from `Content-Digest`. `Content-MD5` is the whole object's there.
    init(ofFirstPart fields: HeaderFields) throws(Problem) {
        self.init()
        if let text = fields.list("content-digest") { try take(text, "Content-Digest") }
    }

    /// The digests of a later part of an upload, from `Content-Digest` and `Content-MD5`.
    init(ofPart fields: HeaderFields) throws(Problem) {
        try self.init(ofFirstPart: fields)
        try takeMD5(fields)
    }

    /// The digests of an upload that this request has only a part of, from `Content-MD5` and `Repr-Digest`.
    init(ofWhole fields: HeaderFields) throws(Problem) {
        self.init()
        try takeMD5(fields)
        if let text = fields.list("repr-digest") { try take(text, "Repr-Digest") }
    }

    private mutating func takeMD5(_ fields: HeaderFields) throws(Problem) {
        for text in fields.values("content-md5") {
            guard let digest = Base64.decode(Array(text.utf8)[...]), digest.count == 16 else {
                throw Problem(.invalidArgument, "Content-MD5 is the base64 of 16 bytes, with its padding.")
            }
            try take("md5", digest, "Content-MD5")
        }
    }

    private mutating func take(_ text: String, _ field: String) throws(Problem) {
        var parser = StructuredDictionary(Array(text.utf8)[...])
        guard let members = parser.parse() else {
            throw Problem(
                .invalidArgument,
                "\(field) is a dictionary of RFC 9530, its digests in base64 with padding.")
        }
        for (algorithm, value) in members { try take(algorithm, value, field) }
    }

    private mutating func take(_ algorithm: String, _ value: [UInt8]?, _ field: String)
        throws(Problem)
    {
        let lengths = ["md5": 16, "crc32c": 4, "sha-256": 32, "sha-512": 64]
        guard let length = lengths[algorithm] else { return }
        guard let value, value.count == length else {
            throw Problem(.invalidArgument, "\(algorithm) in \(field) is a byte sequence of \(length) bytes.")
        }
        let isConsistent: Bool
        if algorithm == "md5" {
            isConsistent = md5 == nil || md5 == value
            md5 = value
        } else if algorithm == "crc32c" {
            let number = value.reduce(0) { $0 << 8 | UInt32($1) }
            isConsistent = crc32c == nil || crc32c == number
            crc32c = number
        } else if let known = DigestAlgorithm(rawValue: algorithm) {
            isConsistent = others[known] == nil || others[known] == value
            others[known] = value
        } else {
            isConsistent = true
        }
        if !isConsistent {
            throw Problem(.checksumMismatch, "Two different digests \(algorithm) are given.")
        }
    }

    /// The name of the first digest that the received bytes do not match.
    func mismatch(_ facts: ContentFacts) -> String? {
        if let md5, md5 != facts.md5 { return "md5" }
        if let crc32c, crc32c != facts.crc32c { return "crc32c" }
        for (algorithm, digest) in others where facts.digests[algorithm] != digest {
            return algorithm.rawValue
        }
        return nil
    }

    /// Compares the received bytes with the digests.
    /// - Parameter result: What happened to the bytes, for the message.
    /// - Throws: ``Problem`` with `checksum-mismatch`.
    func verify(_ facts: ContentFacts, _ result: String) throws(Problem) {
        if let payload, facts.digests[.sha256] != payload {
            throw Problem(
                .checksumMismatch, "The provided 'x-amz-content-sha256' header does not match what was computed.",
                dialect: DialectError(status: 400, code: "XAmzContentSHA256Mismatch"))
        }
        guard let algorithm = mismatch(facts) else { return }
        throw Problem(.checksumMismatch, "The \(algorithm) of the received bytes is another; \(result).")
    }
}

/// Parses a dictionary of structured fields (RFC 9651, section 3.2) that has byte sequences.
struct StructuredDictionary {
    private var rest: ArraySlice<UInt8>

    init(_ text: ArraySlice<UInt8>) { rest = text }

    /// The members in order. A later member replaces an earlier one with the same key. The value is nil if it is not a
    /// byte sequence. The result is nil if the dictionary is malformed.
    mutating func parse() -> [(key: String, value: [UInt8]?)]? {
        var members: [(key: String, value: [UInt8]?)] = []
        skipSpaces()
        while !rest.isEmpty {
            guard let key = key() else { return nil }
            var value: [UInt8]?
            if skip("=") {
                guard member(&value) else { return nil }
            }
            guard parameters() else { return nil }
            members.removeAll { $0.key == key }
            members.append((key, value))
            skipWhiteSpace()
            if rest.isEmpty { break }
            guard skip(",") else { return nil }
            skipWhiteSpace()
            if rest.isEmpty { return nil }
        }
        return members
    }

    /// Reads the whole as a boolean item, whose parameters are ignored (section 4.2.8); nil for anything else.
    mutating func boolean() -> Bool? {
        skipSpaces()
        guard skip("?"), let digit = rest.popFirst(), digit == 0x30 || digit == 0x31,
            parameters()
        else { return nil }
        skipSpaces()
        return rest.isEmpty ? digit == 0x31 : nil
    }

    /// Reads a non-negative integer item, ignoring its parameters (section 4.2.4); nil for anything else.
    mutating func integer() -> UInt64? {
        skipSpaces()
        let isNegative = skip("-")
        let digits = take(ASCII.isDigit)
        guard (1...15).contains(digits.count), parameters() else { return nil }
        skipSpaces()
        let value = digits.reduce(0) { $0 * 10 + UInt64($1 - 0x30) }
        return rest.isEmpty && (!isNegative || value == 0) ? value : nil
    }

    private mutating func skipSpaces() {
        while rest.first == 0x20 { rest = rest.dropFirst() }
    }

    private mutating func skipWhiteSpace() {
        while let byte = rest.first, ASCII.isSpace(byte) { rest = rest.dropFirst() }
    }

    private mutating func skip(_ character: Unicode.Scalar) -> Bool {
        guard rest.first == UInt8(ascii: character) else { return false }
        rest = rest.dropFirst()
        return true
    }

    private mutating func key() -> String? {
        guard let first = rest.first, ASCII.isLowercase(first) || first == UInt8(ascii: "*") else {
            return nil
        }
        let key = take {
            ASCII.isLowercase($0) || ASCII.isDigit($0) || $0 == 0x5f || $0 == 0x2d || $0 == 0x2e || $0 == 0x2a
        }
        return String(decoding: key, as: UTF8.self)
    }

    private mutating func take(_ accept: (UInt8) -> Bool) -> ArraySlice<UInt8> {
        let taken = rest.prefix(while: accept)
        rest = rest[taken.endIndex...]
        return taken
    }

    private mutating func member(_ value: inout [UInt8]?) -> Bool {
        guard skip("(") else { return item(&value) }
        while true {
            skipSpaces()
            if skip(")") { return true }
            var inner: [UInt8]?
            guard item(&inner), parameters() else { return false }
            guard rest.first == 0x20 || rest.first == UInt8(ascii: ")") else { return false }
        }
    }

    private mutating func parameters() -> Bool {
        while skip(";") {
            skipSpaces()
            guard key() != nil else { return false }
            var value: [UInt8]?
            if skip("="), !item(&value) { return false }
        }
        return true
    }

    private mutating func item(_ value: inout [UInt8]?) -> Bool {
        guard let first = rest.first else { return false }
        switch first {
        case UInt8(ascii: ":"):
            rest = rest.dropFirst()
            guard let end = rest.firstIndex(of: UInt8(ascii: ":")),
                let bytes = Base64.decode(rest[..<end])
            else { return false }
            rest = rest[(end + 1)...]
            value = bytes
            return true
        case UInt8(ascii: "\""): return quoted()
        case UInt8(ascii: "?"):
            rest = rest.dropFirst()
            return skip("0") || skip("1")
        case UInt8(ascii: "@"):
            rest = rest.dropFirst()
            return number()
        case UInt8(ascii: "-"), 0x30...0x39: return number()
        default:
            guard ASCII.isLetter(first) || first == UInt8(ascii: "*") else { return false }
            _ = take { ASCII.isToken($0) || $0 == 0x3a || $0 == 0x2f }
            return true
        }
    }

    private mutating func quoted() -> Bool {
        rest = rest.dropFirst()
        while let byte = rest.popFirst() {
            if byte == UInt8(ascii: "\"") { return true }
            if byte == UInt8(ascii: "\\") {
                guard skip("\"") || skip("\\") else { return false }
            } else if byte < 0x20 || byte > 0x7e {
                return false
            }
        }
        return false
    }

    private mutating func number() -> Bool {
        _ = skip("-")
        let whole = take(ASCII.isDigit)
        guard (1...15).contains(whole.count) else { return false }
        guard skip(".") else { return true }
        return whole.count <= 12 && (1...3).contains(take(ASCII.isDigit).count)
    }
}
