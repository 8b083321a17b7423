import HTTPClient
import System
import Wire
import XML

extension S3Bucket: PartsDriver {
    public func beginParts(_ name: String, _ plan: SessionPlan) async throws(SessionError) -> any PartsUpload {
        try await checkSessions()
        return try await openSessions.beginParts(name, plan, self)
    }

    public func openParts(_ id: UploadSessionID, _ name: String, key: [UInt8]) async throws(SessionError)
        -> any PartsUpload
    {
        try openSessions.openParts(id, name, key: key, self)
    }
}

/// Uploads in parts. The object is made by the same request as that of a session.
extension S3Bucket: CloudPartsService {
    static let minimumPart: UInt64 = 5 << 20

    var minimumPart: UInt64 { S3Bucket.minimumPart }

    var maximumPart: UInt64 { settings.singleLimit }

    /// The service has its own tag.
    var setsProperties: Bool { false }

    func newUpload(_ id: UploadSessionID, _ state: CloudSessionState) async throws(BucketError)
        -> CloudSessionState.Transfer
    {
        let generation = newGeneration()
        let upload = try await beginUpload(state, generation: generation, nil)
        return .s3(S3TransferState(upload: upload, generation: generation))
    }

    func target(_ part: CloudPartAddress) -> String {
        uploadTarget(part.upload.name, part.upload.upload, "partNumber=\(part.number)&")
    }

    private func fields(md5: [UInt8]?) -> HeaderFields {
        var fields = HeaderFields()
        if isSigned, let md5 { fields.append("content-md5", Base64.encode(md5)) }
        return fields
    }

    func streamPart(_ part: CloudPartAddress, _ plan: PartPlan) async throws(BucketError) -> any CloudPartStream {
        S3PartStream(
            self, try await stream("PUT", target(part), fields(md5: plan.md5), length: plan.size))
    }

    func storePart(_ part: CloudPartAddress, _ bytes: [UInt8], _ facts: ContentFacts) async throws(CloudPartFailure)
        -> String
    {
        let request = ClientRequest(
            "PUT", target(part), fields: fields(md5: facts.md5), body: .bytes(bytes), isRepeatable: true)
        let response: CollectedResponse
        do throws(BucketError) { response = try await call(request) } catch { throw .store(error) }
        return try tag(of: response, facts)
    }

    /// The part's entity tag, which must be the md5 of the sent bytes if the service's tags are md5s.
    fileprivate func tag(of response: CollectedResponse, _ facts: ContentFacts) throws(CloudPartFailure) -> String {
        try checkUpload(response)
        do throws(BucketError) {
            let tag = try S3Part.tag(of: response)
            if let stored = taggedMD5(S3Head(response.fields)), let sent = facts.md5, stored != sent {
                throw BucketError(otherBytes: "the service has other bytes of a part than were sent")
            }
            return tag
        } catch {
            throw .store(error)
        }
    }

    func checkUpload(_ response: CollectedResponse) throws(CloudPartFailure) {
        if response.status == 404, S3ErrorResponse(response).code == "NoSuchUpload" { throw .uploadGone }
    }

    func listParts(_ upload: CloudUploadAddress, after number: Int, limit: Int) async throws(CloudPartFailure)
        -> CloudPartsPage
    {
        let request = ClientRequest(
            "GET", uploadTarget(upload.name, upload.upload, "max-parts=\(limit)&part-number-marker=\(number)&"))
        let response: CollectedResponse
        do throws(BucketError) { response = try await call(request, limit: 4 << 20) } catch { throw .store(error) }
        try checkUpload(response)
        guard response.status == 200 else { throw .store(S3ErrorResponse(response).error("the list of parts")) }
        let page = await pool.run { [body = response.body] in
            S3Multipart.isAbout(upload.name, "ListPartsResult", body) ? CloudPartsPage(body) : nil
        }
        guard let page else { throw .store(BucketError(.unavailable, "a page of the parts is not a list in XML")) }
        return page
    }
}

private final class S3PartStream: CloudPartStream {
    private let bucket: S3Bucket
    private let body: S3Body

    init(_ bucket: S3Bucket, _ body: S3Body) {
        self.bucket = bucket
        self.body = body
    }

    func write(_ bytes: RawSpan) throws -> Int { try body.write(bytes) }

    func whenWritable(_ resume: @escaping () -> Void) { body.whenWritable(resume) }

    func end(_ last: [UInt8], _ facts: ContentFacts) async throws(CloudPartFailure) -> String {
        // If it fails, the response has the cause.
        try? await body.writeAll(last)
        let response: CollectedResponse
        do throws(BucketError) { response = try await body.response() } catch { throw .store(error) }
        return try bucket.tag(of: response, facts)
    }

    func cancel() { body.cancel() }
}
