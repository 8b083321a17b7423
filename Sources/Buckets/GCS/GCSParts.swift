import HTTPClient
import OpenSSL
import System
import Wire
import XML

extension GCSBucket: PartsDriver {
    public func beginParts(_ name: String, _ plan: SessionPlan) async throws(SessionError) -> any PartsUpload {
        guard try await inStore({ () throws(BucketError) in try await hasParts() }) else {
            throw .store(BucketError(.unsupported, "the service has no uploads in parts"))
        }
        var plan = plan
        // The type that the service reports for an object without one.
        plan.upload.attributes.contentType = plan.upload.attributes.mediaType
        return try await sessions.beginParts(name, plan, self)
    }

    public func openParts(_ id: UploadSessionID, _ name: String, key: [UInt8]) async throws(SessionError)
        -> any PartsUpload
    {
        try await inStore { () throws(BucketError) in try checkOpen() }
        return try sessions.openParts(id, name, key: key, self)
    }

    /// Whether the service has the XML API's multipart uploads. Google has; others are asked once for the parts of an
    /// upload that does not exist.
    func hasParts() async throws(BucketError) -> Bool {
        try checkOpen()
        if let known = partsSupport.withLock({ $0 }) { return known }
        let target = requests.xml(HiddenName.reserved + "probe", "uploadId=none")
        let response = try await requests.call(ClientRequest("GET", target))
        let code = S3ErrorResponse(response).code
        let isKnown = response.status < 500 && ![401, 403, 429].contains(response.status) && code != "NoSuchBucket"
        let has = response.status == 404 && code == "NoSuchUpload"
        // Permissions can change.
        if isKnown { partsSupport.withLock { $0 = has } }
        return has
    }
}

/// Uploads in parts: multipart uploads of the XML API, which is S3's, to a hidden object. The commit joins the parts and
/// moves the object, since the XML API evaluates no preconditions.
extension GCSBucket: CloudPartsService {
    /// 5 MiB.
    static let minimumPart: UInt64 = 5 << 20

    var minimumPart: UInt64 { GCSBucket.minimumPart }

    /// 5 GiB.
    var maximumPart: UInt64 { 5 << 30 }

    var setsProperties: Bool { true }

    func newUpload(_ id: UploadSessionID, _ state: CloudSessionState) async throws(BucketError)
        -> CloudSessionState.Transfer
    {
        let name = HiddenName.data(id).text
        let fields = GCSParts.fields(state.attributes, mark: state.mark) ?? HeaderFields()
        let request = requests.xmlRequest("POST", name, "uploads", fields)
        // A repetition begins another upload.
        request.isRepeatable = true
        let attempts = GCSRequests.Attempts()
        do throws(BucketError) {
            let response = try await requests.call(request, attempts)
            let result = "InitiateMultipartUploadResult"
            guard response.status == 200, S3Multipart.isAbout(name, result, response.body),
                let upload = XMLReader.first("UploadId", of: result, in: response.body), !upload.isEmpty
            else { throw S3ErrorResponse(response).error("upload in parts") }
            if attempts.count > 1 { await abortUploads(of: name, besides: upload) }
            return .gcsParts(GCSPartsState(upload: upload))
        } catch {
            await abortUploads(of: name, besides: nil)
            throw error
        }
    }

    /// Aborts uploads whose creation had no response. No other session has uploads of this hidden object.
    private func abortUploads(of name: String, besides known: String?) async {
        let request = requests.xmlRequest("GET", nil, "uploads&prefix=\(PercentEncoding.encodeSegment(name))")
        guard let response = try? await requests.call(request, limit: 1 << 20), response.status == 200 else { return }
        var uploads: [String] = []
        try? XMLReader.read(response.body) { owner, member, text in
            if (owner, member) == ("Upload", "UploadId") { uploads.append(text) }
        }
        for upload in uploads where known.map({ !BytewiseString.areEqual($0, upload) }) ?? true {
            try? await abortUpload(name, upload)
        }
    }

    func abortUpload(_ name: String, _ upload: String) async throws(BucketError) {
        let request = requests.xmlRequest("DELETE", name, GCSParts.query(upload))
        request.isRepeatable = true
        let response = try await requests.call(request)
        guard [200, 204, 404].contains(response.status) else {
            throw S3ErrorResponse(response).error("the end of an upload in parts")
        }
    }

    private func request(_ part: CloudPartAddress, md5: [UInt8]?) -> ClientRequest {
        let query = "partNumber=\(part.number)&\(GCSParts.query(part.upload.upload))"
        let request = requests.xmlRequest("PUT", part.upload.hiddenName, query)
        if let md5 { request.fields.append("content-md5", Base64.encode(md5)) }
        return request
    }

    func streamPart(_ part: CloudPartAddress, _ plan: PartPlan) async throws(BucketError) -> any CloudPartStream {
        try checkOpen()
        let pipe = RequestBodyPipe(length: plan.size)
        let request = request(part, md5: plan.md5)
        request.body = .pipe(pipe)
        request.isBulk = true
        let authorization: String?
        do throws(ClientError) { authorization = try await requests.credentials.authorization() } catch {
            throw BucketError(error)
        }
        if let authorization { request.fields.append("authorization", authorization) }
        return GCSPartStream(requests, requests.upstream.start(request), pipe, authorization)
    }

