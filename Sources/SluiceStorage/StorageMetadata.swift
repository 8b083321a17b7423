import Foundation
import Synchronization

/// The metadata of an object.
///
/// Read-only properties come from the gateway. The others can be sent with an upload, or changed later: an update sends
/// only the properties that were set, and removes those that were set to nil. An upload or an update reads the metadata
/// when it is called; later changes have no effect on it.
///
/// ```swift
/// let metadata = StorageMetadata(contentType: "image/jpeg")
/// metadata.customMetadata = ["place": "Oslo"]
/// ```
///
/// All members can be used from any thread.
public final class StorageMetadata: Sendable, Hashable, CustomStringConvertible {
    private let state: Mutex<MetadataValues>

    init(_ values: MetadataValues) { state = Mutex(values) }

    /// Metadata for an upload or an update, with no property set.
    public convenience init() { self.init(MetadataValues()) }

    /// A copy.
    package convenience init(_ other: StorageMetadata) { self.init(other.values) }

    /// Metadata for an upload with this type.
    public convenience init(contentType: String) {
        self.init()
        self.contentType = contentType
    }

    /// Parses the gateway's JSON; nil if it is not the metadata of an object.
    /// - Parameter path: The requested object; a response about another object is rejected.
    convenience init?(json body: [UInt8], of path: String) {
        guard let values = MetadataValues(json: body, of: path) else { return nil }
        self.init(values)
    }

    /// The properties now.
    var values: MetadataValues { state.withLock { $0 } }

    // MARK: Properties of the object

    /// The bucket's name; empty if this does not come from the gateway.
    public var bucket: String { values.bucket }
    /// The object's path; nil if this does not come from the gateway.
    public var path: String? { values.isReceived ? values.path : nil }
    /// The last segment of the path; nil if this does not come from the gateway.
    public var name: String? { path.map(StorageReference.lastSegment) }
    /// The size in bytes.
    public var size: Int64 { values.size }
    /// Changes with each upload.
    public var generation: Int64 { values.generation }
    /// 1 after an upload, and 1 more after each update.
    public var metageneration: Int64 { values.metageneration }
    /// When the bytes were stored.
    public var timeCreated: Date? { values.timeCreated }
    /// When the bytes or the metadata were stored.
    public var updated: Date? { values.updated }
    /// The MD5 of the bytes in base64; nil if the store does not know it.
    public var md5Hash: String? { values.md5Hash }
    /// The CRC-32C of the bytes in base64, the most significant byte first; nil if the store does not know it.
    public var crc32c: String? { values.crc32c }
    /// Whether this is the metadata of an object, and comes from the gateway.
    public var isFile: Bool { values.isReceived }
    /// Whether this is the metadata of a folder. Folders have none, so this is false.
    public var isFolder: Bool { false }

    // MARK: Properties that can be set

    /// The media type. An upload without one gets the type of the name's extension.
    public var contentType: String? {
        get { values.contentType }
        set { state.withLock { $0.contentType = newValue } }
    }
    /// How long caches may keep the object.
    public var cacheControl: String? {
        get { values.cacheControl }
        set { state.withLock { $0.cacheControl = newValue } }
    }
    /// Whether browsers show or save the object, and under which name.
    public var contentDisposition: String? {
        get { values.contentDisposition }
        set { state.withLock { $0.contentDisposition = newValue } }
    }
    /// The coding of the bytes, such as `gzip`. On Linux the library downloads the bytes as they are stored. On Apple
    /// platforms `URLSession` decodes such bytes, and the download fails.
    public var contentEncoding: String? {
        get { values.contentEncoding }
        set { state.withLock { $0.contentEncoding = newValue } }
    }
    /// The language of the content.
    public var contentLanguage: String? {
        get { values.contentLanguage }
        set { state.withLock { $0.contentLanguage = newValue } }
    }
    /// Pairs of the application, at most 8 KiB. An update changes the pairs that are in it, and removes those that were in
    /// the metadata before and are not any more.
    /// Keys: names of the application; a key that occurs twice in different spellings of one character is kept once.
    public var customMetadata: [String: String]? {
        get { values.customMetadata }
        set { state.withLock { $0.customMetadata = newValue } }
    }

    /// Makes an update remove one pair of custom metadata and keep the others.
    package func removeCustomMetadata(_ key: String) {
        state.withLock { $0.removeCustomMetadata(key) }
    }

    // MARK: The object as a value

    /// An independent copy: a ``StorageMetadata``.
    public func copy() -> Any { StorageMetadata(self) }

    /// The properties that have a value, by the names of the gateway's JSON.
    /// Keys: names of our own.
    public func dictionaryRepresentation() -> [String: AnyHashable] { values.dictionary }

    /// Whether both have the same properties, set in the same way.
    public static func == (left: StorageMetadata, right: StorageMetadata) -> Bool {
        left === right || left.values == right.values
    }

    /// Without the properties that can be set.
    public func hash(into hasher: inout Hasher) {
        hasher.combine(size)
        hasher.combine(generation)
    }

    /// The properties that have a value.
    public var description: String {
        let pairs = values.dictionary.map { "\($0.key): \($0.value)" }.sorted()
        return "StorageMetadata(\(pairs.joined(separator: ", ")))"
    }
}
