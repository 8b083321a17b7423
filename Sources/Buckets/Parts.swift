import System
import Wire

/// A store with uploads in parts, which arrive in any order and at the same time.
///
/// A driver has both this protocol and ``Capabilities/parts``, or neither. These uploads are sessions:
/// ``SessionDriver/listSessions(after:limit:)``, ``SessionDriver/isOpen(_:)`` and
/// ``SessionDriver/removeExpiredSessions(limit:)`` include them, and ``SessionDriver/openSession(_:)`` rejects them.
public protocol PartsDriver: SessionDriver {
    /// Begins an upload in parts. It is durable when this returns.
    func beginParts(_ name: String, _ plan: SessionPlan) async throws(SessionError) -> any PartsUpload

    /// Opens an upload of this or another process, without a request to a service.
    /// - Parameter key: Its ``PartsUpload/key``; empty to only cancel it.
    /// - Throws: ``SessionError/notFound`` if it is known not to exist. Otherwise later calls find that out.
    func openParts(_ id: UploadSessionID, _ name: String, key: [UInt8]) async throws(SessionError) -> any PartsUpload
}

/// An upload whose bytes are numbered parts. It can be used on any loop, and its parts are received concurrently.
///
/// ``PendingUpload/state()`` has the size of all durable parts as its offset, or 0 if only a service knows it. Calls
/// throw ``SessionError/finished`` after the end, and ``SessionError/notFound`` once it has expired or was cancelled.
public protocol PartsUpload: PendingUpload {
    /// What ``PartsDriver/openParts(_:_:key:)`` needs besides the id and the name: at most 256 bytes, not secret.
    var key: [UInt8] { get }

    /// Begins to receive a part.
    /// - Parameter number: 1 to ``PartPlan/maximumNumber``.
    func beginPart(_ number: Int, _ plan: PartPlan) async throws(SessionError) -> any PartUpload

    /// The durable parts after `number`, ordered by number, at most `limit`.
    func parts(after number: Int, limit: Int) async throws(SessionError) -> [Part]

    /// Selects the parts of the object, which ``PendingUpload/finish()`` and ``PendingUpload/commit(_:_:resultUntil:)``
    /// are about. The parts that are not selected are removed by the commit. Replaces an earlier selection. Parts in
    /// progress are stopped with ``SessionError/superseded``.
    /// - Parameter parts: Ordered by number, at least one.
    /// - Parameter checksum: Stored with the object (``S3Properties/checksum``) if the store sets properties at the
    ///   commit.
    /// - Throws: ``SessionError/noSuchPart(_:)``, ``SessionError/partTooSmall(_:minimum:)``,
    ///   ``SessionError/lengthMismatch(declared:)``.
    func select(_ parts: [SelectedPart], checksum: SelectedChecksum?) async throws(SessionError)
}

extension PartsUpload {
    /// Selects the parts of an object without a checksum.
    public func select(_ parts: [SelectedPart]) async throws(SessionError) {
        try await select(parts, checksum: nil)
    }
}

/// A store that knows the parts of its objects.
public protocol PartReadingDriver: BucketDriver {
    /// The bytes of a part of this version of an object; nil if there is none, or if the service does not report it.
    func partRange(_ number: Int, of object: ObjectMetadata) async throws(BucketError) -> Range<UInt64>?
}

/// An upload in parts whose store can copy bytes of its objects to parts, so that none pass through the gateway.
public protocol CopyingPartsUpload: PartsUpload {
    /// Stores bytes of an object as a part.
    /// - Returns: nil if the store can't do it. Nothing is changed then.
    /// - Throws: ``BucketError`` in ``SessionError/store(_:)``: `.preconditionFailed` if the source has changed,
    ///   `.objectNotFound` if it is gone.
    func copyPart(_ number: Int, of source: PartSource) async throws(SessionError) -> Part?
}

/// The bytes of an object that become a part.
public struct PartSource: Sendable {
    public var object: ObjectMetadata
    /// The driver of the object's bucket.
    public var bucket: any BucketDriver
    /// In bytes, not empty.
    public var range: Range<UInt64>

    public init(_ object: ObjectMetadata, in bucket: any BucketDriver, _ range: Range<UInt64>) {
        self.object = object
        self.bucket = bucket
        self.range = range
    }
}

/// A part in progress. Confined to its loop. Ends with ``keep()`` or ``abort()``. A dropped part is aborted.
public protocol PartUpload: ByteSink {
    /// Completes the body and returns the facts of the received bytes. No ``ByteSink/write(_:)`` may follow.
    /// - Throws: ``SessionError/lengthMismatch(declared:)`` if bytes are missing.
    func finish() async throws(SessionError) -> ContentFacts