    func storePart(_ part: CloudPartAddress, _ bytes: [UInt8], _ facts: ContentFacts) async throws(CloudPartFailure)
        -> String
    {
        let request = request(part, md5: facts.md5)
        request.body = .bytes(bytes)
        request.isRepeatable = true
        let response: CollectedResponse
        do throws(BucketError) { response = try await requests.call(request) } catch { throw .store(error) }
        return try GCSParts.tag(of: response, facts)
    }

    func listParts(_ upload: CloudUploadAddress, after number: Int, limit: Int) async throws(CloudPartFailure)
        -> CloudPartsPage
    {
        let query = "max-parts=\(limit)&part-number-marker=\(number)&\(GCSParts.query(upload.upload))"
        let request = requests.xmlRequest("GET", upload.hiddenName, query)
        let response: CollectedResponse
        do throws(BucketError) { response = try await requests.call(request, limit: 4 << 20) } catch {
            throw .store(error)
        }
        try GCSParts.checkUpload(response)
        guard response.status == 200 else { throw .store(S3ErrorResponse(response).error("the list of parts")) }
        // Parsing a thousand parts would block the loop.
        let page = await pool.run { [body = response.body] in
            S3Multipart.isAbout(upload.hiddenName, "ListPartsResult", body) ? CloudPartsPage(body) : nil
        }
        guard let page else { throw .store(BucketError(.unavailable, "a page of the parts is not a list in XML")) }
        return page
    }
}

extension CloudUploadAddress {
    /// The object of which they are parts.
    fileprivate var hiddenName: String { HiddenName.data(id).text }
}

extension GCSRequests {
    /// A path of the XML API: of an object, or of the bucket if `name` is nil.
    func xml(_ name: String?, _ query: String) -> String {
        let root = "/\(PercentEncoding.encodeSegment(bucket))"
        return (name.map { PercentEncoding.encodePath($0, below: root) } ?? root) + "?" + query
    }

    func xmlRequest(_ method: StaticString, _ name: String?, _ query: String, _ fields: HeaderFields = HeaderFields())
        -> ClientRequest
    {
        let request = ClientRequest(method, xml(name, query), fields: fields)
        if let userProject { request.fields.append("x-goog-user-project", userProject) }
        return request
    }
}

/// The XML API's representation of uploads in parts.
enum GCSParts {
    static func query(_ upload: String) -> String { "uploadId=\(PercentEncoding.encodeSegment(upload))" }

    /// The properties of the object; nil if fields can't express them all: values are ASCII, and the keys of custom
    /// metadata are in lower case.
    static func fields(_ attributes: ObjectAttributes, mark: UInt64) -> HeaderFields? {
        var fields = HeaderFields(reserving: 512)
        let properties: [(StaticString, String?)] = [
            ("content-type", attributes.mediaType), ("cache-control", attributes.cacheControl),
            ("content-disposition", attributes.contentDisposition), ("content-encoding", attributes.contentEncoding),
            ("content-language", attributes.contentLanguage),
        ]
        for (name, value) in properties {
            guard let value else { continue }
            guard S3Fields.isExact(value) else { return nil }
            fields.append(name, value)
        }
        for (key, value) in attributes.storedPairs {
            guard S3Fields.isKey(key), S3Fields.isExact(value) else { return nil }
            fields.append(name: "x-goog-meta-\(key.text)", value)
        }
        fields.append(name: "x-goog-meta-\(GCSObject.markKey)", String(mark))
        return fields
    }

    static func checkUpload(_ response: CollectedResponse) throws(CloudPartFailure) {
        if response.status == 404, S3ErrorResponse(response).code == "NoSuchUpload" { throw .uploadGone }
    }

    /// The entity tag of a stored part. The service's crc32c, if it sends one, must be that of the sent bytes.
    static func tag(of response: CollectedResponse, _ facts: ContentFacts) throws(CloudPartFailure) -> String {
        try checkUpload(response)
        do throws(BucketError) {
            let tag = try S3Part.tag(of: response)
            if let stored = GCSObject.crc32c(hashField: response.fields["x-goog-hash"]), let sent = facts.crc32c,
                stored != sent
            {
                throw BucketError(otherBytes: "the service has other bytes of a part than were sent")
            }
            return tag
        } catch {
            throw .store(error)
        }
    }
}

private final class GCSPartStream: CloudPartStream {
    private let requests: GCSRequests
    private let exchange: ClientExchange
    private let pipe: RequestBodyPipe
    private let authorization: String?

    init(_ requests: GCSRequests, _ exchange: ClientExchange, _ pipe: RequestBodyPipe, _ authorization: String?) {
        self.requests = requests
        self.exchange = exchange
        self.pipe = pipe
        self.authorization = authorization
    }

    func write(_ bytes: RawSpan) throws -> Int { try pipe.write(bytes) }

    func whenWritable(_ resume: @escaping () -> Void) { pipe.whenWritable(resume) }

    func end(_ last: [UInt8], _ facts: ContentFacts) async throws(CloudPartFailure) -> String {
        // If it fails, the response has the cause.
        _ = await pipe.writeAll(last.count) { try pipe.write(last.span.bytes.extracting(droppingFirst: $0)) }
        let response: CollectedResponse
        do throws(ClientError) {
            let head = try await exchange.response()
            let body = try await head.collect(limit: GCSRequests.maximumResponse)
            response = CollectedResponse(status: head.status, fields: head.fields, body: body)
        } catch {
            throw .store(BucketError(error))
        }
        if response.status == 401, let authorization { requests.credentials.reject(authorization) }
        return try GCSParts.tag(of: response, facts)
    }

    func cancel() { exchange.cancel() }
}
