import Wire

/// The state of an upload session: everything that another gateway needs to continue the upload. It is the content of a
/// small object that is only written conditionally: of two gateways with the same version, one fails.
struct CloudSessionState: Sendable, Equatable {
    /// A gateway process. A restarted process is another owner.
    typealias Owner = UInt64

    /// A hidden object with a part of the tail.
    struct Piece: Sendable, Equatable {
        /// Random, so that a late request never replaces a newer piece.
        var number: UInt64
        /// In bytes. 0: the object is not used any more. The owner can write it again, and the session's end deletes it.
        var size: UInt64
    }

    /// The target before the request that makes the object visible.
    struct Intent: Sendable, Equatable {
        /// The generation that the commit replaces; 0 for none.
        var generation: Int64
        var etag: String?
        /// The hidden object that becomes the object, if the service needs one.
        var source: Source?
    }

    /// A hidden object with all bytes.
    struct Source: Sendable, Equatable {
        /// Its number among the pieces; nil for ``HiddenName/data(_:)``.
        var piece: UInt64?
        var generation: Int64
    }

    enum End: Sendable, Equatable {
        case committed(CommittedObject)
        /// The record of ``UploadSession/close(_:until:)``.
        case closed([UInt8])
        /// The session no longer exists. Its leftovers at the service are being removed.
        case cancelled
    }

    enum Transfer: Sendable, Equatable {
        case none
        case s3(S3TransferState)
        case gcs(GCSTransferState)
        case gcsParts(GCSPartsState)
    }

    // MARK: Fixed at the beginning

    let name: String
    /// The selection of parts can change ``SystemMetadata/s3``.
    var attributes: ObjectAttributes
    /// Milliseconds since 1970.
    let created: Int64
    let context: [UInt8]
    /// Random. Stored with the object, so that a commit without a response is recognized.
    let mark: UInt64
    /// Whether it is an upload in parts, which has no bytes before parts were selected.
    let isInParts: Bool

    // MARK: Ownership

    /// The gateway whose requests may be in flight.
    var owner: Owner
    /// Whether unknown requests may be in flight: a former owner's, or one without a response.
    var isTakenOver = false
    /// Random with each write, so that no two states have the same bytes: S3's entity tag is their md5.
    var stamp: UInt64 = 0
    /// Whether the owner may be sending bytes to the service.
    var isOpen = false

    // MARK: Content

    /// Seconds since 1970. For an ended session, earlier than the time in its id.
    var expires: Int64
    /// The declared length of the whole object in bytes.
    var length: UInt64?
    var offset: UInt64 = 0
    /// ``SessionDigests/saved`` of those bytes; empty for an upload in parts.
    var digests: [UInt8]
    /// Hidden objects with the bytes that follow those in ``transfer``.
    var pieces: [Piece] = []
    /// The last bytes: at most 512 KiB.
    var tail: [UInt8] = []
    var transfer = Transfer.none
    /// Set before the request that makes the object visible, which may have been executed.
    var intent: Intent?
    var end: End?

    /// The selected parts of an upload in parts, ordered by number.
    var selected: [S3TransferState.Part] {
        switch transfer {
        case .s3(let state): state.parts
        case .gcsParts(let state): state.parts
        case .none, .gcs: []
        }
    }

    /// Whether an upload was begun at the service.
    var hasUpload: Bool {
        switch transfer {
        case .none: false
        case .s3(let transfer): transfer.upload != nil
        case .gcs(let transfer): transfer.session != nil
        case .gcsParts: true
        }
    }

    var pending: UInt64 { pieces.reduce(UInt64(tail.count)) { $0 + $1.size } }

    init(
        name: String, attributes: ObjectAttributes, created: Int64, context: [UInt8], mark: UInt64,
        owner: Owner, expires: Int64, length: UInt64?, digests: [UInt8], isInParts: Bool = false
    ) {
        self.name = name
        self.attributes = attributes
        self.created = created
        self.context = context
        self.mark = mark
        self.isInParts = isInParts
        self.owner = owner
        self.expires = expires
        self.length = length
        self.digests = digests
    }
}

struct CommittedObject: Sendable, Equatable {
    var generation: Int64
    /// Milliseconds since 1970.
    var created: Int64
    var updated: Int64
    var etag: String
    var md5: [UInt8]?
    var crc32c: UInt32?
    var replaced: Bool

    init(_ result: CommitResult) {
        let object = result.metadata
        generation = object.generation
        created = object.created
        updated = object.updated
        etag = object.etag
        md5 = object.md5
        crc32c = object.crc32c
        replaced = result.replaced
    }

    init(
        generation: Int64, created: Int64, updated: Int64, etag: String, md5: [UInt8]?, crc32c: UInt32?, replaced: Bool
    ) {
        self.generation = generation
        self.created = created
        self.updated = updated
        self.etag = etag
        self.md5 = md5
        self.crc32c = crc32c
        self.replaced = replaced
    }
}

struct S3TransferState: Sendable, Equatable {
    struct Part: Sendable, Equatable {
        /// 1 to 10,000.
        var number: UInt16
        var etag: String
    }
    /// nil if no multipart upload was begun.
    var upload: String?
    /// The time in milliseconds since 1970 after which an upload without parts may have begun whose id is unknown.
    var lostSince: Int64?
    /// Unused uploads that may have to be aborted.
    var discarded: [String] = []
    var generation: Int64 = 0
    var parts: [Part] = []
    /// The number of bytes in ``parts``.
    var sent: UInt64 = 0
    /// The first number that no request uses or may use.
    var nextNumber: UInt16 = 1
}

struct GCSTransferState: Sendable, Equatable {
    /// The URI of the resumable session, a secret; nil if none was begun.
    var session: String?
    /// The number of bytes that the service has confirmed, a multiple of 256 KiB.
    var sent: UInt64 = 0
    /// Whether the service may keep bytes after those.
    var isAhead = false
}

/// An upload in parts to the hidden object ``HiddenName/data(_:)``.
struct GCSPartsState: Sendable, Equatable {
    /// The id of the XML API's multipart upload.
    var upload: String
    /// The selected parts.
    var parts: [S3TransferState.Part] = []
    /// The number of bytes in ``parts``.
    var sent: UInt64 = 0
    /// Whether the service may have joined ``parts``, so that no others can be selected.
    var isFixed = false
}

extension CloudSessionState {
    func facts() throws(BucketError) -> ContentFacts {
        if isInParts { return ContentFacts(size: offset, md5: nil, crc32c: nil) }
        guard let digests = SessionDigests(saved: digests) else {
            throw BucketError(.internal, "the digests of an upload session can't be read")
        }
        return digests.facts(size: offset)
    }

    var result: CommitResult? {
        guard case .committed(let object) = end else { return nil }
        var attributes = attributes
        attributes.system.s3?.complete(crc32c: object.crc32c)
        let metadata = ObjectMetadata(
            name: name, generation: object.generation, metageneration: 1, size: offset, created: object.created,
            updated: object.updated, md5: object.md5, crc32c: object.crc32c, etag: object.etag, attributes: attributes)
        return CommitResult(metadata: metadata, replaced: object.replaced)
    }

    var visible: SessionState {
        let end: SessionState.End? =
            switch self.end {
            case .committed: result.map { .committed($0) }
            case .closed(let record): .closed(record)
            case .cancelled, nil: nil
            }
        var state = SessionState(
            name: name, attributes: attributes, created: created, expires: expires, offset: offset,
            length: length, context: context, end: end)
        state.key = CloudParts.key(ofUpload: upload)
        return state
    }
}
