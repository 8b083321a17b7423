import Buckets
import Wire

/// An object's name that is within the reference limits. Rules, logs and stores only get such names.
///
/// A name has 1–1024 bytes of UTF-8 without NUL, CR and LF. Segments between slashes are neither empty nor `.` nor
/// `..`. It does not begin with `.well-known/acme-challenge/`, nor with `.sluice/`, which is for
/// the gateway's own state. Only a folder marker (``init(marker:)``) ends in a slash.
public struct ObjectName: Sendable, Hashable, CustomStringConvertible {
    /// The name, decoded.
    public let value: String

    /// The maximum length of a name in bytes.
    public static let maximumBytes = 1024

    /// Checks a decoded name.
    /// - Throws: ``NameError`` with the first limit that is violated, and the offset.
    public init(_ value: String) throws(NameError) {
        try self.init(value, permitsMarker: false)
    }

    /// Checks a decoded name as clients of S3 use them: it may end in one slash, which makes it a folder marker.
    /// - Throws: ``NameError`` with the first limit that is violated, and the offset.
    public init(marker value: String) throws(NameError) {
        try self.init(value, permitsMarker: true)
    }

    private init(_ value: String, permitsMarker: Bool) throws(NameError) {
        var copy = value
        let error = copy.withUTF8 { ObjectName.broken(Span(_unsafeElements: $0), permitsMarker: permitsMarker) }
        if let error { throw error }
        self.value = value
    }

    /// Whether the name ends in a slash.
    var isMarker: Bool { value.utf8.last == UInt8(ascii: "/") }

    /// The name for rules and restrictions: without the slash at the end of a folder marker, so that `dir/` and `dir`
    /// have the same rules.
    public var rulesPath: String { ObjectName.rulesPath(of: value) }

    static func rulesPath(of name: String) -> String {
        name.utf8.last == UInt8(ascii: "/") ? String(decoding: name.utf8.dropLast(), as: UTF8.self) : name
    }

    /// Decodes the percent-encoding of a path, exactly once, and checks the name.
    /// - Throws: ``NameError`` with the first limit that is violated, and the offset.
    init(percentEncoded path: ArraySlice<UInt8>) throws(NameError) {
        try self.init(bytes: ObjectName.decode(path))
    }

    /// Decodes the percent-encoding of a path. Targets that are not valid UTF-8 were rejected earlier.
    static func decode(_ path: ArraySlice<UInt8>) throws(NameError) -> ArraySlice<UInt8> {
        do throws(PercentEncoding.Malformed) {
            return try PercentEncoding.decode(path)
        } catch {
            throw NameError(.malformedEncoding, at: error.offset)
        }
    }

    /// Checks a decoded name.
    init(bytes: ArraySlice<UInt8>) throws(NameError) {
        if let error = ObjectName.broken(bytes.span, permitsMarker: false) { throw error }
        value = try ObjectName.text(bytes)
    }

    static func text(_ bytes: ArraySlice<UInt8>) throws(NameError) -> String {
        // Not String(validating:as:), whose generic form costs four times as much.
        guard let text = try? UTF8Span(validating: bytes.span) else {
            throw NameError(.notUTF8, at: validPrefix(bytes))
        }
        return String(copying: text)
    }

    public var description: String { value }

    /// Compares names bytewise: names that only look the same are different objects.
    public static func == (left: ObjectName, right: ObjectName) -> Bool {
        BytewiseString(left.value) == BytewiseString(right.value)
    }

    public func hash(into hasher: inout Hasher) { BytewiseString(value).hash(into: &hasher) }

    /// The first limit that the bytes of a name violate, apart from UTF-8 validity.
    private static func broken(_ bytes: Span<UInt8>, permitsMarker: Bool) -> NameError? {
        if bytes.isEmpty { return NameError(.empty, at: 0) }
        if bytes.count > maximumBytes { return NameError(.tooLong, at: maximumBytes) }
        var start = 0
        for index in 0..<bytes.count {
            switch bytes[index] {
            case 0: return NameError(.nul, at: index)
            case 0x0a, 0x0d: return NameError(.lineBreak, at: index)
            case UInt8(ascii: "/"):
                if index == start { return NameError(.emptySegment, at: index) }
                if isDots(bytes, start..<index) { return NameError(.dotSegment, at: start) }
                start = index + 1
            default: break
            }
        }
        if start == bytes.count {
            if !permitsMarker { return NameError(.trailingSlash, at: start - 1) }
        } else if isDots(bytes, start..<bytes.count) {
            return NameError(.dotSegment, at: start)
        }
        return beginsWithReserved(bytes) ? NameError(.reserved, at: 0) : nil
    }

