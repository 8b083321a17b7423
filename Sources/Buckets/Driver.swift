import System
import Wire

/// The operations that every store implements: a minimal set without default implementations.
///
/// The gateway, not the driver, validates names, logs and counts. Calls run on an event loop's executor and must not
/// block it; if there is nothing to wait for, they don't suspend. A failed call leaves no visible partial result.
public protocol BucketDriver: Sendable {
    /// The capabilities of this store. The first call may query the service.
    func capabilities() async throws(BucketError) -> Capabilities

    /// The metadata of the current object.
    /// - Throws: ``BucketError`` with `.objectNotFound`, or a failure of the store.
    func stat(_ name: String) async throws(BucketError) -> ObjectMetadata

    /// Opens the current object for reading, with one request if the service allows it. The bytes always belong to the
    /// returned metadata, even if the name is overwritten later.
    func open(_ name: String, _ plan: ReadPlan) async throws(BucketError) -> any ObjectReader

    /// Begins an upload. It stays invisible until ``Upload/commit(_:)``.
    func beginUpload(_ name: String, _ plan: UploadPlan) async throws(BucketError) -> any Upload

    /// Changes the writable properties. The preconditions are checked atomically with the change.
    func patch(_ name: String, _ patch: AttributePatch, _ preconditions: Preconditions)
        async throws(BucketError) -> ObjectMetadata

    /// Removes the object. The preconditions are checked atomically with the removal.
    func delete(_ name: String, _ preconditions: Preconditions) async throws(BucketError)

    /// Returns one page in UTF-8 byte order. `after` is the ``ListPage/end`` of the previous page, exclusive.
    func list(_ query: ListQuery, after: String?) async throws(BucketError) -> ListPage

    /// Checks whether the store can serve requests now.
    /// - Throws: ``BucketError`` with the cause if it cannot.
    func checkHealth() async throws(BucketError)

    /// Finishes pending work and releases the store.
    func close() async
}

extension BucketDriver {
    /// The metadata of the current object; nil if there is none.
    func find(_ name: String) async throws(BucketError) -> ObjectMetadata? {
        do throws(BucketError) {
            return try await stat(name)
        } catch {
            if error.code == .objectNotFound { return nil }
            throw error
        }
    }
}

/// A store that can read one version of an object.
public protocol PinnedReads: BucketDriver {
    /// Opens a version of an object without a request. ``ObjectReader/bytes(_:)`` requests bytes of this version only.
    /// It fails with ``BucketError/Code/replaced`` if the version is gone.
    /// - Returns: nil if the store can't name the version in a request.
    func reader(of object: ObjectMetadata) -> (any ObjectReader)?
}

/// The capabilities of a store. The gateway rejects requests that need a missing one.
public struct Capabilities: Sendable, Equatable {
    /// Upload preconditions are checked atomically with the commit.
    public var atomicUploads: Bool
    /// Patch preconditions are checked atomically with the change.
    public var atomicPatches: Bool
    /// A patch checks atomically that the bytes are those that the rules saw, and results in exactly the properties
    /// that the rules allowed. A concurrent patch may be lost. Always true with ``atomicPatches``.
    public var pinnedPatches: Bool
    /// Deletion preconditions are checked atomically with the removal.
    public var atomicDeletions: Bool
    /// ``Upload/commit(_:)`` accepts preconditions that differ from those in the upload's plan.
    public var lateConditions: Bool
    /// An acknowledged write survives a power loss.
    public var durable: Bool
    /// An upload of at most 256 KiB stays open after a commit whose preconditions failed (``Upload/isOpen``).
    public var reopensSmallUploads = false
    /// The same for uploads of any size.
    public var reopensLargeUploads = false
    /// Upload sessions: the driver is a ``SessionDriver``.
    public var uploadSessions = false
    /// Uploads in parts: the driver is a ``PartsDriver``.
    public var parts = false
    /// The least size of each part but the last, in bytes.
    public var minimumPart: UInt64 = 0
    /// Copies within the store: the driver is a ``CopyingDriver``.
    public var copies = false
    /// The preconditions of a copy are checked atomically with it.
    public var atomicCopies = false
    /// A copy can remove its source in the same step.
    public var atomicMoves = false

    /// - Parameter pinnedPatches: nil to use the value of `atomicPatches`.
    public init(
        atomicUploads: Bool, atomicPatches: Bool, pinnedPatches: Bool? = nil,
        atomicDeletions: Bool, lateConditions: Bool, durable: Bool
    ) {
        self.atomicUploads = atomicUploads
        self.atomicPatches = atomicPatches
        self.pinnedPatches = pinnedPatches ?? atomicPatches
        self.atomicDeletions = atomicDeletions
        self.lateConditions = lateConditions
        self.durable = durable
    }

