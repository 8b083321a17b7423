import Buckets
import HTTPServer
import Wire

extension ListRequest {
    /// Parses the query of a list.
    /// - Throws: ``Problem`` with `invalid-argument`.
    convenience init(firebase bucket: String, _ parameters: QueryParameters) throws(Problem) {
        let prefix = try Query.prefix(try parameters.single("prefix") ?? "")
        guard prefix.isEmpty || prefix.hasSuffix("/") && !prefix.hasSuffix("//") else {
            throw Problem(
                .invalidArgument, "The prefix parameter is required to be empty or ends with a single / character.")
        }
        let delimiter = try parameters.single("delimiter") ?? ""
        guard delimiter.isEmpty || delimiter == "/" else {
            throw Problem(.invalidArgument, "delimiter is '/' or empty.")
        }
        var limit = ListRequest.maximumResults
        if let text = try parameters.single("maxResults") {
            guard let number = Decimal.saturating(Array(text.utf8)[...]), number > 0 else {
                throw Problem(.invalidArgument, "maxResults is a number from 1 to \(limit).")
            }
            limit = Int(min(number, UInt64(limit)))
        }
        var after: String?
        if let token = try parameters.single("pageToken"), !token.isEmpty {
            after = PageToken.decode(
                token, bucket: bucket, prefix: prefix, isDelimited: !delimiter.isEmpty)
            guard after != nil else {
                throw Problem(.invalidArgument, "pageToken is damaged, or of another list.")
            }
        }
        self.init(ListQuery(prefix: prefix, delimited: !delimiter.isEmpty, limit: limit), after: after)
    }

    private static let maximumResults = 1000
}

extension PatchRequest {
    init(firebase context: RequestContext) {
        self.init(conditions: context.conditions) { (text) throws(Problem) in
            try AttributePatch(firebase: text)
        }
    }
}

// MARK: Uploads

extension FirebaseAPI {
    /// Parses the first request of an upload.
    func upload(_ name: ObjectName, in bucket: Bucket, _ context: RequestContext) throws(Problem)
        -> ObjectOperation
    {
        let starts = UploadCommand(context.fields) == .start
        switch context.fields.list("x-goog-upload-protocol")?.asciiLowercased() {
        case nil where !starts: return try media(name, in: bucket, context)
        case "multipart": return try multipart(name, in: bucket, context)
        case nil, "resumable":
            guard starts else {
                throw Problem(.invalidArgument, "X-Goog-Upload-Command is 'start' here.")
            }
            return try start(name, in: bucket, context)
        default:
            throw Problem(
                .invalidArgument, "X-Goog-Upload-Protocol is 'multipart' or 'resumable'.")
        }
    }

    /// Parses an upload whose body is the object.
    private func media(_ name: ObjectName, in bucket: Bucket, _ context: RequestContext)
        throws(Problem) -> ObjectOperation
    {
        let head = context.exchange.head
        let size = head.hasBody ? head.contentLength : 0
        if let size, size > bucket.maximumObjectSize {
            throw Problem(BodyError.tooLarge, limit: bucket.maximumObjectSize)
        }
        let attributes = try UploadDescription(type: head.fields["content-type"]).attributes()
        return .upload(
            name,
            UploadRequest(
                attributes, try ExpectedDigests(head.fields), size: size, context.conditions))
    }

    /// Parses an upload whose body has the object's metadata and then its bytes.
    private func multipart(_ name: ObjectName, in bucket: Bucket, _ context: RequestContext)
        throws(Problem) -> ObjectOperation
    {
        guard let type = context.fields["content-type"], let boundary = MultipartBoundary(type) else {
            throw Problem(
                .invalidArgument,
                "Bad content type. It is multipart/related, with a boundary of 1 to 70 characters.")
        }
        return .describedUpload(name) { (context) throws(Problem) in
            let body = MultipartBody(boundary, context, limit: bucket.maximumObjectSize)
            let (json, type) = try await body.description()
            do throws(Problem) {
                let description = try UploadDescription(json: json, type: type)
                return .upload(
                    name,
                    UploadRequest(
                        try description.attributes(), description.digests, size: nil, context.conditions, body: body))
            } catch {
                body.stop()
                throw error
            }
        }
    }

