import Credentials
import Glibc
import HTTPClient
import OpenSSL
import Synchronization
import System
import Wire

/// A bucket of Amazon S3 or of an S3-compatible service.
///
/// S3 lacks some object properties. They are replaced as follows:
/// - Generation: the time of the upload in microseconds since 1970, in our user metadata. For other clients' objects it
///   is derived from the modification time and the entity tag. The metageneration is stored likewise, otherwise 1.
/// - md5: the entity tag of an object stored in one part, or our metadata if the digest was known before the bytes were
///   sent; otherwise unknown. crc32c: our metadata, or the service's checksum.
/// - Preconditions: the service compares entity tags, which are equal for uploads of the same bytes. Preconditions
///   evaluated by the service don't distinguish such uploads.
public final class S3Bucket: CopyingDriver {
    /// Whether the service evaluates `If-Match` and `If-None-Match` of writes, copies and deletions.
    public enum ConditionalWrites: Sendable, Equatable {
        /// Determine it with temporary objects.
        case probe
        case yes
        case no
    }

    /// The uploads that are retried if the service is busy or the connection breaks.
    public enum UploadRetries: String, Sendable, Equatable {
        /// Uploads of at most 1 MiB, held in memory. A larger one of known length is one request, and fails with it.
        case memory
        /// All uploads. Larger ones are sent in parts, each buffered in a temporary file.
        case parts
    }

    /// The location of the bucket and the options of its use.
    public struct Settings: Sendable, Equatable {
        /// nil for AWS in ``region``.
        public var endpoint: Origin?
        public var region: String
        public var bucket: String
        /// Whether the bucket's name is in the path rather than the host.
        public var pathStyle: Bool
        public var credentials: AWSCredentialSource
        public var conditionalWrites = ConditionalWrites.probe
        public var uploadRetries = UploadRetries.memory
        /// The maximum number of parts of an upload: 1 to 10,000, the protocol's limit.
        public var maximumParts = 10_000
        /// The directory of the temporary files that buffer parts, which have no names.
        public var temporaryDirectory = "/tmp"
        /// The maximum size of an object that one request can store or copy: 5 GiB.
        package var singleLimit: UInt64 = 5 << 30
        /// The minimum size of a part: 8 MiB.
        package var minimumPart: UInt64 = 8 << 20
        /// The maximum size of an upload that is held in memory for retries: 1 MiB.
        package var replayLimit: UInt64 = 1 << 20
        /// The maximum total size of such uploads: 64 MiB. Further uploads are handled like larger ones.
        package var replayMemory = 64 << 20

        /// - Parameter pathStyle: nil to choose by the endpoint. AWS accepts both, except for names with dots.
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

        /// The origin of the requests, with which the ``Upstream`` must be created.
        public var origin: Origin {
            let base =
                endpoint
                ?? Origin(.https, host: "s3.\(region).\(AWSCredentialFetcher.domain(of: region))")
            return pathStyle
                ? base : Origin(base.scheme, host: "\(bucket).\(base.host)", port: base.port)
        }

        var isAWS: Bool {
            guard let endpoint else { return true }
            return endpoint.host.hasSuffix(".amazonaws.com") || endpoint.host.hasSuffix(".amazonaws.com.cn")
        }
    }

    /// The limit for a silent copy or completion, in nanoseconds: 5 minutes.
    static let silenceLimit: UInt64 = 300_000_000_000

    let settings: Settings
    let pool: BlockingPool
    let isAWS: Bool
    /// Whether streamed bodies are signed chunk by chunk: requests are signed and the connection is in clear text.
    let signsChunks: Bool
    let cleaning = BackgroundTasks()
    let heads = S3HeadCache()
    let upstream: Upstream
    private let host: String
    private let root: String
    private let signer: AWSSigner
    private let fetcher: AWSCredentialFetcher
    /// nil if requests are not signed.
    private let credentials: AWSCredentialProvider?
    /// Microseconds since 1970.
    let clock: @Sendable () -> Int64
    private let lastGeneration = Atomic<Int64>(0)
    /// Whether the entity tags of uploads are md5s, to compare the stored bytes with. Otherwise the md5, which costs
    /// more than all other work on the bytes, is not computed.
    let tellsMD5 = Atomic<Bool>(true)
    /// False once an entity tag of 32 hexadecimal digits was not its object's md5.
    let tagsAreMD5 = Atomic<Bool>(true)
    /// The bytes held in memory for retries, at most ``Settings/replayMemory``.
    let replayed = Atomic<Int>(0)
    /// Whether the service has been observed to list folder by folder.
    let listsByFolder = Atomic<Bool>(false)
    /// The ids of this process's multipart uploads in progress.
    let openUploads = Lock<Set<BytewiseString>>([])
    private let isClosed = Atomic<Bool>(false)
    /// nil until the first session is used, and after ``close()``.
    let sessions = Lock<CloudSessions?>(nil)
    /// Whether the service evaluates the conditions of writes; nil if unknown.
    let conditions: Lock<Bool?>
    /// The same for copies and deletions.
    let changes: Lock<ConditionalChanges?>
    /// Whether the service copies parts as it should; nil if unknown.
    let partCopies = Lock<Bool?>(nil)

