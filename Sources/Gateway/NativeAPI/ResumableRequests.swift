import Buckets
import HTTPServer
import Wire

// Resumable uploads in the native dialect: draft-ietf-httpbis-resumable-upload.
extension NativeAPI {
    /// The methods of a session, for `Allow`.
    static let sessionMethods = "GET, HEAD, PATCH, DELETE, OPTIONS"

    /// Parses an upload that declares whether it is complete.
    /// - Returns: nil if the request does not declare it.
    func resumable(_ name: ObjectName, in bucket: Bucket, _ context: RequestContext) throws(Problem) -> ObjectOperation?
    {
        let draft = UploadDraft(context.fields)
        guard let isLast = try draft.isLast(context.fields) else { return nil }
        context.upload?.maximumSize = bucket.maximumObjectSize
        // A part that is too large makes no session.
        if let size = context.exchange.head.contentLength, size > bucket.maximumObjectSize {
            throw Problem(BodyError.tooLarge, limit: bucket.maximumObjectSize)
        }
        let length = try declaredLength(context, isLast: isLast)
        let request = try UploadRequest(
            context, name, bucket, length: length,
            try isLast
                ? ExpectedDigests(context.fields) : ExpectedDigests(ofWhole: context.fields))
        let announces =
            context.exchange.version != .http1_0
            && (draft.version != nil || bucket.uploads.settings.announcesAlways)
        if isLast, !announces || !(bucket.driver is any SessionDriver) {
            return .upload(name, request)
        }
        var creation = SessionCreation(dialect: .ietf, isLast: isLast) { [unowned context] token in
            NativeAPI.sessionURL(token, in: bucket, context)
        }
        if !isLast { creation.bodyDigests = try ExpectedDigests(ofFirstPart: context.fields) }
        if announces {
            creation.announce = { [unowned context] report in
                NativeAPI.announce(report, draft, context)
            }
            creation.progress = NativeAPI.progress(draft, context)
        }
        return .createSession(name, request, creation)
    }

    /// The declared size of the whole object in bytes.
    /// - Throws: ``Problem`` with `upload-length-mismatch` if the body is larger, or is complete and smaller.
    private func declaredLength(_ context: RequestContext, isLast: Bool) throws(Problem) -> UInt64? {
        let head = context.exchange.head
        let length = UploadDraft.integer(head.fields, "upload-length")
        guard let size = head.hasBody ? head.contentLength : 0 else { return length }
        guard let length else { return isLast ? size : nil }
        guard isLast ? size == length : size <= length else {
            throw Problem(SessionError.lengthMismatch(declared: length))
        }
        return length
    }

    /// Parses a request to a session.
    func session(_ token: ArraySlice<UInt8>, in bucket: Bucket, _ context: RequestContext)
        throws(Problem) -> ObjectOperation
    {
        let action: SessionRequest.Action
        switch context.exchange.head.method {
        case "GET", "HEAD": action = .report
        case "DELETE": action = .cancel
        case "PATCH": action = .append(try append(context, in: bucket))
        default: throw Problem.methodNotAllowed(NativeAPI.sessionMethods)
        }
        return .session(SessionRequest(dialect: .ietf, token: token, action: action))
    }

    private func append(_ context: RequestContext, in bucket: Bucket) throws(Problem)
        -> AppendRequest
    {
        let fields = context.fields
        let draft = UploadDraft(fields)
        // A request without a body needs no type.
        let hasType =
            fields["content-type"].map(UploadDraft.isPartialUpload)
            ?? !context.exchange.head.hasBody
        if draft.requiresType, !hasType {
            throw Problem(
                .unsupportedMediaType, "An append is of the type \(UploadDraft.partialUpload).",
                field: ("accept-patch", "\(UploadDraft.partialUpload)"))
        }
        guard let offset = UploadDraft.integer(fields, "upload-offset") else {
            throw Problem(
                .invalidArgument,
                "Upload-Offset says where the append begins, with at most 15 digits.")
        }
        guard let isLast = try draft.isLast(fields) ?? (draft.appendsAreLast ? true : nil) else {
            throw Problem(.invalidArgument, "\(draft.fieldName) is missing: ?0 or ?1.")
        }
        let announces = draft.version != nil || bucket.uploads.settings.announcesAlways
        return AppendRequest(
            offset: offset, length: UploadDraft.integer(fields, "upload-length"),
            digests: try ExpectedDigests(ofPart: fields), isLast: isLast,
            progress: announces ? NativeAPI.progress(draft, context) : nil)
    }

    /// Sends the session's URL in an interim response.
    private static func announce(
        _ report: UploadReport, _ draft: UploadDraft, _ context: RequestContext
    ) {
        var head = ResponseHead(status: 104)
        if let url = report.url { head.fields.append("location", url) }
        draft.appendLimit(of: report, now: context.now, to: &head.fields)
        draft.appendVersion(to: &head.fields)
        context.exchange.sendInterim(head)
    }

    /// The most interim responses about the progress of one request. A client need not read them while it sends.
    private static let maximumProgress = 1000

    /// Sends each durable offset in an interim response; nil if the client's version has none.
    private static func progress(_ draft: UploadDraft, _ context: RequestContext)
        -> ((UInt64) -> Void)?
    {
        guard draft.reportsProgress else { return nil }
        var rest = maximumProgress
        // Weak: an append may outlive its request.
        return { [weak context] offset in
            guard rest > 0, let context else { return }
            rest -= 1
            var head = ResponseHead(status: 104)
            head.fields.append("upload-offset", offset)
            draft.appendVersion(to: &head.fields)
            context.exchange.sendInterim(head)
        }
    }
}
