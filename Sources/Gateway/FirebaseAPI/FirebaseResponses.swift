import Buckets
import HTTPServer
import Wire

extension FirebaseAPI {
    static let storageClass = "STANDARD"

    func render(
        _ result: consuming OperationResult, of route: Route, in bucket: Bucket,
        _ context: RequestContext
    ) -> Response {
        switch consume result {
        case .content(let object, let content): return render(object, content)
        case .metadata(let object):
            if route.query.values["alt"] == "media" {
                var response = Response(status: 200)
                appendFields(of: object, to: &response.head.fields)
                response.head.fields.append("content-length", object.size)
                return response
            }
            return metadata(object, in: bucket)
        case .notModified(let object):
            var response = Response(status: 304)
            appendValidators(of: object, to: &response.head.fields)
            return response
        case .stored(let result):
            var response = metadata(result.metadata, in: bucket)
            decorate(&response.head.fields, context)
            return response
        case .patched(let object): return metadata(object, in: bucket)
        case .session(let report): return render(report, context)
        case .deleted, .deletions, .link, .parts, .uploads: return Response(status: 204)
        case .response(let response): return response
        case .page: preconditionFailure("a page is rendered in slices")
        }
    }

    func render(
        _ page: ListPage, _ request: ListRequest, in bucket: Bucket, _ context: RequestContext
    ) async -> Response {
        let json = await page.json(request, in: bucket, context) { json, item in
            json.member("name", item)
            json.member("bucket", bucket.name)
        }
        return Response(status: 200, json: json)
    }

    private func metadata(_ object: ObjectMetadata, in bucket: Bucket) -> Response {
        Response(status: 200, json: object.firebaseJSON(bucket: bucket.name))
    }

    // MARK: Downloads

    private func render(_ object: ObjectMetadata, _ content: ObjectContent) -> Response {
        var fields = HeaderFields(reserving: 768)
        appendFields(of: object, to: &fields)
        return Response(content, of: object, fields: fields)
    }

    /// The fields of a download, without the length.
    private func appendFields(of object: ObjectMetadata, to fields: inout HeaderFields) {
        let attributes = object.attributes
        fields.append("content-type", usable(attributes.contentType) ?? MediaTypes.unknown)
        fields.append(
            "content-disposition",
            usable(attributes.contentDisposition).map(ContentDisposition.field)
                ?? FirebaseAPI.disposition(of: object.name))
        if let value = usable(attributes.contentEncoding), value != FirebaseJSON.usualEncoding {
            fields.append("content-encoding", value)
        }
        if let value = usable(attributes.contentLanguage) {
            fields.append("content-language", value)
        }
        appendValidators(of: object, to: &fields)
        fields.append("last-modified", HTTPDate.imfFixdate(seconds: object.created / 1000))
        fields.append("accept-ranges", "bytes")
        fields.append("x-content-type-options", "nosniff")
        fields.append("x-goog-generation", object.generation)
        fields.append("x-goog-metageneration", object.metageneration)
        fields.append("x-goog-stored-content-length", object.size)
        fields.append("x-goog-storage-class", FirebaseAPI.storageClass)
        let hashes = [
            object.crc32c.map { "crc32c=\($0.base64)" },
            object.md5.map { "md5=\(Base64.encode($0))" },
        ].compactMap { $0 }
        if !hashes.isEmpty { fields.append("x-goog-hash", hashes.joined(separator: ",")) }
    }

    /// An empty object is not stored: Chromium responds to a range of one that it has stored with 416 itself, and
    /// `getBytes` of the JavaScript SDK sends a range.
    private func appendValidators(of object: ObjectMetadata, to fields: inout HeaderFields) {
        object.appendValidators(to: &fields, isStorable: object.size > 0)
    }

    private func usable(_ value: String?) -> String? {
        guard let value, !value.isEmpty, value.isFieldValue else { return nil }
        return value
    }

    /// The default disposition of an object (RFC 6266, section 4.3; RFC 8187, section 3.2).
    static func disposition(of name: String) -> String {
        let segment = Array(lastSegment(of: name).utf8)
        return "inline; filename*=utf-8''\(PercentEncoding.encodeSegment(segment))"
    }

    // MARK: Sessions

    /// Clients align their chunks to this number of bytes. The gateway does not need it.
    private static let chunkGranularity = 256 * 1024

    /// A session's URL, absolute.
    static func sessionURL(_ token: String, _ name: ObjectName, in bucket: Bucket, _ context: RequestContext) -> String
    {
        let list = "\(bucket.uploads.origin(context))/v0/b/\(bucket.name)/o"
        let encoded = PercentEncoding.encodeSegment(name.value)
        return "\(list)?name=\(encoded)&upload_id=\(token)&upload_protocol=resumable"
    }

