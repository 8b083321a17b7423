import EventLoop

/// What every store must be able to do: minimal, and without default implementations.
///
/// A driver does no validation of names, no logging and no metrics: the gateway above it does. Every call runs on a
/// loop's executor and must not block it; a call that need not wait returns without suspending. Whatever is
/// returned with a failure, nothing partial is ever visible.
public protocol BucketDriver: Sendable {
    /// What this store can promise. It may ask the service the first time.
    func capabilities() async throws(BucketError) -> Capabilities

    /// The metadata of the current object.
    /// - Throws: ``BucketError`` with `.objectNotFound`, or a fault of the store.
    func stat(_ name: String) async throws(BucketError) -> ObjectMetadata

    /// Opens the current object for reading, by one request where the service can. The bytes are those of the
    /// returned metadata, whatever happens to the name later.
    func open(_ name: String, _ plan: ReadPlan) async throws(BucketError) -> any ObjectReader

    /// Begins an upload that nobody sees until ``Upload/commit(_:)``.
    func beginUpload(_ name: String, _ plan: UploadPlan) async throws(BucketError) -> any Upload

    /// Changes the writable properties, atomically with the preconditions.
    func patch(_ name: String, _ patch: AttributePatch, _ preconditions: Preconditions)
        async throws(BucketError) -> ObjectMetadata

    /// Removes the object, atomically with the preconditions.
    func delete(_ name: String, _ preconditions: Preconditions) async throws(BucketError)

    /// One page in UTF-8 byte order. `after` is where the last page ended (``ListPage/end``), exclusive.
    func list(_ query: ListQuery, after: String?) async throws(BucketError) -> ListPage

    /// Whether the store can serve now.
    /// - Throws: ``BucketError`` saying what is wrong.
    func checkHealth() async throws(BucketError)

    /// Finishes what is under way and releases the store.
    func close() async
}

extension BucketDriver {
    /// The metadata of the current object; nil where there is none.
    func find(_ name: String) async throws(BucketError) -> ObjectMetadata? {
        do throws(BucketError) {
            return try await stat(name)
        } catch {
            if error.code == .objectNotFound { return nil }
            throw error
        }
    }
}

/// What a store can promise; the gateway refuses what would otherwise be a silent lie.
public struct Capabilities: Sendable, Equatable {
    /// The preconditions of an upload are decided in the same step as its commit.
    public var atomicUploads: Bool
    /// The preconditions of a patch are decided in the same step as the change.
    public var atomicPatches: Bool
    /// The preconditions of a deletion are decided in the same step as the removal.
    public var atomicDeletions: Bool
    /// ``Upload/commit(_:)`` may be given other preconditions than the upload was begun with.
    public var lateConditions: Bool
    /// An acknowledged write survives the loss of power.
    public var durable: Bool

    public init(
        atomicUploads: Bool, atomicPatches: Bool, atomicDeletions: Bool, lateConditions: Bool,
        durable: Bool
    ) {
        self.atomicUploads = atomicUploads
        self.atomicPatches = atomicPatches
        self.atomicDeletions = atomicDeletions
        self.lateConditions = lateConditions
        self.durable = durable
    }

    /// All of it: what a store that is its own service can promise.
    public static let all = Capabilities(
        atomicUploads: true, atomicPatches: true, atomicDeletions: true, lateConditions: true,
        durable: true)
}

/// What will be asked of an object that is opened: hints, so that one request does.
public struct ReadPlan: Sendable, Equatable {
    /// The part that is asked for; nil for the whole. ``ObjectReader/bytes(_:)`` may be asked for another one.
    public var range: ByteRange?
    /// The conditions of the read. Where they do not hold the bytes are not asked for.
    public var conditions: Preconditions

    public init(range: ByteRange? = nil, conditions: Preconditions = Preconditions()) {
        self.range = range
        self.conditions = conditions
    }
}

/// What is known of an upload when it begins.
public struct UploadPlan: Sendable, Equatable {
    public var attributes: ObjectAttributes
    /// Bytes, where the client declared them. It gives exactly so many, or breaks off.
    public var size: UInt64?
    /// 16 bytes, where the client declared them; they are verified before the commit.
    public var md5: [UInt8]?
    /// Where the client declared it; it is verified before the commit.
    public var crc32c: UInt32?
    /// Whether somebody will compare or read the md5 of what was received. It costs more than all else that is done
    /// with the bytes: a store that would not keep it may leave it out where this is false.
    public var wantsMD5 = true
    /// What is computed besides crc32c, which always is, and md5.
    public var digests: Set<DigestAlgorithm>
    /// What ``Upload/commit(_:)`` will be given, unless something changes meanwhile.
    public var preconditions: Preconditions
    /// Whether it was allowed already: the commit will follow as soon as the bytes are there and verified.
    public var isDecided: Bool
    /// What is there now, where somebody has looked.
    public var existing: Existing