    /// All capabilities of a plain ``BucketDriver``: for a store without a remote service.
    public static let all: Capabilities = {
        var all = Capabilities(
            atomicUploads: true, atomicPatches: true, atomicDeletions: true, lateConditions: true, durable: true)
        all.reopensSmallUploads = true
        all.reopensLargeUploads = true
        return all
    }()
}

/// Hints about a read, so that a driver can do it with one request.
public struct ReadPlan: Sendable, Equatable {
    /// The requested range; nil for the whole object. ``ObjectReader/bytes(_:)`` may be called with another range.
    public var range: ByteRange?
    /// If these conditions do not hold, the bytes are not requested.
    public var conditions: Preconditions
    /// The number of the part to read instead of a range. A store that knows the parts of its objects reports the bytes
    /// with the metadata (``ObjectMetadata/partRange(_:)``).
    public var part: Int?

    public init(range: ByteRange? = nil, conditions: Preconditions = Preconditions(), part: Int? = nil) {
        self.range = range
        self.conditions = conditions
        self.part = part
    }
}

/// The properties of an upload that are known when it begins.
public struct UploadPlan: Sendable, Equatable {
    public var attributes: ObjectAttributes
    /// Size in bytes, if the client declared it. The client sends exactly this many bytes or fails.
    public var size: UInt64?
    /// 16 bytes, if the client declared them. Verified before the commit.
    public var md5: [UInt8]?
    /// Verified before the commit, if the client declared it.
    public var crc32c: UInt32?
    /// Whether the md5 of the received bytes is compared or reported. MD5 costs more than all other work on the bytes,
    /// so a store that does not keep it may skip it if this is false.
    public var wantsMD5 = true
    /// The digests to compute besides crc32c, which is always computed, and md5.
    public var digests: Set<DigestAlgorithm>
    /// The expected preconditions of ``Upload/commit(_:)``.
    public var preconditions: Preconditions
    /// Whether the upload is already authorized, so that the commit follows once the bytes are verified.
    public var isDecided: Bool
    /// The current object, if it has been looked up.
    public var existing: CurrentObject

    public init(
        _ attributes: ObjectAttributes = ObjectAttributes(), size: UInt64? = nil, digests: Set<DigestAlgorithm> = [],
        preconditions: Preconditions = Preconditions(), isDecided: Bool = true, existing: CurrentObject = .unknown
    ) {
        self.attributes = attributes
        self.size = size
        self.digests = digests
        self.preconditions = preconditions
        self.isDecided = isDecided
        self.existing = existing
    }
}

/// The result of looking up an object by its name.
public enum CurrentObject: Sendable, Equatable {
    /// The object has not been looked up.
    case unknown
    /// No object existed at the time of the lookup.
    case absent
    /// This object existed at the time of the lookup.
    case object(ObjectMetadata)
}

/// An object opened for reading. Confined to one loop.
public protocol ObjectReader: AnyObject {
    /// The metadata that belongs to the bytes of this reader.
    var metadata: ObjectMetadata { get }
    /// The same bytes as ``bytes(_:)`` if they are available without waiting; otherwise nil, without an effect.
    func readyBytes(_ range: Range<UInt64>) throws(BucketError) -> (any ByteSource)?
    /// Opens the bytes of `range`, which lies within `0..<size`. May be called once. The caller closes the source.
    func bytes(_ range: Range<UInt64>) async throws(BucketError) -> any ByteSource
    /// Releases the object if ``bytes(_:)`` was not called.
    func close()
}

/// An upload in progress. Confined to one loop. Ends with ``abort()``, or a commit that clears ``isOpen``.
public protocol Upload: ByteSink {
    /// Completes the body and returns the facts of the received bytes. No ``ByteSink/write(_:)`` may follow.
    func finish() async throws(BucketError) -> ContentFacts
    /// Makes the object visible, with its bytes on stable storage, if the preconditions hold at that moment.
    ///
    /// After `.preconditionFailed` the upload may be open for another commit or ``abort()``. Other results end it.
    func commit(_ preconditions: Preconditions) async throws(BucketError) -> CommitResult
    /// Whether the upload is complete and can still be committed.
    var isOpen: Bool { get }
    /// Discards the upload. The existing object, if any, remains.
    func abort()
    /// Stores a checksum with the object that was not known when the upload began, because it came after the bytes. May
    /// be called between ``finish()`` and ``commit(_:)``.
    /// - Returns: Whether it is stored. If not, the service has the object's properties already.
    func keep(_ checksum: S3Properties.Checksum) -> Bool
}

extension Upload {
    public func keep(_ checksum: S3Properties.Checksum) -> Bool { false }
}