    /// Makes the part durable. It replaces an earlier part of the same number.
    /// - Throws: ``SessionError/superseded`` if the upload was selected, committed or removed meanwhile.
    func keep() async throws(SessionError) -> Part

    /// Discards the received bytes. An earlier part of this number remains.
    func abort()
}

/// The properties of a new part.
public struct PartPlan: Sendable, Equatable {
    /// The highest number of a part.
    public static let maximumNumber = 10_000

    /// The exact size in bytes.
    public var size: UInt64
    /// 16 bytes, if the client declared them. The caller compares them; a service may compare them too.
    public var md5: [UInt8]?
    /// The digests to compute besides md5 and crc32c.
    public var digests: Set<DigestAlgorithm>
    /// The checksum that is also computed, and kept as ``Part/checksum`` if the store can.
    public var checksum: ChecksumAlgorithm?

    public init(
        size: UInt64, md5: [UInt8]? = nil, digests: Set<DigestAlgorithm> = [], checksum: ChecksumAlgorithm? = nil
    ) {
        self.size = size
        self.md5 = md5
        self.digests = digests
        self.checksum = checksum
    }

    /// All digests to compute besides md5 and crc32c.
    var computed: Set<DigestAlgorithm> {
        checksum?.digest.map { digests.union([$0]) } ?? digests
    }

    /// The part's checksum, from the facts of its bytes.
    func checksum(_ facts: ContentFacts) -> PartChecksum? {
        guard let checksum, let value = facts.checksum(checksum) else { return nil }
        return PartChecksum(checksum, value)
    }
}

/// The checksum of a part.
public struct PartChecksum: Sendable, Equatable {
    public var algorithm: ChecksumAlgorithm
    /// Numbers are big-endian.
    public var value: [UInt8]

    public init(_ algorithm: ChecksumAlgorithm, _ value: [UInt8]) {
        self.algorithm = algorithm
        self.value = value
    }
}

/// A durable part.
public struct Part: Sendable, Equatable {
    /// 1 to ``PartPlan/maximumNumber``.
    public var number: Int
    /// Bytes.
    public var size: UInt64
    /// Identifies the bytes, without quotes: their md5 in hexadecimal, unless a service has another tag.
    public var etag: String
    /// nil if the store does not know it.
    public var crc32c: UInt32?
    /// When it became durable, in milliseconds since 1970.
    public var updated: Int64
    /// The requested checksum (``PartPlan/checksum``). A service's list of parts lacks it.
    public var checksum: PartChecksum?

    public init(
        number: Int, size: UInt64, etag: String, crc32c: UInt32?, updated: Int64, checksum: PartChecksum? = nil
    ) {
        self.number = number
        self.size = size
        self.etag = etag
        self.crc32c = crc32c
        self.updated = updated
        self.checksum = checksum
    }
}

/// A part of the object that an upload in parts creates.
public struct SelectedPart: Sendable, Equatable {
    public var number: Int
    /// The expected ``Part/etag``; nil for any.
    public var etag: String?

    public init(_ number: Int, etag: String? = nil) {
        self.number = number
        self.etag = etag
    }
}

/// The checksum of an object of selected parts.
public enum SelectedChecksum: Sendable, Equatable {
    /// Computed by the caller from those of the parts.
    case computed(S3Properties.Checksum)
    /// The crc32c that the store has of the whole object. With an expected value of 4 bytes, the commit fails with
    /// ``SessionError/otherBytes`` if the store has another.
    case storesCRC32C(expected: [UInt8]?)
}

extension [Part] {
    /// Checks a selection against the durable parts, which are ordered by number.
    /// - Parameter minimum: The least size of all parts but the last, in bytes.
    /// - Returns: The selected parts.
    func selected(_ selection: [SelectedPart], minimum: UInt64) throws(SessionError) -> [Part] {
        var chosen: [Part] = []
        chosen.reserveCapacity(selection.count)
        var index = 0
        for wanted in selection {
            while index < count, self[index].number < wanted.number { index += 1 }
            guard index < count, self[index].number == wanted.number,
                wanted.etag.map({ BytewiseString.areEqual($0, self[index].etag) }) ?? true
            else { throw .noSuchPart(wanted.number) }
            if let before = chosen.last, before.size < minimum {
                throw .partTooSmall(before.number, minimum: minimum)
            }
            chosen.append(self[index])
        }
        return chosen
    }
}