    /// Parses the start of a resumable upload. Its body is the object's metadata; the bytes follow in other requests.
    private func start(_ name: ObjectName, in bucket: Bucket, _ context: RequestContext)
        throws(Problem) -> ObjectOperation
    {
        let fields = context.fields
        // A session that does not begin is over.
        context.upload = UploadReport(isComplete: true)
        var size = try bytes(fields, "x-goog-upload-header-content-length")
        if size == nil { size = try bytes(fields, "x-goog-upload-content-length") }
        if let size, size > bucket.maximumObjectSize {
            throw Problem(BodyError.tooLarge, limit: bucket.maximumObjectSize)
        }
        let type = fields["x-goog-upload-header-content-type"] ?? fields["x-goog-upload-content-type"]
        return .describedUpload(name) { [size] (context) throws(Problem) in
            var json: [UInt8] = []
            if context.exchange.head.hasBody {
                json = try await context.collect(limit: UploadDescription.maximumBytes)
            }
            let description = try UploadDescription(json: json, type: type)
            var creation = SessionCreation(dialect: .firebase, isLast: false) {
                [unowned context] token in
                FirebaseAPI.sessionURL(token, name, in: bucket, context)
            }
            creation.hasObjectBytes = false
            return .createSession(
                name,
                UploadRequest(
                    try description.attributes(), description.digests, size: size,
                    context.conditions), creation)
        }
    }

    private func bytes(_ fields: HeaderFields, _ name: StaticString) throws(Problem) -> UInt64? {
        guard let text = fields.list(name) else { return nil }
        guard let value = Decimal.parse(Array(text.utf8)[...]), value <= Int64.max else {
            throw Problem(.invalidArgument, "\(name) is a number of bytes.")
        }
        return value
    }

    // MARK: Sessions

    /// Parses a request to an upload session; nil if the request is not for one.
    func sessionRequest(_ route: Route, _ context: RequestContext) throws(Problem)
        -> ObjectOperation?
    {
        let fields = context.fields
        let tokens = route.query.all.filter { $0.name == "upload_id" }
        if tokens.isEmpty {
            let command = UploadCommand(fields)
            let begins = fields.contains("x-goog-upload-protocol") || command == .start
            if begins || !fields.contains("x-goog-upload-command") { return nil }
            throw Problem(.invalidArgument, "upload_id is missing.")
        }
        guard tokens.count == 1 else {
            throw Problem(.invalidArgument, "upload_id is given twice.")
        }
        guard let command = UploadCommand(fields), command != .start else {
            throw Problem(
                .invalidArgument,
                "X-Goog-Upload-Command is query, upload, finalize, cancel, or 'upload, finalize'.")
        }
        var request = SessionRequest(
            dialect: .firebase, token: tokens[0].value, name: try sessionName(route), action: .report)
        let offset = try bytes(fields, "x-goog-upload-offset")
        switch command {
        case .start, .query: break
        case .cancel: request.action = .cancel
        case .finalize: request.action = .finish(offset)
        case .upload, .uploadAndFinalize:
            guard let offset else {
                throw Problem(.invalidArgument, "X-Goog-Upload-Offset says where the bytes begin.")
            }
            request.action = .append(AppendRequest(offset: offset, isLast: command == .uploadAndFinalize))
        }
        return .session(request)
    }

    /// The object's name in a session's URL; nil if it is absent.
    private func sessionName(_ route: Route) throws(Problem) -> String? {
        guard case .named(let path) = route.path else { return try route.query.single("name") }
        do throws(NameError) {
            return try ObjectName.text(try ObjectName.decode(path))
        } catch {
            throw Problem(error)
        }
    }
}