    private static func isDots(_ bytes: Span<UInt8>, _ range: Range<Int>) -> Bool {
        guard range.count <= 2, bytes[range.lowerBound] == UInt8(ascii: ".") else { return false }
        return bytes[range.upperBound - 1] == UInt8(ascii: ".")
    }

    private static func beginsWithReserved(_ bytes: Span<UInt8>) -> Bool {
        guard bytes[0] == UInt8(ascii: ".") else { return false }
        return begins(bytes, with: ".sluice/") || begins(bytes, with: ".well-known/acme-challenge/")
    }

    private static func begins(_ bytes: Span<UInt8>, with prefix: StaticString) -> Bool {
        guard bytes.count >= prefix.utf8CodeUnitCount else { return false }
        return prefix.withUTF8Buffer { wanted in
            for index in 0..<wanted.count where bytes[index] != wanted[index] { return false }
            return true
        }
    }

    /// The length of the longest prefix that is valid UTF-8.
    private static func validPrefix(_ bytes: ArraySlice<UInt8>) -> Int {
        var good = 0
        var decoder = UTF8()
        var iterator = bytes.makeIterator()
        while case .scalarValue(let scalar) = decoder.decode(&iterator) {
            good += UTF8.width(scalar)
        }
        return good
    }
}

/// Why a name is invalid: the violated limit, and the offset.
public struct NameError: Error, Sendable, Equatable, CustomStringConvertible {
    /// A limit of names.
    public enum Limit: Sendable, Equatable {
        case empty, tooLong, malformedEncoding, notUTF8, nul, lineBreak, emptySegment
        case trailingSlash, dotSegment, reserved
        /// The configuration disallows this character.
        case discouraged(Character)
        /// The name has more segments than the configuration allows.
        case tooDeep(Int)
        /// The name matches none of the configuration's allowed patterns.
        case notAllowed
        /// The name matches this denied pattern of the configuration.
        case denied(String)
    }
    /// The first violated limit.
    public var limit: Limit
    /// Bytes from the start of the name; for ``Limit/malformedEncoding``, of the encoded name.
    public var offset: Int

    init(_ limit: Limit, at offset: Int) {
        self.limit = limit
        self.offset = offset
    }

    /// A sentence for the client. Patterns are only shown to the operator.
    public var description: String {
        switch limit {
        case .empty: "The object's name is empty; it has 1 to 1024 bytes."
        case .tooLong: "The object's name is longer than 1024 bytes."
        case .malformedEncoding: "The percent-encoding is malformed at byte \(offset) of the encoded name."
        case .notUTF8: "The object's name is not valid UTF-8 at byte \(offset)."
        case .nul: "The object's name has a NUL at byte \(offset)."
        case .lineBreak: "The object's name has a CR or LF at byte \(offset)."
        case .emptySegment: "The object's name has an empty segment at byte \(offset)."
        case .trailingSlash: "The object's name ends in a slash at byte \(offset)."
        case .dotSegment: "The object's name has a segment '.' or '..' at byte \(offset)."
        case .reserved: "The object's name begins with the reserved .well-known/acme-challenge/ or .sluice/."
        case .discouraged(let character):
            "The object's name has a '\(character)' at byte \(offset), which this bucket refuses."
        case .tooDeep(let most): "The object's name has more than \(most) segments, from byte \(offset) on."
        case .notAllowed: "The object's name matches no pattern that this bucket allows."
        case .denied(let pattern): "The object's name matches '\(pattern)', which this bucket denies."
        }
    }
}

/// A bucket's name: 1–222 bytes of `a-z`, `0-9`, `-`, `_` and `.`. It begins and ends with a letter or digit.
public struct BucketName: Sendable, Hashable, CustomStringConvertible {
    public let value: String

    /// nil if the name is invalid.
    public init?(_ value: String) {
        let bytes = Array(value.utf8)
        func isAlphanumeric(_ byte: UInt8) -> Bool {
            ASCII.isLowercase(byte) || ASCII.isDigit(byte)
        }
        guard (1...222).contains(bytes.count), isAlphanumeric(bytes[0]),
            isAlphanumeric(bytes[bytes.count - 1]),
            bytes.allSatisfy({ isAlphanumeric($0) || $0 == 0x2d || $0 == 0x5f || $0 == 0x2e })
        else { return nil }
        self.value = value
    }

    public var description: String { value }
}

extension MediaTypes {
    /// The media type for the extension of an object's name.
    static func type(of name: ObjectName) -> String {
        type(of: lastSegment(of: name.value)) ?? unknown
    }
}
