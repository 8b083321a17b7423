import EventLoop
import Glibc
import HTTPClient
import Synchronization
import Wire

/// A bucket of Amazon S3, or of a service that speaks its protocol.
///
/// What such a bucket can't tell, and what stands in its place:
/// - a generation: microseconds since 1970 at the upload, in user metadata of our own; for an object that others stored,
///   derived from its time and entity tag. Metageneration likewise, and 1 for what others stored.
/// - md5: the entity tag of an object that was stored in one part, or our own key where the digest was known before the
///   bytes were sent; otherwise unknown. crc32c: our own key, or what the service knows.
/// - preconditions: the service compares entity tags. Two uploads of the same bytes have the same one, so to a
///   precondition that is decided by the service they are the same version.
public final class S3Bucket: BucketDriver {
    /// Whether the service decides `If-Match` and `If-None-Match` of a write.
    public enum ConditionalWrites: Sendable, Equatable {
        /// Find out by a write that can't succeed.
        case probe
        case yes
        case no
    }

    /// Where the bucket is and how it is used.
    public struct Settings: Sendable, Equatable {
        /// nil for AWS in ``region``.
        public var endpoint: Origin?
        public var region: String
        public var bucket: String
        /// Whether the bucket stands in the path rather than in the host.
        public var pathStyle: Bool
        public var credentials: AWSCredentialSource
        public var conditionalWrites = ConditionalWrites.probe
        /// Where parts of uploads of unknown length wait; a file there never has a name.
        public var temporaryDirectory = "/tmp"
        /// Bytes beyond which one request can neither store nor copy an object: 5 GiB.
        package var singleLimit: UInt64 = 5 << 30
        /// Bytes of a part at least: 8 MiB.
        package var minimumPart: UInt64 = 8 << 20

        /// - Parameter pathStyle: nil for what the endpoint is known to want: AWS takes both, but for names with dots.
        public init(
            endpoint: Origin? = nil, region: String = "us-east-1", bucket: String,
            pathStyle: Bool? = nil, credentials: AWSCredentialSource = .standard
        ) {
            self.endpoint = endpoint
            self.region = region
            self.bucket = bucket
            self.pathStyle = pathStyle ?? (endpoint != nil || bucket.contains("."))
            self.credentials = credentials
        }

        /// Where requests go: what the ``Upstream`` must be made with.
        public var origin: Origin {
            let base =
                endpoint ?? Origin(.https, host: "s3.\(region).\(S3Bucket.domain(of: region))")
            return pathStyle
                ? base : Origin(base.scheme, host: "\(bucket).\(base.host)", port: base.port)
        }

        /// Whether the service is AWS itself.
        var isAWS: Bool {
            guard let endpoint else { return true }
            return endpoint.host.hasSuffix(".amazonaws.com")
                || endpoint.host.hasSuffix(".amazonaws.com.cn")
        }
    }

    /// Nanoseconds that the service may take to copy, or to put parts together, while it says nothing: 5 minutes.
    static let patience: UInt64 = 300_000_000_000

    let settings: Settings
    let pool: BlockingPool
    let isAWS: Bool
    /// Whether the connection is in clear text and the requests are signed: then streamed bodies are, too.
    let signsChunks: Bool
    let cleaning = BackgroundTasks()
    private let upstream: Upstream
    private let host: String
    private let root: String
    private let signer: AWSSigner
    private let fetcher: AWSCredentialFetcher
    /// nil where requests are not signed.
    private let credentials: AWSCredentialProvider?
    private let clock: @Sendable () -> Int64
    private let lastGeneration = Atomic<Int64>(0)
    /// Whether the entity tags of uploads are md5s, so that what was stored can be compared with what was sent. A
    /// service that tells none spares us the most expensive thing that is done with the bytes.
    let tellsMD5 = Atomic<Bool>(true)
    /// Whether the service was seen to list folder by folder.
    let listsByFolder = Atomic<Bool>(false)
    private let isClosed = Atomic<Bool>(false)
    /// Whether the service decides the conditions of writes; nil until that is known.
    let conditions: Lock<Bool?>

    /// Asks for nothing yet.
    /// - Parameters:
    ///   - upstream: Made with ``Settings/origin``; ``close()`` closes it.
    ///   - pool: Where files are read and written. It must outlive the bucket.
    ///   - clock: Microseconds since 1970.
    public init(
        _ settings: Settings, upstream: Upstream, pool: BlockingPool,
        clock: @escaping @Sendable () -> Int64 = DirectoryBucket.systemClock
    ) {
        self.settings = settings
        self.upstream = upstream
        self.pool = pool
        self.clock = clock
        isAWS = settings.isAWS
        host = settings.origin.authority
        root = settings.pathStyle ? "/\(settings.bucket)" : ""
        signer = AWSSigner(region: settings.region)
        let fetcher = AWSCredentialFetcher(
            settings.credentials, region: settings.region, pool: pool)
        self.fetcher = fetcher
        credentials =
            settings.credentials == .anonymous
            ? nil : AWSCredentialProvider { await fetcher.fetch() }
        signsChunks = credentials != nil && settings.origin.scheme == .http
        let known: Bool? =
            switch settings.conditionalWrites {
            case .probe: settings.isAWS ? true : nil
            case .yes: true
            case .no: false
            }
        conditions = Lock(known)
    }