    /// Creates the bucket without sending a request.
    /// - Parameters:
    ///   - upstream: Created with ``Settings/origin``. ``close()`` closes it.
    ///   - pool: For file access. It must outlive the bucket.
    ///   - clock: Microseconds since 1970.
    public init(
        _ settings: Settings, upstream: Upstream, pool: BlockingPool,
        clock: @escaping @Sendable () -> Int64 = SystemClock.microseconds
    ) {
        self.settings = settings
        self.upstream = upstream
        self.pool = pool
        self.clock = clock
        isAWS = settings.isAWS
        host = settings.origin.authority
        root = settings.pathStyle ? "/\(settings.bucket)" : ""
        signer = AWSSigner(region: settings.region)
        let fetcher = AWSCredentialFetcher(settings.credentials, region: settings.region, pool: pool)
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
        changes = Lock(known.map { $0 ? ConditionalChanges.all : ConditionalChanges.none })
    }

    /// A generation for a new upload, greater than `previous` and all earlier ones of this process.
    func newGeneration(after previous: Int64 = 0) -> Int64 {
        let now = max(clock(), previous &+ 1)
        var last = lastGeneration.load(ordering: .relaxed)
        while true {
            let next = max(now, last + 1)
            let (done, found) = lastGeneration.compareExchange(expected: last, desired: next, ordering: .relaxed)
            if done { return next }
            last = found
        }
    }

    /// Milliseconds since 1970.
    func now() -> Int64 { clock() / 1000 }

    // MARK: Requests

    /// The path of an object, or of the bucket if `name` is nil, with an encoded query.
    func target(_ name: String?, _ query: String = "") -> String {
        var target = root
        if let name {
            target = PercentEncoding.encodePath(name, below: root)
        } else if target.isEmpty {
            target = "/"
        }
        if !query.isEmpty {
            target += "?"
            target += query
        }
        return target
    }

    private final class Signature {
        var credentials: AWSCredentials?
    }

    private func checkOpen() throws(ClientError) {
        if isClosed.load(ordering: .relaxed) {
            throw ClientError(.cancelled, "the bucket is closed")
        }
    }

    private func prepared(_ request: ClientRequest, _ signature: Signature)
        throws(ClientError) -> ClientRequest
    {
        try checkOpen()
        guard credentials != nil else { return request }
        let request = request.copy()
        request.authorize = { [self] (request) throws(ClientError) in
            guard let current = try await currentCredentials() else { return }
            signature.credentials = current
            let bytes: [UInt8] = if case .bytes(let bytes) = request.body { bytes } else { [] }
            signer.sign(
                &request.fields, method: request.method, target: request.target, host: host,
                payload: .bytes(bytes), with: current, time: clock() / 1_000_000)
        }
        return request
    }

    private func currentCredentials() async throws(ClientError) -> AWSCredentials? {
        try checkOpen()
        guard let credentials else { return nil }
        do throws(AWSCredentialsError) {
            return try await credentials.current()
        } catch {
            throw ClientError(.unreachable, "no credentials to sign with: \(error.cause)")
        }
    }

    /// Sends a request, and once more if the service rejects the credentials and there are new ones. The body is
    /// unread.
    func send(_ request: ClientRequest) async throws(BucketError) -> ClientResponse {
        do throws(ClientError) {
            guard credentials != nil else {
                try checkOpen()
                return try await upstream.send(request)
            }
            return try await sendSigned(request)
        } catch {
            throw BucketError(error)
        }
    }