    public init(
        _ attributes: ObjectAttributes = ObjectAttributes(), size: UInt64? = nil,
        digests: Set<DigestAlgorithm> = [], preconditions: Preconditions = Preconditions(),
        isDecided: Bool = true, existing: Existing = .unknown
    ) {
        self.attributes = attributes
        self.size = size
        self.digests = digests
        self.preconditions = preconditions
        self.isDecided = isDecided
        self.existing = existing
    }
}

/// What is known of the object of a name.
public enum Existing: Sendable, Equatable {
    /// Nobody has looked.
    case unknown
    /// There was none when it was looked for.
    case absent
    /// This one was there.
    case object(ObjectMetadata)
}

/// An object that was opened for reading. Confined to one loop.
public protocol ObjectReader: AnyObject {
    /// The metadata of the bytes that this reader gives.
    var metadata: ObjectMetadata { get }
    /// The bytes of `range` (within `0..<size`). Called at most once; close the source in the end.
    func bytes(_ range: Range<UInt64>) async throws(BucketError) -> any ByteSource
    /// Releases the object where ``bytes(_:)`` was not called.
    func close()
}

/// An upload under way. Confined to one loop. It ends with exactly one of ``commit(_:)`` and ``abort()``.
public protocol Upload: ByteSink {
    /// Everything has been written: the facts of the bytes that were received. No ``ByteSink/write(_:)`` may follow.
    func finish() async throws(BucketError) -> ContentFacts
    /// Makes the object visible with its bytes on stable storage, if the preconditions hold at that moment.
    func commit(_ preconditions: Preconditions) async throws(BucketError) -> CommitResult
    /// Forgets the upload. What was there before stays.
    func abort()
}

/// How a commit ended.
public struct CommitResult: Sendable {
    public var metadata: ObjectMetadata
    /// Whether an object of that name was there before.
    public var replaced: Bool
    /// Whether the store has shown that the object is the upload's. Where it is only likely, the object may be another's
    /// and must stay, whatever it holds.
    public var isKnownAsOwn: Bool

    public init(metadata: ObjectMetadata, replaced: Bool = false, isKnownAsOwn: Bool = true) {
        self.metadata = metadata
        self.replaced = replaced
        self.isKnownAsOwn = isKnownAsOwn
    }
}

/// The facts of a body, computed while it streamed.
public struct ContentFacts: Sendable, Equatable {
    public var size: UInt64
    /// 16 bytes; nil where ``UploadPlan/wantsMD5`` was false and the store has no use for it.
    public var md5: [UInt8]?
    public var crc32c: UInt32
    /// The digests that were asked for in ``UploadPlan/digests``.
    public var digests: [DigestAlgorithm: [UInt8]]

    public init(
        size: UInt64, md5: [UInt8]?, crc32c: UInt32, digests: [DigestAlgorithm: [UInt8]] = [:]
    ) {
        self.size = size
        self.md5 = md5
        self.crc32c = crc32c
        self.digests = digests
    }
}

/// Digests that a client may ask to have verified, beside md5 and crc32c (RFC 9530, section 5).
public enum DigestAlgorithm: String, Sendable, Hashable {
    case sha256 = "sha-256"
    case sha512 = "sha-512"
}

/// Which objects a list shows.
public struct ListQuery: Sendable, Equatable {
    /// At most 1,024 bytes.
    public var prefix: String
    /// Whether names are folded at the next `/` after the prefix.
    public var delimited: Bool
    /// Entries of one page: items and prefixes together.
    public var limit: Int

    public init(prefix: String, delimited: Bool, limit: Int) {
        self.prefix = prefix
        self.delimited = delimited
        self.limit = limit
    }
}

/// One page of a list. Names with `//` or a trailing `/`, and what is not UTF-8, are left out.
public struct ListPage: Sendable, Equatable {
    /// Folded names, each ending in `/`, in byte order.
    public var prefixes: [String] = []
    /// Object names in byte order.
    public var items: [String] = []
    /// The last name or prefix that the page covers; nil where nothing follows.
    public var end: String?

    public init() {}
}
