import Credentials
import HTTPClient
import Wire

/// Preconditions that Cloud Storage evaluates itself.
struct GCSConditions: Equatable {
    /// 0 requires that no object exists.
    var generation: Int64?
    var metageneration: Int64?

    static let none = GCSConditions()

    var isEmpty: Bool { generation == nil && metageneration == nil }

    init() {}

    /// Pins a change to an object; nil pins it to the object's absence.
    init(pinnedTo object: ObjectMetadata?) {
        generation = object?.generation ?? 0
        metageneration = object?.metageneration
    }

    /// nil if the service can't evaluate them: several tags, tags with other conditions, dates, a lone metageneration.
    init?(_ conditions: Preconditions) {
        guard conditions.ifModifiedSince == nil, conditions.ifUnmodifiedSince == nil else {
            return nil
        }
        generation = conditions.generation
        metageneration = conditions.metageneration
        // Tags of S3 are compared with a looked-up object.
        if conditions.comparesS3Tags, conditions.comparesTags { return nil }
        if metageneration == 0 || metageneration != nil && generation == nil { return nil }
        switch (conditions.ifMatch, conditions.ifNoneMatch) {
        case (nil, nil): break
        case (nil, .any?) where generation == nil: generation = 0
        case (.tags(let tags)?, nil) where tags.count == 1 && generation == nil:
            // An entity tag is the generation in decimal. 0 is excluded: as a generation it means "no object".
            guard let tag = Int64(tags[0]), tag > 0, String(tag) == tags[0] else { return nil }
            generation = tag
        default: return nil
        }
    }

    var query: [(String, String)] {
        var query: [(String, String)] = []
        if let generation { query.append(("ifGenerationMatch", String(generation))) }
        if let metageneration { query.append(("ifMetagenerationMatch", String(metageneration))) }
        return query
    }
}

struct GCSRequests: Sendable {
    /// The maximum size of a JSON response about one object: 256 KiB.
    static let maximumResponse = 256 * 1024

    let bucket: String
    let userProject: String?
    let upstream: Upstream
    let credentials: GoogleCredentials

    // MARK: Targets

    /// The name is encoded as one path segment.
    func object(_ name: String, _ query: [(String, String)] = []) -> String {
        target("/storage/v1/b/\(segment(bucket))/o/\(segment(name))", query)
    }

    func move(_ source: String, to name: String, _ query: [(String, String)]) -> String {
        let (bucket, source, name) = (segment(bucket), segment(source), segment(name))
        return target("/storage/v1/b/\(bucket)/o/\(source)/moveTo/o/\(name)", query)
    }

    func rewrite(_ source: String, to name: String, _ query: [(String, String)]) -> String {
        let (bucket, source, name) = (segment(bucket), segment(source), segment(name))
        return target("/storage/v1/b/\(bucket)/o/\(source)/rewriteTo/b/\(bucket)/o/\(name)", query)
    }

    func objects(_ query: [(String, String)]) -> String {
        target("/storage/v1/b/\(segment(bucket))/o", query)
    }

    func uploads(_ query: [(String, String)]) -> String {
        target("/upload/storage/v1/b/\(segment(bucket))/o", query)
    }

    /// Queries which of these permissions are granted.
    func permissions(_ names: [String]) -> String {
        target(
            "/storage/v1/b/\(segment(bucket))/iam/testPermissions",
            names.map { ("permissions", $0) })
    }

    private func target(_ path: String, _ query: [(String, String)]) -> String {
        var query = query
        if let userProject { query.append(("userProject", userProject)) }
        if query.isEmpty { return path }
        return path + "?" + query.map { "\($0)=\(segment($1))" }.joined(separator: "&")
    }

    private func segment(_ text: String) -> String { PercentEncoding.encodeSegment(text) }

    // MARK: Sending

    final class Attempts {
        var authorization: String?
        var count = 0
    }

    func call(
        _ request: ClientRequest, limit: Int = maximumResponse, _ attempts: Attempts = Attempts()
    ) async throws(BucketError) -> CollectedResponse {
        let upstream = upstream
        return try await authorized(request, attempts, status: \.status) {
            (request) throws(ClientError) in
            try await upstream.call(request, limit: limit)
        }
    }