    // Not inlined, so that the task of an unsigned request reserves no memory for it.
    @inline(never)
    private func sendSigned(_ request: ClientRequest) async throws(ClientError) -> ClientResponse {
        let signature = Signature()
        let response = try await upstream.send(try prepared(request, signature))
        guard response.status == 400 || response.status == 403 else { return response }
        return try await sendAgain(request, signature, after: response)
    }

    /// Sends a request again with new credentials if the response rejects the old ones; otherwise returns the response.
    /// Not inlined, so that the task of every request does not reserve memory for it.
    @inline(never)
    private func sendAgain(
        _ request: ClientRequest, _ signature: Signature, after rejection: ClientResponse
    ) async throws(ClientError) -> ClientResponse {
        var response = rejection
        let body = (try? await response.collect(limit: 1 << 16)) ?? []
        let collected = CollectedResponse(status: response.status, fields: response.fields, body: body)
        // A response to HEAD has no body that could contain the error.
        let isHead = request.method.utf8Start[0] == UInt8(ascii: "H")
        if renews(signature.credentials, after: collected, isHead: isHead) {
            return try await upstream.send(try prepared(request, signature))
        }
        response.body = BytesSource(body)
        response.contentLength = UInt64(body.count)
        return response
    }

    /// Sends a request and collects the response. Retries if the service says that it has done nothing, which it can
    /// also say with status 409 or in the body of a response with status 200.
    func call(_ request: ClientRequest, limit: Int = 1 << 20) async throws(BucketError)
        -> CollectedResponse
    {
        var refused: CollectedResponse?
        var failures = 0
        while true {
            let response = try await callOnce(request, limit: limit)
            // The service may have dropped the upload's parts after a conflict. Report the conflict, the cause.
            if let refused, response.status == 404, S3ErrorResponse(response).code == "NoSuchUpload" {
                return refused
            }
            let isWrite = request.confirmsRepetition != nil
            guard response.status == 409 || isWrite && response.status == 200, S3ErrorResponse(response).isRejection
            else { return response }
            failures += 1
            refused = response
            guard
                await upstream.mayTryAgain(
                    after: failures, retryAfter: response.fields["retry-after"])
            else { return response }
        }
    }

    /// Sends a request and collects the response. Renews credentials like ``send(_:)``.
    private func callOnce(_ request: ClientRequest, limit: Int) async throws(BucketError)
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

    /// Whether the response rejects the credentials and new ones may be available.
    private func renews(
        _ used: AWSCredentials?, after response: CollectedResponse, isHead: Bool = false
    ) -> Bool {
        guard let credentials, let used, response.status == 400 || response.status == 403,
            isHead || S3ErrorResponse(response).refusesCredentials
        else { return false }
        return credentials.reject(used)
    }

    /// Begins a request with a streamed body of `length` bytes. On a clear-text connection each chunk is signed.
    func stream(_ method: StaticString, _ target: String, _ fields: HeaderFields, length: UInt64)
        async throws(BucketError) -> S3Body
    {
        let request = ClientRequest(method, target, fields: fields)
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
                    payload: signsChunks ? .chunks : .unsigned, with: current, time: clock() / 1_000_000)
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

    // MARK: State

    /// Whether requests may have S3's own fields, unknown to a plain file server.
    var isSigned: Bool { credentials != nil }

    public func checkHealth() async throws(BucketError) {
        // A response to HEAD could not contain the error.
        let response = try await call(ClientRequest("GET", target(nil, "list-type=2&max-keys=1")), limit: 1 << 20)
        // A file server may have no concept of a bucket.
        let isS3 =
            isAWS || response.fields.contains("x-amz-request-id") || S3ErrorResponse.code(in: response.body) != nil
        if response.status >= 500 || isS3 && response.status >= 300 {
            if response.status == 404, S3ErrorResponse(response).code != "NoSuchKey" {
                throw BucketError(.unavailable, "the bucket '\(settings.bucket)' does not exist")
            }
            let failure = S3ErrorResponse(response)
            if let region = failure.region, region != settings.region {
                throw BucketError(
                    .unavailable,
                    "the bucket '\(settings.bucket)' is in \(region), not in \(settings.region) " + "(\(failure.said))")
            }
            throw failure.error("the bucket '\(settings.bucket)'")
        }
    }

    public func close() async {
        await cleaning.finish()
        closeSessions()
        isClosed.store(true, ordering: .relaxed)
        await fetcher.close()
        await upstream.close()
    }
}