    private func render(_ report: UploadReport, _ context: RequestContext) -> Response {
        var response = Response(status: 200)
        if let url = report.url {
            let granularity = FirebaseAPI.chunkGranularity
            response.head.fields.append("x-goog-upload-url", url)
            response.head.fields.append("x-goog-upload-control-url", url)
            response.head.fields.append("x-goog-upload-chunk-granularity", granularity)
            response.head.fields.append("x-guploader-uploadid", TokenChange.newToken())
        }
        response.head.fields.append("cache-control", "no-store")
        decorate(&response.head.fields, context)
        // Clients assert that it has a length and no bytes.
        response.body = .bytes([])
        return response
    }

    /// Adds the state of the upload session, if the request has one.
    func decorate(_ fields: inout HeaderFields, _ context: RequestContext) {
        guard let report = context.upload else { return }
        let status = report.isCancelled ? "cancelled" : report.isComplete ? "final" : "active"
        fields.append("x-goog-upload-status", status)
        if let offset = report.offset, report.kind != .created {
            fields.append("x-goog-upload-size-received", offset)
        }
    }

    // MARK: Failures

    func shown(_ problem: Problem, of context: RequestContext) -> Problem {
        switch problem.code {
        case let code where code.status == 401 && changesTokens(context):
            return TokenAdministration.denial(problem.cause ?? problem.detail)
        case .unauthorized where problem.detail == Problem.denied,
            .unauthenticated where problem.detail == Problem.deniedAnonymous:
            let permission =
                switch context.record.operation {
                case .get: "READ"
                case .list: "LIST"
                default: "WRITE"
                }
            return Problem(.unauthorized, "Permission denied. No \(permission) permission.")
        case .objectNotFound, .bucketNotFound, .uploadNotFound, .notFound: return Problem(problem.code, "Not Found.")
        // Clients repeat a request after 501, like after any other 5xx.
        case .uploadOffsetMismatch, .notImplemented: return Problem(.invalidArgument, problem.detail)
        case .uploadConflict where context.upload?.isComplete == true,
            .uploadConflict where context.upload?.isCancelled == true:
            return Problem(.invalidArgument, problem.detail)
        case .tooManyRequests, .tooManyUploads, .overloaded, .keysUnavailable, .upstreamTimeout,
            .upstreamUnavailable, .uploadConflict:
            // Clients end an upload at 429 and 500, and repeat it after 503.
            let known = problem.field.flatMap { "\($0.name)" == "retry-after" ? $0 : nil }
            return Problem(.overloaded, problem.detail, field: known ?? ("retry-after", "1"))
        default: return problem
        }
    }

    /// Whether the request is for a change of download tokens. It may have failed before it was parsed.
    private func changesTokens(_ context: RequestContext) -> Bool {
        guard context.method == .post || context.method == .put else { return false }
        let query = QueryParameters(context.target.query)
        return query.contains("create_token") || query.contains("delete_token")
    }

    func render(_ problem: Problem, of context: RequestContext) -> Response {
        var response = render(problem, context.record.requestId)
        if problem.code.status < 500 { decorate(&response.head.fields, context) }
        return response
    }

    func render(_ problem: Problem, _ requestId: String) -> Response {
        var json = JSONWriter(reserving: 128)
        json.beginObject()
        json.key("error")
        json.beginObject()
        json.member("code", Int64(problem.code.status))
        json.member("message", problem.detail)
        json.endObject()
        json.endObject()
        return Response(status: problem.code.status, json: json.bytes)
    }

    // MARK: Pages of other origins

    /// By default all origins: no cookies are involved. Fields are listed, because not every browser knows `*`.
    func cors(_ configured: CORSPolicy?) -> CORSPolicy? {
        var cors = configured ?? CORSPolicy(origins: [])
        if cors.origins.isEmpty { cors.origins = ["*"] }
        cors.exposedHeaders = FirebaseAPI.exposedHeaders
        return cors
    }

    private static let exposedHeaders = [
        "Content-Type", "Content-Length", "Content-Range", "ETag", "X-Request-Id", "X-Firebase-Storage-Version",
        "X-Goog-Upload-Chunk-Granularity", "X-Goog-Upload-Command", "X-Goog-Upload-Control-URL",
        "X-Goog-Upload-Header-Content-Length", "X-Goog-Upload-Header-Content-Type", "X-Goog-Upload-Protocol",
        "X-Goog-Upload-Size-Received", "X-Goog-Upload-Status", "X-Goog-Upload-URL", "X-GUploader-UploadID",
        "X-Goog-Hash", "X-Goog-Generation", "X-Goog-Metageneration",
    ]
}