    /// Sends a request and returns the response with its body unread.
    func send(_ request: ClientRequest) async throws(BucketError) -> ClientResponse {
        let upstream = upstream
        return try await authorized(request, Attempts(), status: \.status) {
            (request) throws(ClientError) in
            try await upstream.send(request)
        }
    }

    /// Retries once after a 401, because the token may have been revoked early.
    private func authorized<Response>(
        _ request: ClientRequest, _ attempts: Attempts, status: (Response) -> Int,
        _ send: (ClientRequest) async throws(ClientError) -> Response
    ) async throws(BucketError) -> Response {
        let request = request.copy()
        let credentials = credentials
        request.authorize = { (request) throws(ClientError) in
            attempts.count += 1
            attempts.authorization = try await credentials.authorization()
            if let value = attempts.authorization { request.fields.append("authorization", value) }
        }
        do throws(ClientError) {
            let response = try await send(request)
            guard status(response) == 401, let rejected = attempts.authorization else {
                return response
            }
            credentials.reject(rejected)
            return try await send(request)
        } catch {
            throw BucketError(error)
        }
    }

    // MARK: Responses

    /// Parses the object in a response about `name`. Throws for an error status, or if the response is not this object.
    func metadata(_ status: Int, _ body: [UInt8], of name: String) throws(BucketError)
        -> ObjectMetadata
    {
        guard status == 200 || status == 201 else { throw failure(status, body) }
        return try metadata((try? JSONReader.parse(body)) ?? .null, of: name)
    }

    func metadata(_ json: JSONValue, of name: String) throws(BucketError) -> ObjectMetadata {
        guard let metadata = GCSObject.metadata(json) else {
            throw BucketError(.unavailable, "\(what): the response is not an object's metadata")
        }
        // Accepting it could report or remove the wrong object.
        guard BytewiseString.areEqual(metadata.name, name),
            json["bucket"].map({ $0.text == bucket }) ?? true
        else {
            throw BucketError(.unavailable, "\(what): the response is about another object")
        }
        return metadata
    }

    func metadata(_ response: CollectedResponse, of name: String) throws(BucketError)
        -> ObjectMetadata
    {
        try metadata(response.status, response.body, of: name)
    }

    var missingBucket: BucketError {
        BucketError(.unavailable, "the Cloud Storage bucket '\(bucket)' does not exist")
    }

    private var what: String { "Cloud Storage bucket '\(bucket)'" }

    /// Whether the bytes were rejected because their md5 or crc32c differs from the declared one.
    private func isOfDigest(_ message: String) -> Bool {
        let message = message.asciiLowercased()
        return message.contains("md5") || message.contains("crc32c")
    }

    func failure(_ response: CollectedResponse) -> BucketError {
        failure(response.status, response.body)
    }

    func failure(_ status: Int, _ body: [UInt8]) -> BucketError {
        let json = try? JSONReader.parse(body)
        let error = json?["error"]
        let reason = error?["errors"]?.elements?.first?["reason"]?.text ?? ""
        // Google's test bench has its message outside the error object.
        let message = error?["message"]?.text ?? json?["message"]?.text ?? ""
        let words = ASCII.plainWords(message.isEmpty ? "status \(status)" : "\(status), \(message)")
        func failed(_ code: BucketError.Code, _ cause: String) -> BucketError {
            var error = BucketError(code, "\(what): \(cause)")
            error.mayHaveChanged = status >= 500 || [408, 429].contains(status)
            return error
        }
        switch status {
        case 400 where isOfDigest(message), 412 where isOfDigest(message):
            return BucketError(otherBytes: "\(what): the service has received other bytes: \(words)")
        case 304, 412: return BucketError(.preconditionFailed)
        case 404 where message.hasPrefix("The specified bucket does not exist"): return missingBucket
        case 404: return BucketError(.objectNotFound)
        case 403 where reason.asciiLowercased().contains("ratelimit"), 429:
            return failed(.overloaded, "the service asks for fewer requests: \(words)")
        case 403 where reason.asciiLowercased().contains("quota"), 507:
            return failed(.insufficientStorage, words)
        case 401, 403:
            return failed(.unavailable, "the service refuses the credentials: \(words)")
        case 400, 411, 413, 414, 501: return failed(.unsupported, "the service refuses: \(words)")
        case 408, 504: return failed(.timedOut, "the service responds with \(words)")
        default: return failed(.unavailable, "the service responds with \(words)")
        }
    }
}
