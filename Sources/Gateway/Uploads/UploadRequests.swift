import Buckets
import HTTPServer
import Wire

/// The properties of a request that creates an upload session, beyond those of the upload. The same for every dialect.
struct SessionCreation {
    var dialect: UploadDialect
    /// Whether the request's body is the whole object.
    var isLast: Bool
    /// The expected digests of the request's body, if it is only a part of the object.
    var bodyDigests = ExpectedDigests()
    /// The expected SHA-1 of the request's body.
    var bodySHA1: [UInt8]?
    /// The client's description of the upload, which later responses repeat.
    var metadata: String?
    /// Returns the session's URL for its token.
    let url: (String) -> String
    /// Whether a body of this request is the beginning of the object.
    var hasObjectBytes = true
    /// Informs the client of the session before the body is received.
    var announce: ((UploadReport) -> Void)?
    /// ``AppendRequest/progress`` of the creation's body.
    var progress: ((UInt64) -> Void)?

    init(dialect: UploadDialect, isLast: Bool, url: @escaping (String) -> String) {
        self.dialect = dialect
        self.isLast = isLast
        self.url = url
    }
}

/// A request on an upload session. The same for every dialect.
struct SessionRequest {
    enum Action {
        /// Reports the offset.
        case report
        /// Appends the request's body at the offset.
        case append(AppendRequest)
        /// Completes the object with the bytes received so far. The value is their number, if the client has sent it.
        case finish(UInt64?)
        /// Ends the session without an object.
        case cancel
    }
    var dialect: UploadDialect
    /// The token as in the path.
    var token: ArraySlice<UInt8>
    /// The object's name, if the request has it.
    var name: String?
    var action: Action

    /// How an upload is ended.
    enum End: Hashable { case completion, cancellation }

    /// How the request ends the upload, even if its client disconnects; nil if it does not. A last part with bytes does
    /// not count, because its bytes need the client.
    /// - Parameter hasBytes: Whether the request has a body that is not empty.
    func end(hasBytes: Bool) -> End? {
        switch action {
        case .finish: .completion
        case .cancel: .cancellation
        case .append(let append): append.isLast && !hasBytes ? .completion : nil
        case .report: nil
        }
    }
}

extension RequestContext {
    /// Whether the request has a body that is not known to be empty.
    var hasBytes: Bool { exchange.head.hasBody && exchange.head.contentLength != 0 }
}

/// The properties of an append.
struct AppendRequest {
    /// The offset of its first byte in the object.
    var offset: UInt64
    /// The size of the whole object in bytes, if the request declares it.
    var length: UInt64?
    /// The expected digests of its body.
    var digests = ExpectedDigests()
    /// The expected SHA-1 of its body.
    var sha1: [UInt8]?
    /// Whether it completes the object.
    var isLast: Bool
    /// The number of leading body bytes that are stored already. ``offset`` is the offset of the next byte.
    var skipped: UInt64 = 0
    /// Called on the loop with each durable offset that the append reaches before its end.
    var progress: ((UInt64) -> Void)?

    /// Skips the bytes before the durable offset, if there are any.
    mutating func skip(to durable: UInt64) {
        guard durable > offset else { return }
        skipped += durable - offset
        offset = durable
    }

    /// Whether its bytes only count if all of them arrive, because they have a digest.
    var isVerified: Bool { !digests.isEmpty || sha1 != nil }
}

/// The properties of an upload session in a response.
struct UploadReport {
    enum Kind { case created, status, appended, cancelled }
    var kind = Kind.status
    /// The session's URL, for a creation.
    var url: String?
    /// The object's name, for a creation.
    var name: String?
    /// The durable offset, if it is known.
    var offset: UInt64?
    /// The size of the whole object in bytes, once it is known.
    var length: UInt64?
    var isComplete = false
    /// Whether the session was cancelled and is still known.
    var isCancelled = false
    /// The expiry in seconds since 1970; nil if there is no session.
    var expires: Int64?
    /// The client's description of the upload at its creation.
    var metadata: String?
    /// The maximum size of an object of the bucket in bytes; nil until the bucket is known.
    var maximumSize: UInt64?
}

extension Problem {
    /// Converts a session's error.
    /// - Parameter offset: The offset that the request expected.
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
            self.init(.uploadConflict, Problem.superseded)
        case .finished: self.init(.uploadConflict, Problem.finished)
        case .clientGone:
            self.init(
                .invalidArgument, "The client has disconnected.", cause: "the client went away")
        case .otherBytes:
            self.init(
                .checksumMismatch,
                "Different bytes were sent at one offset of the upload; nothing was stored.")
        case .noSuchPart(let number):
            self.init(
                .invalidArgument, "Part \(number) does not exist, or has other bytes.",
                dialect: DialectError(status: 400, code: "InvalidPart"))
        case .partTooSmall(let number, let minimum):
            self.init(
                .invalidArgument, "Part \(number) is not the last one and has less than \(minimum) bytes.",
                dialect: DialectError(
                    status: 400, code: "EntityTooSmall",
                    members: [("PartNumber", "\(number)"), ("MinSizeAllowed", "\(minimum)")]))
        case .store(let error): self.init(error)
        }
    }

    private static let superseded = "A newer request of this upload has stopped this one."
    private static let finished = "The upload has ended."

    /// Whether the upload had ended before the request.
    var isFinished: Bool { code == .uploadConflict && detail == Problem.finished }

    /// Whether another request may have changed the upload meanwhile, so that its state must be read again.
    var isDisturbance: Bool {
        code == .overloaded
            || code == .uploadConflict
                && (detail == Problem.superseded || detail == Problem.finished)
    }

    /// Reports the same for every token without a session. Only the log has the reason.
    convenience init(uploadNotFound cause: String) {
        self.init(
            .uploadNotFound, "The upload is unknown, or has expired or been cancelled.",
            cause: cause)
    }

    /// Reports that a limit of open sessions or their bytes is exceeded.
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
        case .callerShare:
            self.init(
                .tooManyUploads, "The open uploads have too many bytes for this bucket.",
                cause: "more than half of the bucket's stagedBytes",
                field: ("retry-after", "60"))
        case .bucketBytes:
            self.init(
                .insufficientStorage, "Nothing was stored.",
                cause: "stagedBytes of the bucket")
        }
    }
}
