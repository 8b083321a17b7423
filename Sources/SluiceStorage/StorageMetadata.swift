import Foundation
import Wire

/// The metadata of an object.
///
/// The gateway sets what can only be read. The other properties can be sent with an upload, or changed later: an update
/// sends only the properties that were set, and removes those that were set to nil.
///
/// ```swift
/// var metadata = StorageMetadata(contentType: "image/jpeg")
/// metadata.customMetadata = ["place": "Oslo"]
/// ```
public struct StorageMetadata: Sendable, Equatable {
    /// The bucket's name.
    public internal(set) var bucket = ""
    /// The object's path.
    public internal(set) var path = ""
    /// The size in bytes.
    public internal(set) var size: Int64 = 0
    /// Changes with each upload.
    public internal(set) var generation: Int64 = 0
    /// 1 after an upload, and 1 more after each update.
    public internal(set) var metageneration: Int64 = 0
    /// When the bytes were stored.
    public internal(set) var timeCreated: Date?
    /// When the bytes or the metadata were stored.
    public internal(set) var updated: Date?
    /// The MD5 of the bytes in base64; nil if the store does not know it.
    public internal(set) var md5Hash: String?
    /// The CRC-32C of the bytes in base64, the most significant byte first; nil if the store does not know it.
    public internal(set) var crc32c: String?
    /// The last segment of the path.
    public var name: String { StorageReference.lastSegment(path) }

    /// The media type. An upload without one gets that of the name's extension.
    public var contentType: String? { didSet { changed.insert(.contentType) } }
    /// How long caches may keep the object.
    public var cacheControl: String? { didSet { changed.insert(.cacheControl) } }
    /// Whether browsers show or save the object, and under which name.
    public var contentDisposition: String? { didSet { changed.insert(.contentDisposition) } }
    /// The coding of the bytes, such as `gzip`. On Linux the library downloads the bytes as they are stored. On Apple
    /// platforms `URLSession` decodes such bytes, and the download fails.
    public var contentEncoding: String? { didSet { changed.insert(.contentEncoding) } }
    /// The language of the content.
    public var contentLanguage: String? { didSet { changed.insert(.contentLanguage) } }
    /// Pairs of the application, at most 8 KiB. An update changes the pairs that are in it, and removes those that were in
    /// the metadata before and are not any more.
    /// Keys: names of the application; a key that occurs twice in different spellings of one character is kept once.
    public var customMetadata: [String: String]? { didSet { changed.insert(.customMetadata) } }

    /// The properties that were set.
    private var changed: Set<Property> = []
    /// The custom metadata that the object had.
    /// Keys: as in ``customMetadata``.
    private var known: [String: String] = [:]

    private enum Property {
        case contentType, cacheControl, contentDisposition, contentEncoding, contentLanguage
        case customMetadata
    }

    /// Metadata for an upload or an update, with no property set.
    public init() {}

    /// Metadata for an upload with this type.
    public init(contentType: String) {
        self.init()
        self.contentType = contentType
        changed = [.contentType]
    }

    /// Has an update remove one pair of custom metadata, whatever the others are.
    package mutating func removeCustomMetadata(_ key: String) {
        known[key] = ""
        var pairs = customMetadata ?? [:]
        pairs[key] = nil
        customMetadata = pairs
    }

    // MARK: Responses

    /// Parses the gateway's JSON; nil if it is not the metadata of an object.
    /// - Parameter path: The object that was asked for; a response of another one is no response.
    init?(json body: [UInt8], of path: String) {
        guard let json = try? JSONReader.parse(body) else { return nil }
        self.init(json)
        guard BytewiseString.areEqual(self.path, path) else { return nil }
    }

