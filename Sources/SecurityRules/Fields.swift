/// A property of an object: of `resource`, and of `request.resource` but for those that only a stored object has.
public enum ObjectField: UInt8, Sendable, Hashable, CaseIterable {
    /// The object's full name, without the bucket: a string.
    case name
    /// The bucket: a string.
    case bucket
    /// The version of the bytes: an integer.
    case generation
    /// The version of the metadata: an integer.
    case metageneration
    /// The length in bytes: an integer.
    case size
    /// When the bytes were written: a timestamp.
    case timeCreated
    /// When bytes or metadata changed last: a timestamp.
    case updated
    /// The MD5 of the bytes, in base64.
    case md5Hash
    /// The CRC-32C of the bytes, in base64, most significant byte first.
    case crc32c
    /// The entity tag: a string.
    case etag
    /// The Content-Disposition: a string or null.
    case contentDisposition
    /// The Content-Encoding: a string or null.
    case contentEncoding
    /// The Content-Language: a string or null.
    case contentLanguage
    /// The Content-Type: a string or null.
    case contentType
    /// The custom metadata: a map of strings.
    case metadata

    /// As the rules write it.
    public var key: String { Self.keys[Int(rawValue)].string }

    static let keys: [Text] = [
        "name", "bucket", "generation", "metageneration", "size", "timeCreated", "updated",
        "md5Hash", "crc32c", "etag", "contentDisposition", "contentEncoding", "contentLanguage",
        "contentType", "metadata",
    ]

    init?(key: Text) {
        guard let index = Self.keys.firstIndex(of: key) else { return nil }
        self.init(rawValue: UInt8(index))
    }

    /// Whether `request.resource` has it as well.
    public var isIncoming: Bool {
        switch self {
        case .generation, .metageneration, .etag, .timeCreated, .updated: false
        default: true
        }
    }
}

/// A property of `request`.
enum RequestField: UInt8, Sendable, CaseIterable {
    case auth, path, resource, time, method, params

    static let keys: [Text] = ["auth", "path", "resource", "time", "method", "params"]

    init?(key: Text) {
        guard let index = Self.keys.firstIndex(of: key) else { return nil }
        self.init(rawValue: UInt8(index))
    }
}

/// A name after a full stop, resolved while loading: what it is in `request`, and what in an object.
struct FieldCode: Sendable {
    private let code: UInt8

    static let none = FieldCode(code: 0xFF)

    private init(code: UInt8) { self.code = code }

    init(_ key: Text) {
        let request = RequestField(key: key).map { $0.rawValue } ?? 0xF
        let object = ObjectField(key: key).map { $0.rawValue } ?? 0xF
        code = request << 4 | object
    }

    var request: RequestField? { RequestField(rawValue: code >> 4) }
    var object: ObjectField? { ObjectField(rawValue: code & 0xF) }
}

/// Which inputs a value depends on.
struct InputBits: OptionSet, Sendable {
    var rawValue: UInt32

    init(rawValue: UInt32) { self.rawValue = rawValue }

    /// A property of `request.resource`.
    init(_ field: ObjectField) { rawValue = 1 << UInt32(field.rawValue) }

    /// The `resource`.
    static let existing = InputBits(rawValue: 1 << 15)
    /// `request.auth`.
    static let auth = InputBits(rawValue: 1 << 16)
    /// Documents, in general.
    static let documents = InputBits(rawValue: 1 << 17)
    /// Every property of `request.resource`.
    static let incoming = InputBits(rawValue: 1 << 15 - 1)

    /// The document that was asked for at a place.
    static func document(_ index: Int) -> InputBits { InputBits(rawValue: 1 << UInt32(18 + index)) }

    /// The most documents that one evaluation keeps apart.
    static let maximumDocuments = 12

    var incomingFields: [ObjectField] { ObjectField.allCases.filter { contains(InputBits($0)) } }
}