    static func domain(of region: String) -> String {
        region.hasPrefix("cn-") ? "amazonaws.com.cn" : "amazonaws.com"
    }

    /// A generation for an upload that begins now, above `previous`, and above all before it of this process.
    func newGeneration(after previous: Int64 = 0) -> Int64 {
        let now = max(clock(), previous &+ 1)
        var last = lastGeneration.load(ordering: .relaxed)
        while true {
            let next = max(now, last + 1)
            let (done, found) = lastGeneration.compareExchange(
                expected: last, desired: next, ordering: .relaxed)
            if done { return next }
            last = found
        }
    }

    /// Milliseconds since 1970.
    func now() -> Int64 { clock() / 1000 }

    // MARK: Requests

    /// The path of an object, or of the bucket, with a query that is encoded already.
    func target(_ name: String?, _ query: String = "") -> String {
        var target = root
        if let name {
            target += "/"
            target += PercentEncoding.encodePath(name)
        } else if target.isEmpty {
            target = "/"
        }
        if !query.isEmpty {
            target += "?"
            target += query
        }
        return target
    }

    /// A value of a query, or of a form.
    static func encodeQuery(_ value: String) -> String {
        PercentEncoding.encodePath(value).split(
            separator: "/", omittingEmptySubsequences: false
        ).joined(separator: "%2F")
    }

    /// What a request was signed with at last.
    private final class Signature {
        var credentials: AWSCredentials?
    }

    private func prepared(_ request: consuming ClientRequest, _ signature: Signature)
        throws(ClientError) -> ClientRequest
    {
        if isClosed.load(ordering: .relaxed) {
            throw ClientError(.cancelled, "the bucket is closed")
        }
        if credentials != nil {
            request.authorize = { [self] (request) throws(ClientError) in
                guard let current = try await currentCredentials() else { return }
                signature.credentials = current
                let bytes: [UInt8] = if case .bytes(let bytes) = request.body { bytes } else { [] }
                signer.sign(
                    &request.fields, method: request.method, target: request.target, host: host,
                    payload: .bytes(bytes), with: current, time: clock() / 1_000_000)
            }
        }
        return request
    }

    private func currentCredentials() async throws(ClientError) -> AWSCredentials? {
        if isClosed.load(ordering: .relaxed) {
            throw ClientError(.cancelled, "the bucket is closed")
        }
        guard let credentials else { return nil }
        do throws(AWSCredentialsError) {
            return try await credentials.current()
        } catch {
            throw ClientError(.unreachable, "no credentials to sign with: \(error.cause)")
        }
    }

    /// A response whose body is still to come. Credentials that the service refuses are renewed, and the request is sent
    /// once more then.
    func send(_ request: ClientRequest) async throws(BucketError) -> ClientResponse {
        do throws(ClientError) {
            let signature = Signature()
            var response = try await upstream.send(try prepared(request, signature))
            guard credentials != nil, response.status == 400 || response.status == 403 else {
                return response
            }
            let body = (try? await response.collect(limit: 1 << 16)) ?? []
            let collected = CollectedResponse(
                status: response.status, fields: response.fields, body: body)
            // An answer to HEAD can't say what it is.
            let isHead = request.method.utf8Start[0] == UInt8(ascii: "H")
            if renews(signature.credentials, after: collected, isHead: isHead) {
                return try await upstream.send(try prepared(request, signature))
            }
            response.body = BytesSource(body)
            response.contentLength = UInt64(body.count)
            return response
        } catch {
            throw BucketError(error)
        }
    }

    /// A response with its whole body, sent once more where credentials were renewed as in ``send(_:)``.
    func call(_ request: ClientRequest, limit: Int = 1 << 20) async throws(BucketError)
        -> CollectedResponse
    {
        do throws(ClientError) {
            let signature = Signature()
            let response = try await upstream.call(try prepared(request, signature), limit: limit)
            guard renews(signature.credentials, after: response) else { return response }
            return try await upstream.call(try prepared(request, signature), limit: limit)
        } catch {
            throw BucketError(error)
        }
    }

    /// Whether a request was refused because of its credentials, and others may be had now.
    private func renews(
        _ used: AWSCredentials?, after response: CollectedResponse, isHead: Bool = false
    ) -> Bool {
        guard let credentials, let used, response.status == 400 || response.status == 403,
            isHead || S3Fault(response).refusesCredentials
        else { return false }
        return credentials.refused(used)
    }

