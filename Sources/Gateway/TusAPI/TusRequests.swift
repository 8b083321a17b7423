import Buckets
import HTTPServer
import Wire

extension TusAPI {
    func parse(_ route: Route, in bucket: Bucket, among buckets: ServedBuckets, _ context: RequestContext)
        throws(Problem) -> ObjectOperation
    {
        guard case .session(let token) = route.path else { return try create(bucket, context) }
        let action: SessionRequest.Action
        switch context.method {
        case .head: action = .report
        case .patch: action = .append(try append(context))
        case .delete: action = .cancel
        default: throw Problem.methodNotAllowed(methods(at: route))
        }
        return .session(SessionRequest(dialect: .tus, token: token, action: action))
    }

    private func create(_ bucket: Bucket, _ context: RequestContext) throws(Problem)
        -> ObjectOperation
    {
        let metadata = try UploadMetadata(context.fields)
        let name = try bucket.objectName(decoded: metadata.required("objectName"))
        let length = try declaredLength(context.fields)
        let checksum = try UploadChecksum(context.fields)
        if context.hasBytes {
            try requireType(context)
            if let length, let size = context.exchange.head.contentLength, size > length {
                throw Problem(.payloadTooLarge, "The upload has at most \(length) bytes.")
            }
        }
        if let length, length > bucket.maximumObjectSize {
            throw Problem(BodyError.tooLarge, limit: bucket.maximumObjectSize)
        }
        var conditions = context.conditions
        if context.fields.list("x-upsert")?.asciiLowercased() == "false",
            var parsed = try? conditions.get()
        {
            parsed.ifNoneMatch = .any
            conditions = Conditions(.success(parsed))
        }
        let request = UploadRequest(
            try metadata.attributes(name), ExpectedDigests(), size: length, conditions)
        var creation = SessionCreation(dialect: .tus, isLast: false) {
            [uploads, unowned context] in "\(uploads.origin(context))/tus/\($0)"
        }
        creation.bodyDigests = checksum.digests
        creation.bodySHA1 = checksum.sha1
        creation.metadata = metadata.text
        return .createSession(name, request, creation)
    }

    /// The size of the upload in bytes; nil if it is declared later.
    /// - Throws: ``Problem`` with `invalid-argument` unless the request has exactly one of the two fields.
    private func declaredLength(_ fields: HeaderFields) throws(Problem) -> UInt64? {
        let length = try TusAPI.bytes(fields, "upload-length")
        guard let deferred = fields.list("upload-defer-length") else {
            if length == nil {
                throw Problem(
                    .invalidArgument, "Upload-Length or Upload-Defer-Length is required.")
            }
            return length
        }
        guard deferred == "1", length == nil else {
            throw Problem(
                .invalidArgument, "Upload-Defer-Length is 1, in place of Upload-Length.")
        }
        return nil
    }

    private func append(_ context: RequestContext) throws(Problem) -> AppendRequest {
        try requireType(context)
        guard let offset = try TusAPI.bytes(context.fields, "upload-offset") else {
            throw Problem(.invalidArgument, "Upload-Offset is required.")
        }
        let checksum = try UploadChecksum(context.fields)
        return AppendRequest(
            offset: offset, length: try TusAPI.bytes(context.fields, "upload-length"),
            digests: checksum.digests, sha1: checksum.sha1, isLast: false)
    }

    private func requireType(_ context: RequestContext) throws(Problem) {
        let type = "application/offset+octet-stream"
        guard context.fields.list("content-type")?.asciiLowercased() == type else {
            throw Problem(.unsupportedMediaType, "The type of a part of an upload is \(type).")
        }
    }

    /// Parses a number of bytes. A number that does not fit is larger than any upload.
    /// - Throws: ``Problem`` with `invalid-argument` if the field is malformed.
    private static func bytes(_ fields: HeaderFields, _ name: StaticString) throws(Problem)
        -> UInt64?
    {
        guard let text = fields.list(name) else { return nil }
        guard let value = Decimal.saturating(Array(text.utf8)[...]) else {
            throw Problem(.invalidArgument, "\(name) is a number of bytes.")
        }
        return value
    }
}

/// The digest of one request's body, from `Upload-Checksum`.
struct UploadChecksum {
    static let algorithms = "sha1,md5,sha256,crc32c"

    var digests = ExpectedDigests()
    var sha1: [UInt8]?

    /// - Throws: ``Problem`` with `invalid-argument` for a malformed field, or an unknown algorithm.
    init(_ fields: HeaderFields) throws(Problem) {
        guard let text = fields.list("upload-checksum") else { return }
        let parts = text.split(separator: " ", maxSplits: 1, omittingEmptySubsequences: false)
        let length: Int
        switch parts[0] {
        case "sha1": length = 20
        case "md5": length = 16
        case "sha256": length = 32
        case "crc32c": length = 4
        default:
            throw Problem(
                .invalidArgument,
                "The algorithm of Upload-Checksum is one of \(UploadChecksum.algorithms).")
        }
        guard parts.count == 2, let value = Base64.decode(Array(parts[1].utf8)[...]),
            value.count == length
        else {
            throw Problem(
                .invalidArgument,
                "Upload-Checksum is an algorithm, a space, and the base64 of \(length) bytes.")
        }
        switch parts[0] {
        case "sha1": sha1 = value
        case "md5": digests.md5 = value
        case "sha256": digests.others[.sha256] = value
        default: digests.crc32c = value.reduce(0) { $0 << 8 | UInt32($1) }
        }
    }
}
