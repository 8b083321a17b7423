/// A property of an object: of `resource`, and except for the times also of `request.resource`.
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
    /// The time of the upload: a timestamp.
    case timeCreated
    /// The time of the last change of bytes or metadata: a timestamp.
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
    /// The custom metadata: a map of strings, or null if none is set.
    case metadata
    /// The Cache-Control: a string or null.
    case cacheControl
    /// The storage class: a string, or null if it is not known.
    case storageClass

    /// The name as used in rules.
    public var key: String { Self.keys[Int(rawValue)].string }

    static let keys: [Text] = [
        "name", "bucket", "generation", "metageneration", "size", "timeCreated", "updated",
        "md5Hash", "crc32c", "etag", "contentDisposition", "contentEncoding", "contentLanguage",
        "contentType", "metadata", "cacheControl", "storageClass",
    ]

    init?(key: Text) {
        guard let index = Self.keys.firstIndex(of: key) else { return nil }
        self.init(rawValue: UInt8(index))
    }

    /// Whether `request.resource` has this property.
    public var isIncoming: Bool {
        switch self {
        case .timeCreated, .updated: false
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

/// A property name resolved at load time: the property of `request` and of an object that it names, if any.
struct FieldCode: Sendable {
    private let requestCode: UInt8
    private let objectCode: UInt8

    init(_ key: Text) {
        requestCode = RequestField(key: key).map { $0.rawValue } ?? .max
        objectCode = ObjectField(key: key).map { $0.rawValue } ?? .max
    }

    var request: RequestField? { RequestField(rawValue: requestCode) }
    var object: ObjectField? { ObjectField(rawValue: objectCode) }
}

/// A set of inputs that a value depends on.
struct InputBits: OptionSet, Sendable {
    var rawValue: UInt64

    init(rawValue: UInt64) { self.rawValue = rawValue }

    /// A property of `request.resource`.
    init(_ field: ObjectField) { rawValue = 1 << UInt64(field.rawValue) }

    /// `resource`.
    static let existing = InputBits(rawValue: 1 << 20)
    /// `request.auth`.
    static let auth = InputBits(rawValue: 1 << 21)
    /// Any documents.
    static let documents = InputBits(rawValue: 1 << 22)
    /// Every property of `request.resource`.
    static let incoming = InputBits(rawValue: 1 << 20 - 1)

    /// The document with this index in the order of lookups.
    static func document(_ index: Int) -> InputBits { InputBits(rawValue: 1 << UInt64(23 + index)) }

    /// The maximum number of documents that are tracked separately.
    static let maximumDocuments = 12

    /// `request.time`, if it is a period.
    static let time = InputBits(rawValue: 1 << 30)

    var incomingFields: [ObjectField] { ObjectField.allCases.filter { contains(InputBits($0)) } }
}
