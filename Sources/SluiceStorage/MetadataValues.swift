import Foundation
import Wire

/// The properties of an object, and which of them were set.
struct MetadataValues: Sendable, Equatable {
    /// The bucket's name.
    var bucket = ""
    /// The object's path.
    var path = ""
    /// The size in bytes.
    var size: Int64 = 0
    /// Changes with each upload.
    var generation: Int64 = 0
    /// 1 after an upload, and 1 more after each update.
    var metageneration: Int64 = 0
    /// When the bytes were stored.
    var timeCreated: Date?
    /// When the bytes or the metadata were stored.
    var updated: Date?
    /// The MD5 of the bytes in base64; nil if the store does not know it.
    var md5Hash: String?
    /// The CRC-32C of the bytes in base64, the most significant byte first; nil if the store does not know it.
    var crc32c: String?

    /// The media type. An upload without one gets the type of the name's extension.
    var contentType: String? { didSet { changed.insert(.contentType) } }
    /// How long caches may keep the object.
    var cacheControl: String? { didSet { changed.insert(.cacheControl) } }
    /// Whether browsers show or save the object, and under which name.
    var contentDisposition: String? { didSet { changed.insert(.contentDisposition) } }
    /// The coding of the bytes, such as `gzip`. On Linux the library downloads the bytes as they are stored. On Apple
    /// platforms `URLSession` decodes such bytes, and the download fails.
    var contentEncoding: String? { didSet { changed.insert(.contentEncoding) } }
    /// The language of the content.
    var contentLanguage: String? { didSet { changed.insert(.contentLanguage) } }
    /// Pairs of the application, at most 8 KiB. An update changes the pairs that are in it, and removes those that were in
    /// the metadata before and are not any more.
    /// Keys: names of the application; a key that occurs twice in different spellings of one character is kept once.
    var customMetadata: [String: String]? { didSet { changed.insert(.customMetadata) } }

    /// The properties that were set.
    private var changed: Set<Property> = []
    /// The custom metadata that the object had.
    /// Keys: as in ``customMetadata``.
    private var known: [String: String] = [:]

    private enum Property {
        case contentType, cacheControl, contentDisposition, contentEncoding, contentLanguage
        case customMetadata
    }

    /// Whether they are of an object, as a response named it.
    var isReceived: Bool { !path.isEmpty }

    init() {}

    /// Makes an update remove one pair of custom metadata and keep the others.
    mutating func removeCustomMetadata(_ key: String) {
        known[key] = ""
        var pairs = customMetadata ?? [:]
        pairs[key] = nil
        customMetadata = pairs
    }

    // MARK: Responses

    /// Parses the gateway's JSON; nil if it is not the metadata of an object.
    /// - Parameter path: The requested object; a response about another object is rejected.
    init?(json body: [UInt8], of path: String) {
        guard let json = try? JSONReader.parse(body) else { return nil }
        self.init(json)
        guard BytewiseString.areEqual(self.path, path) else { return nil }
    }

    /// nil if a property is missing that every object has.
    init?(_ json: JSONValue) {
        guard let bucket = json["bucket"]?.text, let path = json["fullPath"]?.text, let size = json["size"]?.integer,
            let generation = json["generation"]?.integer, size >= 0
        else { return nil }
        self.bucket = bucket
        self.path = path
        self.size = size
        self.generation = generation
        metageneration = json["metageneration"]?.integer ?? 0
        timeCreated = MetadataValues.date(json["timeCreated"])
        updated = MetadataValues.date(json["updated"])
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
        json?.text.flatMap { HTTPDate.parse(rfc3339: $0) }.map { Date(timeIntervalSince1970: Double($0) / 1000) }
    }

    /// The properties that have a value, by the names of the gateway's JSON.
    /// Keys: names of our own.
    var dictionary: [String: AnyHashable] {
        let texts: [(String, AnyHashable?)] = [
            ("bucket", isReceived ? bucket : nil), ("name", isReceived ? path : nil),
            ("size", isReceived ? size : nil), ("generation", isReceived ? generation : nil),
            ("metageneration", isReceived ? metageneration : nil), ("timeCreated", timeCreated),
            ("updated", updated), ("md5Hash", md5Hash), ("crc32c", crc32c),
            ("contentType", contentType), ("cacheControl", cacheControl),
            ("contentDisposition", contentDisposition), ("contentEncoding", contentEncoding),
            ("contentLanguage", contentLanguage), ("metadata", customMetadata),
        ]
        // Keys: names of our own.
        var dictionary: [String: AnyHashable] = [:]
        for case (let key, let value?) in texts { dictionary[key] = value }
        return dictionary
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
            guard text.utf8.count <= MetadataValues.maximumEncodedBytes else {
                throw StorageError(.invalidArgument, "The custom metadata is too large.")
            }
            fields.append((MetadataValues.pairsField, text))
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
