import Buckets
import HTTPServer
import Wire

/// What the creation of an upload session says beyond the upload itself, whichever dialect it was written in.
struct SessionCreation {
    var dialect: UploadDialect
    /// Whether the body of the creation is all of the object.
    var isLast: Bool
    /// Of the creation's body, where that is only a part.
    var bodyDigests = ExpectedDigests()
    /// The SHA-1 of the creation's body.
    var bodySHA1: [UInt8]?
    /// What the client said of the upload, to be repeated to it.
    var metadata: String?
    /// Makes the session's URL of its token.
    let url: (String) -> String
    /// Whether the request's body, if it has one, is the beginning of the object.
    var hasObjectBytes = true
    /// Tells the client at once that there is a session.
    var announce: ((UploadReport) -> Void)?

    init(dialect: UploadDialect, isLast: Bool, url: @escaping (String) -> String) {
        self.dialect = dialect
        self.isLast = isLast
        self.url = url
    }
}

/// What is asked of an upload session, whichever dialect it was written in.
struct SessionRequest {
    enum Action {
        /// How far it has come.
        case report
        /// The request's body follows the bytes that are there.
        case append(AppendRequest)
        /// Its end: the object is complete with the bytes that are there, which are as many as this, if it is known.
        case finish(UInt64?)
        /// Its end, without an object.
        case cancel
    }
    var dialect: UploadDialect
    /// As it stands in the path.
    var token: ArraySlice<UInt8>
    /// The object's name, if the request has it.
    var name: String?
    var action: Action
}

/// What an append says of itself.
struct AppendRequest {
    /// Bytes before it.
    var offset: UInt64
    /// Bytes of the whole object, where the request declares them.
    var length: UInt64?
    /// Of this append's body.
    var digests = ExpectedDigests()
    /// Of this append's body.
    var sha1: [UInt8]?
    /// Whether the object is complete with it.
    var isLast: Bool
    /// Bytes at the beginning of the body that are stored already. ``offset`` is that of the next one.
    var skipped: UInt64 = 0

    /// Whether its bytes count only all together, because they have a digest.
    var isVerified: Bool { !digests.isEmpty || sha1 != nil }
}

/// What a response says of an upload session.
struct UploadReport {
    enum Kind { case created, status, appended, cancelled }
    var kind = Kind.status
    /// The session's URL, of a creation.
    var url: String?
    /// The object's name, of a creation.
    var name: String?
    /// Durable bytes, where they are known.
    var offset: UInt64?
    /// Bytes of the whole object, once they are known.
    var length: UInt64?
    var isComplete = false
    /// Whether the session was cancelled, and is still known.
    var isCancelled = false
    /// Seconds since 1970; nil where there is no session.
    var expires: Int64?
    /// What the client said of the upload at its creation.
    var metadata: String?
    /// The most bytes of an object of the bucket.
    var maximumSize = UInt64.max
}

extension Problem {
    /// What an upload session could not do.
    /// - Parameter offset: What the request expected.
    convenience init(_ error: SessionError, offset: UInt64 = 0) {
        switch error {
        case .notFound: self.init(uploadNotFound: "the store has no such session")
        case .offsetMismatch(let durable):
            self.init(
                .uploadOffsetMismatch, "The upload's offset is \(durable), not \(offset).",
                members: [
                    ("expected-offset", Int64(clamping: durable)),
                    ("provided-offset", Int64(clamping: offset)),
                ])
        case .lengthMismatch(let declared):
            self.init(.uploadLengthMismatch, "The upload's length is \(declared).")
        case .lengthExceeded(let limit):
            self.init(.uploadLengthMismatch, "The upload has at most \(limit) bytes.")
        case .superseded:
            self.init(.uploadConflict, "A newer request of this upload has stopped this one.")
        case .finished: self.init(.uploadConflict, "The upload has ended.")
        case .otherBytes:
            self.init(
                .checksumMismatch,
                "Different bytes were sent at one offset of the upload; nothing was stored.")
        case .store(let error): self.init(error)
        }
    }

    /// The same for whatever leads to no session: only the log says why.
    convenience init(uploadNotFound cause: String) {
        self.init(
            .uploadNotFound, "The upload is unknown, or has expired or been cancelled.",
            cause: cause)
    }

    /// More sessions or bytes than may be staged.
    convenience init(_ limit: UploadLedger.LimitExceeded) {
        switch limit {
        case .sessions:
            self.init(
                .tooManyUploads, "Finish or cancel one of the open uploads.",
                cause: "uploads.sessions", field: ("retry-after", "60"))
        case .callerBytes:
            self.init(
                .tooManyUploads, "The open uploads have too many bytes.",
                cause: "uploads.stagedBytes", field: ("retry-after", "60"))
        case .bucketBytes:
            self.init(
                .insufficientStorage, "Nothing was stored.",
                cause: "stagedBytes of the bucket")
        }
    }
}