/// The result of a commit.
public struct CommitResult: Sendable {
    public var metadata: ObjectMetadata
    /// Whether the commit replaced an object of the same name.
    public var replaced: Bool
    /// Whether the store has confirmed that this upload created the object. If false, the object may belong to another
    /// upload and must not be deleted.
    public var isKnownAsOwn: Bool
    /// Whether an earlier commit of the session has recorded this result. Only one of several commits records it.
    public var isRepeated: Bool

    public init(
        metadata: ObjectMetadata, replaced: Bool = false, isKnownAsOwn: Bool = true,
        isRepeated: Bool = false
    ) {
        self.metadata = metadata
        self.replaced = replaced
        self.isKnownAsOwn = isKnownAsOwn
        self.isRepeated = isRepeated
    }
}

/// The facts of a body, computed while it streamed.
public struct ContentFacts: Sendable, Equatable {
    public var size: UInt64
    /// 16 bytes; nil if not requested by ``UploadPlan/wantsMD5`` and not needed by the store.
    public var md5: [UInt8]?
    /// nil if the bytes are parts of a service that does not report it.
    public var crc32c: UInt32?
    /// The digests requested in ``UploadPlan/digests``.
    public var digests: [DigestAlgorithm: [UInt8]]

    public init(
        size: UInt64, md5: [UInt8]?, crc32c: UInt32?, digests: [DigestAlgorithm: [UInt8]] = [:]
    ) {
        self.size = size
        self.md5 = md5
        self.crc32c = crc32c
        self.digests = digests
    }

    /// A checksum of S3; nil if it was not computed.
    public func checksum(_ algorithm: ChecksumAlgorithm) -> [UInt8]? {
        guard let digest = algorithm.digest else { return crc32c?.bigEndianBytes }
        return digests[digest]
    }
}

/// Digests besides md5 and crc32c that a client may have verified: those of RFC 9530, section 5, and those of S3.
public enum DigestAlgorithm: String, Sendable, Hashable, CaseIterable {
    case sha256 = "sha-256"
    case sha512 = "sha-512"
    /// For clients of S3. The CRCs are big-endian.
    case crc32, crc64nvme, sha1
}

/// Selects the objects of a list.
public struct ListQuery: Sendable, Equatable {
    /// At most 1,024 bytes.
    public var prefix: String
    /// Whether names are folded at the first `/` after the prefix.
    public var delimited: Bool
    /// The maximum number of entries of a page, items and prefixes together.
    public var limit: Int
    /// Whether the page also has the properties of its items, without a further request or scan.
    public var withProperties: Bool
    /// Whether these properties include ``ListedProperties/s3Tag`` of objects in parts, for which some services send
    /// longer pages.
    public var withS3Tags = false
    /// Whether names that end in one `/` are items too: folder markers of S3. If names are folded, such a name is an
    /// item only of the list with it as the prefix; otherwise it is folded as the names below it are.
    public var markers = false

    public init(prefix: String, delimited: Bool, limit: Int, withProperties: Bool = false) {
        self.prefix = prefix
        self.delimited = delimited
        self.limit = limit
        self.withProperties = withProperties
    }
}

/// One page of a list. Names that contain `//` or are not UTF-8 are left out, and those that end in `/` unless
/// ``ListQuery/markers`` are requested.
public struct ListPage: Sendable, Equatable {
    /// Folded names, each ending in `/`, in byte order.
    public var prefixes: [String] = []
    /// Object names in byte order.
    public var items: [String] = []
    /// The properties of items by name, if requested. May contain names that are not items.
    public var properties: [BytewiseString: ListedProperties] = [:]
    /// The last name or prefix that the page covers; nil on the last page.
    public var end: String?

    public init() {}
}

/// The properties of an object in the store's list; nil if the list lacks them.
public struct ListedProperties: Sendable, Equatable {
    /// Bytes.
    public var size: UInt64
    /// Time of the last change, in milliseconds since 1970. On S3 in whole seconds.
    public var updated: Int64
    /// Identifies the bytes, without quotes.
    public var etag: String
    /// nil on S3, which keeps this and the next three in metadata that lists lack.
    public var generation: Int64?
    public var contentType: String?
    /// 16 bytes.
    public var md5: [UInt8]?
    public var crc32c: UInt32?
    /// The stored tag of an object in parts.
    var storedTag: String?

    /// The same as ``ObjectMetadata/s3Tag``, if the list was requested with ``ListQuery/withS3Tags``.
    public var s3Tag: String {
        S3Properties.tag(stored: storedTag, etag: etag, md5: md5, generation: generation)
    }

    public init(size: UInt64, updated: Int64, etag: String) {
        self.size = size
        self.updated = updated
        self.etag = etag
    }
}