    /// Begins a request whose body is streamed: `length` bytes, signed chunk by chunk in clear text.
    func stream(_ method: StaticString, _ target: String, _ fields: HeaderFields, length: UInt64)
        async throws(BucketError) -> S3Body
    {
        var request = ClientRequest(method, target, fields: fields)
        var chunks: ChunkSigner?
        var used: AWSCredentials?
        var encoded = length
        do throws(ClientError) {
            if let current = try await currentCredentials() {
                used = current
                if signsChunks {
                    encoded = ChunkSigner.encodedLength(length, chunk: UInt64(S3Body.chunk))
                    request.fields.append("x-amz-decoded-content-length", length)
                }
                let signer = signer.sign(
                    &request.fields, method: method, target: target, host: host,
                    payload: signsChunks ? .chunks : .unsigned, with: current,
                    time: clock() / 1_000_000)
                if signsChunks { chunks = signer }
            }
        } catch {
            throw BucketError(error)
        }
        let pipe = RequestBodyPipe(length: encoded)
        request.body = .pipe(pipe)
        return S3Body(upstream.start(request), pipe, length: length, chunks) { [self, used] in
            renews(used, after: $0)
        }
    }

    // MARK: Objects

    public func stat(_ name: String) async throws(BucketError) -> ObjectMetadata {
        try await head(name).metadata
    }

    /// The object's metadata, and the fields that they were read from.
    func head(_ name: String) async throws(BucketError) -> (
        metadata: ObjectMetadata, fields: HeaderFields
    ) {
        var request = ClientRequest("HEAD", target(name))
        askForChecksum(&request.fields)
        let response = try await send(request)
        response.body.close()
        switch response.status {
        case 200:
            let head = S3Head(response.fields)
            guard let size = head.contentLength else {
                throw BucketError(.unavailable, "stat: the service does not say how long it is")
            }
            return (head.metadata(name, size: size, isAWS: isAWS), response.fields)
        case 404: throw BucketError(.objectNotFound)
        default:
            throw S3Fault(
                CollectedResponse(status: response.status, fields: response.fields, body: [])
            ).error("stat")
        }
    }

    /// Unsigned requests are left as they are: what answers them may be a plain file server.
    func askForChecksum(_ fields: inout HeaderFields) {
        if credentials != nil { fields.append("x-amz-checksum-mode", "ENABLED") }
    }

    /// Whether fields that a plain file server does not know can be sent.
    var isSigned: Bool { credentials != nil }

    public func delete(_ name: String, _ preconditions: Preconditions) async throws(BucketError) {
        let existing = try await stat(name)
        guard preconditions.evaluate(existing, reading: false) == nil else {
            throw BucketError(.preconditionFailed)
        }
        var request = ClientRequest("DELETE", target(name))
        request.confirmsRepetition = confirmation(unchanged: existing)
        if !preconditions.isEmpty, try await decidesConditions() {
            request.fields.append("if-match", "\"\(existing.etag)\"")
        }
        let failure: BucketError
        var isAbsent = false
        do throws(BucketError) {
            let response = try await call(request)
            if [200, 204].contains(response.status) { return }
            isAbsent = response.status == 404
            failure = S3Fault(response).error("delete")
        } catch {
            failure = error
        }
        // The answer may be missing, or be that of a repetition: what was to go may be gone.
        let found = try? await state(name)
        if let found, found.object == nil {
            if isAbsent { throw BucketError(.objectNotFound) }
            return
        }
        if let found, failure.isRetryable, found.object?.isSame(as: existing) == false { return }
        throw failure
    }

    public func checkHealth() async throws(BucketError) {
        // An answer to HEAD could not say what is wrong.
        let response = try await call(
            ClientRequest("GET", target(nil, "list-type=2&max-keys=1")), limit: 1 << 20)
        // A file server that is used as a bucket need not know what a bucket is.
        let isS3 = isAWS || response.fields.contains("x-amz-request-id")
        if response.status >= 500 || isS3 && response.status >= 300 {
            if response.status == 404, S3Fault(response).code != "NoSuchKey" {
                throw BucketError(.unavailable, "the bucket '\(settings.bucket)' does not exist")
            }
            let fault = S3Fault(response)
            if let region = fault.region, region != settings.region {
                throw BucketError(
                    .unavailable,
                    "the bucket '\(settings.bucket)' is in \(region), not in \(settings.region) "
                        + "(\(fault.said))")
            }
            throw fault.error("the bucket '\(settings.bucket)'")
        }
    }

    public func close() async {
        await cleaning.finish()
        isClosed.store(true, ordering: .relaxed)
        await fetcher.close()
        await upstream.close()
    }
}
