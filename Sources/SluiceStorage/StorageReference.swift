import Foundation
import Wire

/// The path of an object or folder in a bucket. It need not exist.
public final class StorageReference: Sendable, Hashable, CustomStringConvertible {
    /// The bucket.
    public let storage: Storage
    /// The path without leading and trailing slashes; empty for the root.
    public let fullPath: String

    /// Why no operation is possible: the URL is not a reference.
    private let fault: StorageError?

    init(_ storage: Storage, path: String, fault: StorageError? = nil) {
        self.storage = storage
        self.fault = fault
        fullPath = path
    }

    /// The bucket's name.
    public var bucket: String { storage.bucket }

    /// The last segment of the path; empty for the root.
    public var name: String { StorageReference.lastSegment(fullPath) }

    /// `gs://BUCKET/PATH`.
    public var description: String { "gs://\(bucket)/\(fullPath)" }

    /// The root of the bucket.
    public func root() -> StorageReference {
        StorageReference(storage, path: "", fault: fault)
    }

    /// The folder that this is in; nil for the root.
    public func parent() -> StorageReference? {
        if fullPath.isEmpty { return nil }
        let bytes = fullPath.utf8
        let slash = bytes.lastIndex(of: UInt8(ascii: "/")) ?? bytes.startIndex
        return StorageReference(storage, path: String(fullPath[..<slash]), fault: fault)
    }

    /// The names below this reference.
    /// - Parameter path: A path; leading, trailing and repeated slashes are ignored.
    public func child(_ path: String) -> StorageReference {
        let segments =
            (fullPath.utf8.split(separator: UInt8(ascii: "/")) + path.utf8.split(separator: UInt8(ascii: "/")))
        let joined = segments.map { String(decoding: $0, as: UTF8.self) }.joined(separator: "/")
        return StorageReference(storage, path: joined, fault: fault)
    }

    static func lastSegment(_ path: String) -> String {
        let bytes = path.utf8
        guard let slash = bytes.lastIndex(of: UInt8(ascii: "/")) else { return path }
        return String(path[bytes.index(after: slash)...])
    }

    /// Whether both are the same path of the same bucket at the same address.
    public static func == (left: StorageReference, right: StorageReference) -> Bool {
        left.storage.endpoint == right.storage.endpoint && left.fullPath == right.fullPath
    }

    /// Without the address, which ``Storage/useEmulator(withHost:port:)`` changes.
    public func hash(into hasher: inout Hasher) {
        hasher.combine(BytewiseString(bucket))
        hasher.combine(BytewiseString(fullPath))
    }

    /// - Throws: ``StorageError`` if the URL of this reference is not valid.
    func check() throws(StorageError) {
        if let fault { throw fault }
    }

    /// Another reference to the same path: a ``StorageReference``.
    public func copy() -> Any { StorageReference(storage, path: fullPath, fault: fault) }

    /// The URL of the object.
    /// - Throws: `pathError` for the root, or what ``check()`` throws.
    func url(_ query: String = "") throws(StorageError) -> URL {
        try check()
        return try storage.endpoint.object(fullPath, query)
    }
}
