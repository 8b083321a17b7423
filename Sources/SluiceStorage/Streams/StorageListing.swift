import Foundation
import Wire

/// An object of a list, with what the store's own list says of it. A property is nil if the store's list does not have it, or
/// if the rules do not show it to this caller; ``StorageReference/getMetadata()`` has all of them.
public struct StorageListedObject: Sendable, Equatable {
    /// The object.
    public let reference: StorageReference
    /// The size in bytes.
    public let size: Int64?
    /// When the bytes or the metadata were stored.
    public let updated: Date?
    /// Changes with each upload.
    public let generation: Int64?
    /// The media type.
    public let contentType: String?
    /// The MD5 of the bytes in base64.
    public let md5Hash: String?
    /// The CRC-32C of the bytes in base64, the most significant byte first.
    public let crc32c: String?

    fileprivate init?(_ json: JSONValue, _ storage: Storage) {
        guard let path = json["fullPath"]?.text else { return nil }
        self.init(StorageReference(storage, path: path), json)
    }

    /// The object of a change, whose properties have the names of a list's.
    init?(change json: JSONValue, _ storage: Storage) {
        guard let path = json["name"]?.text else { return nil }
        self.init(StorageReference(storage, path: path), json)
    }

    private init(_ reference: StorageReference, _ json: JSONValue) {
        self.reference = reference
        size = json["size"]?.integer
        updated = MetadataValues.date(json["updated"])
        generation = json["generation"]?.integer
        contentType = json["contentType"]?.text
        md5Hash = json["md5Hash"]?.text
        crc32c = json["crc32c"]?.text
    }

    /// The object that this metadata describes.
    public init(_ reference: StorageReference, _ metadata: StorageMetadata) {
        self.reference = reference
        size = metadata.size
        updated = metadata.updated
        generation = metadata.generation
        contentType = metadata.contentType
        md5Hash = metadata.md5Hash
        crc32c = metadata.crc32c
    }
}

/// A page of a list with properties.
public struct StorageListing: Sendable, Equatable {
    /// Folders; none if the list is recursive.
    public let prefixes: [StorageReference]
    /// Objects, in the order of their paths' bytes.
    public let objects: [StorageListedObject]
    /// Continues the list; nil if nothing follows.
    public let pageToken: String?
    /// The number of the bucket's newest change before the page; nil if it is not watched.
    let sequence: Int64?

    /// Parses the gateway's JSON; nil if it is not the next page of the list.
    /// - Throws: ``StorageError`` if the list does not end.
    fileprivate init?(_ response: HTTPResponse, after position: ListPosition, _ storage: Storage)
        throws(StorageError)
    {
        guard let json = try? JSONReader.parse(response.body),
            let folders = json["prefixes"]?.elements, let items = json["items"]?.elements
        else { return nil }
        let names = folders.compactMap(\.text)
        objects = items.compactMap { StorageListedObject($0, storage) }
        guard names.count == folders.count, objects.count == items.count,
            let next = try position.next(
                folders: names, objects: objects.map(\.reference.fullPath), token: json["nextPageToken"]?.text)
        else { return nil }
        prefixes = names.map { storage.reference(withPath: $0) }
        pageToken = next.pageToken
        sequence = response["x-object-sequence"].flatMap { Int64($0) }
    }
}

extension StorageReference {
    /// A page of up to 1,000 entries of this folder, with the properties of its objects: one request for all of them.
    /// - Parameters:
    ///   - recursive: Whether objects in folders below are included. The rules must allow a list of each folder then.
    ///   - pageToken: ``StorageListing/pageToken`` of the page before.
    public func listing(
        recursive: Bool = false, pageToken: String? = nil
    ) async throws(StorageError) -> StorageListing {
        try await page(
            "view=full&maxResults=1000&delimiter=\(recursive ? "" : "%2F")", pageToken)
    }

    /// Requests a page. One that is not the next page of the list is malformed, as if the connection had failed.
    func page(_ query: String, _ pageToken: String?) async throws(StorageError) -> StorageListing {
        let position = ListPosition(of: fullPath.isEmpty ? "" : fullPath + "/", pageToken: pageToken)
        var query = query + "&prefix=\(PercentEncoding.encodeSegment(position.prefix))"
        if let token = position.token {
            query += "&pageToken=\(PercentEncoding.encodeSegment(token))"
        }
        try check()
        let request = HTTPRequest("GET", try storage.endpoint.list(query))
        return try await operation { requests throws(StorageError) in
            try await requests.call(request) { response throws(StorageError) in
                try StorageListing(response, after: position, storage)
            }
        }
    }

    /// The object's own URL at the gateway. The rules decide who can use it; ``downloadURL(expiresIn:)`` returns one that works for anyone.
    public func objectURL() throws(StorageError) -> URL { try url() }

    /// Deletes one version of the object. Fails with status 412 if the object was replaced.
    /// - Parameter generation: ``StorageMetadata/generation`` of that version.
    public func delete(ifGeneration generation: Int64) async throws(StorageError) {
        var request = HTTPRequest("DELETE", try url())
        request.fields = [("X-Object-Generation-Match", String(generation))]
        try await operation { [request] requests throws(StorageError) in
            try await requests.call(request, [204]) { _ in () }
        }
    }
}