    /// nil if a property is missing that every object has.
    init?(_ json: JSONValue) {
        guard let bucket = json["bucket"]?.text, let path = json["fullPath"]?.text,
            let size = json["size"]?.integer, let generation = json["generation"]?.integer,
            size >= 0
        else { return nil }
        self.bucket = bucket
        self.path = path
        self.size = size
        self.generation = generation
        metageneration = json["metageneration"]?.integer ?? 0
        timeCreated = StorageMetadata.date(json["timeCreated"])
        updated = StorageMetadata.date(json["updated"])
        md5Hash = json["md5Hash"]?.text
        crc32c = json["crc32c"]?.text
        contentType = json["contentType"]?.text
        cacheControl = json["cacheControl"]?.text
        contentDisposition = json["contentDisposition"]?.text
        contentEncoding = json["contentEncoding"]?.text
        contentLanguage = json["contentLanguage"]?.text
        if case .object(let members)? = json["customMetadata"] {
            for member in members { known[member.key] = member.value.text }
        }
        if !known.isEmpty { customMetadata = known }
        changed = []
    }

    static func date(_ json: JSONValue?) -> Date? {
        json?.text.flatMap { HTTPDate.parse(rfc3339: $0) }
            .map { Date(timeIntervalSince1970: Double($0) / 1000) }
    }

    // MARK: Requests

    /// The field that carries the custom metadata of an upload.
    static let pairsField = "X-Object-Metadata"
    /// The maximum size of that field in bytes. With all other fields it must fit into the gateway's limit of 32 KiB for a
    /// head. 8 KiB of pairs are 11 KiB here, unless most of them are control characters.
    private static let maximumEncodedBytes = 20 << 10

    /// The fields of an upload.
    /// - Parameter type: The media type, if none is set.
    func fields(type: String?) throws(StorageError) -> [(name: String, value: String)] {
        let texts: [(String, String?)] = [
            ("Content-Type", contentType ?? type ?? MediaTypes.unknown),
            ("Cache-Control", cacheControl), ("Content-Disposition", contentDisposition),
            ("Content-Encoding", contentEncoding), ("Content-Language", contentLanguage),
        ]
        var fields: [(name: String, value: String)] = []
        for case (let name, let value?) in texts {
            guard !value.utf8.contains(where: ASCII.isControl) else {
                throw StorageError(.invalidArgument, "\(name) has a control character.")
            }
            fields.append((name, value))
        }
        if let customMetadata, !customMetadata.isEmpty {
            let text = Base64.encodeForURL(JSONWriter.object(customMetadata))
            guard text.utf8.count <= StorageMetadata.maximumEncodedBytes else {
                throw StorageError(.invalidArgument, "The custom metadata is too large.")
            }
            fields.append((StorageMetadata.pairsField, text))
        }
        return fields
    }

    /// The JSON Merge Patch of an update.
    var patch: [UInt8] {
        var json = JSONWriter(reserving: 256)
        json.beginObject()
        let texts: [(Property, String, String?)] = [
            (.contentType, "contentType", contentType),
            (.cacheControl, "cacheControl", cacheControl),
            (.contentDisposition, "contentDisposition", contentDisposition),
            (.contentEncoding, "contentEncoding", contentEncoding),
            (.contentLanguage, "contentLanguage", contentLanguage),
        ]
        for (property, key, value) in texts where changed.contains(property) {
            if let value { json.member(key: key, value) } else { json.memberNull(key: key) }
        }
        if changed.contains(.customMetadata) {
            if let customMetadata {
                json.key("customMetadata")
                json.beginObject()
                for (key, value) in customMetadata { json.member(key: key, value) }
                for key in known.keys where customMetadata[key] == nil { json.memberNull(key: key) }
                json.endObject()
            } else {
                json.memberNull(key: "customMetadata")
            }
        }
        json.endObject()
        return json.bytes
    }
}

extension JSONWriter {
    /// An object of strings.
    /// - Parameter pairs: Keys: names of the application.
    fileprivate static func object(_ pairs: [String: String]) -> [UInt8] {
        var json = JSONWriter(reserving: 256)
        json.beginObject()
        for (key, value) in pairs { json.member(key: key, value) }
        json.endObject()
        return json.bytes
    }
}
