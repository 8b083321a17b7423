import Foundation
import Wire

/// Reads one version of an object in pieces, in their order, and verifies it at the end. Memory holds one piece. Of several
/// copies of a reader only one may be used.
///
/// ```swift
/// var reader = try await StorageReader(reference)
/// while let piece = try await reader.next() { try output.write(contentsOf: piece) }
/// ```
public struct StorageReader {
    /// The object.
    public let reference: StorageReference
    /// The metadata of the version that is read. If it was opened from a list, only what the list says.
    public let metadata: StorageMetadata
    /// The number of bytes read so far.
    public private(set) var offset: Int64 = 0

    private var sum: ExpectedChecksum
    /// The outcome of the verification at the end.
    private var isVerified: Bool?

    /// Opens the current version of an object.
    public init(_ reference: StorageReference) async throws(StorageError) {
        self.init(reference, try await reference.getMetadata())
    }

    /// Opens a version whose metadata is known already.
    public init(_ reference: StorageReference, _ metadata: StorageMetadata) {
        self.reference = reference
        self.metadata = metadata
        sum = ExpectedChecksum(metadata)
    }

    /// Opens the version that a list shows, without a further request if the list says enough of it.
    public init(_ object: StorageListedObject) async throws(StorageError) {
        guard let size = object.size, let generation = object.generation, object.crc32c != nil || object.md5Hash != nil
        else {
            try await self.init(object.reference)
            return
        }
        var metadata = MetadataValues()
        metadata.bucket = object.reference.bucket
        metadata.path = object.reference.fullPath
        metadata.size = size
        metadata.generation = generation
        metadata.updated = object.updated
        metadata.md5Hash = object.md5Hash
        metadata.crc32c = object.crc32c
        self.init(object.reference, StorageMetadata(metadata))
    }

    /// Adds bytes of an earlier download of this version, which are verified with the others.
    public mutating func skip(_ bytes: [UInt8]) {
        sum.update(bytes)
        offset += Int64(bytes.count)
    }

    /// Returns the next bytes, or nil at the end.
    /// - Parameter maximum: The maximum number of bytes.
    /// - Throws: ``StorageError``: with status 412 if the object was replaced, `objectNotFound` if it was deleted,
    ///   `nonMatchingChecksum` at the end if the bytes are not the object's.
    public mutating func next(maximum: Int64 = 8 << 20) async throws(StorageError) -> [UInt8]? {
        guard offset < metadata.size else {
            let matches = isVerified ?? (offset == metadata.size && sum.matches())
            isVerified = matches
            guard matches else {
                throw StorageError(.nonMatchingChecksum, "The bytes received are not the object's.")
            }
            return nil
        }
        let range = offset..<(offset + min(metadata.size - offset, max(1, maximum)))
        let bytes = try await StorageReader.bytes(range, of: metadata, reference)
        skip(bytes)
        return bytes
    }

    private static func bytes(
        _ range: Range<Int64>, of object: StorageMetadata, _ reference: StorageReference
    ) async throws(StorageError) -> [UInt8] {
        let last = range.upperBound - 1
        var request = HTTPRequest("GET", try reference.url())
        request.fields = [
            ("Range", "bytes=\(range.lowerBound)-\(last)"),
            ("X-Object-Generation-Match", String(object.generation)),
        ]
        request.limit = max(range.count, 1 << 20)
        let expected = "bytes \(range.lowerBound)-\(last)/\(object.size)"
        return try await reference.operation {
            [request] requests throws(StorageError) in
            try await requests.call(
                request, [206], retryTime: requests.storage.maxDownloadRetryTime
            ) { response in
                response["content-range"] == expected && response.body.count == range.count
                    && response["x-object-generation"] == String(object.generation) ? response.body : nil
            }
        }
    }
}

extension StorageChecksum {
    /// The best checksum that is known of an object: CRC-32C, otherwise MD5; nil if there is none.
    public init?(_ object: StorageListedObject) {
        if let crc32c = object.crc32c {
            self = .crc32c(crc32c)
        } else if let md5 = object.md5Hash {
            self = .md5(md5)
        } else {
            return nil
        }
    }
}

/// A checksum of an object's bytes, in base64.
public enum StorageChecksum: Sendable, Equatable {
    /// CRC-32C (RFC 9260, appendix A), the most significant byte first.
    case crc32c(String)
    /// MD5 (RFC 1321).
    case md5(String)

    /// Whether the bytes of a local file have this checksum. It reads the file, whose size does not matter for memory.
    /// - Throws: ``StorageError`` if the file can't be read, or changes meanwhile.
    public func matches(fileAt path: String) throws(StorageError) -> Bool {
        let file = try LocalFile(path)
        var crc = CRC32C()
        var md5 = MD5()
        var offset: Int64 = 0
        while offset < file.state.size {
            let end = min(file.state.size, offset + (1 << 20))
            let bytes = try file.read(offset..<end)
            switch self {
            case .crc32c: crc.update(bytes)
            case .md5: md5.update(bytes)
            }
            offset = end
        }
        return switch self {
        case .crc32c(let expected): crc.base64 == expected
        case .md5(let expected): md5.base64() == expected
        }
    }
}
