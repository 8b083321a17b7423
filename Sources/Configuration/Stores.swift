import Wire

extension Configuration {
    /// Where a bucket's objects are stored.
    public enum Store: Sendable, Equatable {
        /// The absolute path of a local directory.
        case directory(String)
        /// Google Cloud Storage, or a service with the same JSON API.
        case gcs(GCS)
        /// A service with the S3 protocol.
        case s3(S3)
    }

    /// A bucket of Google Cloud Storage.
    public struct GCS: Sendable, Equatable {
        /// The bucket's name at the service; nil if this store is not used.
        public var bucket: String?
        /// `https://HOST[:PORT]`; nil for `STORAGE_EMULATOR_HOST`, or else the public service.
        public var endpoint: String?
        /// ``Configuration/defaultCredentials``, ``Configuration/anonymous``, or a file.
        public var credentials = defaultCredentials
        /// The project that is billed for requests to a requester-pays bucket.
        public var userProject: String?
    }

    /// A bucket of an S3 service.
    public struct S3: Sendable, Equatable {
        /// The bucket's name at the service; nil if this store is not used.
        public var bucket: String?
        /// `https://HOST[:PORT]`; nil for AWS.
        public var endpoint: String?
        /// nil for the environment's region, or else `us-east-1`.
        public var region: String?
        /// `auto`, `path` or `virtual-host`.
        public var addressing = "auto"
        /// ``Configuration/defaultCredentials``, ``Configuration/anonymous``, or a file of profiles.
        public var credentials = defaultCredentials
        /// The section of the file; nil for `AWS_PROFILE`, or else `default`.
        public var profile: String?
        public var accessKeyID: String?
        public var secretAccessKey: String?
        /// `probe`, `yes` or `no`.
        public var conditionalWrites = "probe"
        /// `memory` or `parts`.
        public var uploadRetries = "memory"
        /// 1 to 10,000.
        public var maximumParts = 10_000

        /// Whether URLs have the bucket in the path, not in the host. With `auto`, that is so if there is an endpoint,
        /// or if the name has dots, which no wildcard certificate covers.
        public var isPathStyle: Bool {
            addressing == "auto" ? endpoint != nil || (bucket ?? "").contains(".") : addressing == "path"
        }
    }

    /// TLS settings for a bucket's store: PEM files.
    public struct StoreTLS: Sendable, Equatable {
        /// Replaces the system's authorities.
        public var certificateAuthorities: String?
        /// Revocation lists; nil: revocation is not checked.
        public var revoked: String?
        /// Either both are set or neither.
        public var clientCertificate: String?, clientKey: String?
    }

    /// The database for `firestore.get` and `firestore.exists` in rules.
    public struct Firestore: Sendable, Equatable {
        /// nil if lookups are errors.
        public var project: String?
        /// nil for `FIRESTORE_EMULATOR_HOST`, or else the public service.
        public var endpoint: String?
        /// See ``GCS/credentials``.
        public var credentials = defaultCredentials
    }

    /// Credentials from the environment, well-known files or the machine.
    public static let defaultCredentials = "default"
    /// No credentials.
    public static let anonymous = "anonymous"
}

extension Configuration.Bucket {
    /// The configured store; nil if there is none.
    public var store: Configuration.Store? {
        if let directory { return .directory(directory) }
        if gcs.bucket != nil { return .gcs(gcs) }
        return s3.bucket != nil ? .s3(s3) : nil
    }

    /// The sections for stores; a bucket has exactly one of them.
    static let stores = ["directory", "gcs", "s3"]

    /// Whether a key applies to a bucket with that store.
    static func concerns(_ path: String, store: String) -> Bool {
        let section = String(path.prefix { $0 != "." })
        if stores.contains(section) { return section == store }
        return store != "directory" || !["tls", "cache"].contains(section)
    }

    /// The store sections with a value that is not the default.
    var givenStores: [String] { Self.stores.filter { !given(in: $0).isEmpty } }

    /// The keys of a section with a value that is not the default.
    func given(in section: String) -> [String] {
        let none = Configuration.Bucket(name: name)
        return Self.settings.filter {
            $0.path.hasPrefix(section + ".") && $0.print(self) != $0.print(none)
        }.map(\.path)
    }

    /// The keys of stores, below `buckets.NAME`.
    static let storeSettings: [Setting<Configuration.Bucket>] = [
        .path(
            "directory.path", \.directory,
            "Directory that stores the bucket; created if it does not exist."),
        .name("gcs.bucket", "a bucket's name", \.gcs.bucket, "A bucket of Google Cloud Storage."),
        .endpoint(
            "gcs.endpoint", \.gcs.endpoint,
            "URL of the service; null is STORAGE_EMULATOR_HOST, or else https://storage.googleapis.com."
        ),
        .credentials(
            "gcs.credentials", \.gcs.credentials,
            "'default' is the file that GOOGLE_APPLICATION_CREDENTIALS names, or else the machine's "
                + "metadata server. A path is such a file: a service account key or a configuration of "
                + "workload identity federation."
        ),
        .name(
            "gcs.userProject", "a project", \.gcs.userProject,
            "Project that is billed for requests to a requester-pays bucket."),
        .name("s3.bucket", "a bucket's name", \.s3.bucket, "A bucket of an S3 service."),
        .endpoint("s3.endpoint", \.s3.endpoint, "URL of the service; null is AWS in the region."),
        .name(
            "s3.region", "a region", \.s3.region,
            "Region that requests are signed for; null is AWS_REGION, AWS_DEFAULT_REGION, or else us-east-1."),
        .choice(
            "s3.addressing", ["auto", "path", "virtual-host"], \.s3.addressing,
            "Whether URLs have the bucket's name in the path or in the host. 'auto' is the path if "
                + "there is an endpoint or the name has dots, and the host otherwise."),
        .credentials(
            "s3.credentials", \.s3.credentials,
            "'default' is accessKeyId and secretAccessKey, or else the sources of AWS tools: the "
                + "environment, the shared files, a web identity, the role of the container or the "
                + "machine. A path is a file of profiles."
        ),
        .name(
            "s3.profile", "a profile", \.s3.profile,
            "Profile in the shared files; null is AWS_PROFILE, or else default."),
        .name(
            "s3.accessKeyId", "a key's identifier", \.s3.accessKeyID,
            "ID of an access key for this bucket only."),
        .secret(
            "s3.secretAccessKey", \.s3.secretAccessKey,
            "Secret of that access key. Prefer an environment variable to this file."),
        .choice(
            "s3.conditionalWrites", ["probe", "yes", "no"], \.s3.conditionalWrites,
            "Whether the service evaluates If-Match and If-None-Match on writes, copies and deletions; "
                + "'probe' tests it once, with temporary objects."
        ),
        .choice(
            "s3.uploadRetries", ["memory", "parts"], \.s3.uploadRetries,
            "Which uploads can be sent again: 'memory' those of at most 1 MiB, 'parts' also larger "
                + "ones, from files in temporaryDirectory."
        ),
        .integer(
            "s3.maximumParts", 1...10_000, \.s3.maximumParts,
            "Maximum number of parts of a multipart upload; some services allow fewer than S3."),
        .path(
            "tls.certificateAuthorities", \.tls.certificateAuthorities,
            "PEM file with the authorities for the certificate of a gcs or s3 endpoint; null is the system's."),
        .path(
            "tls.revoked", \.tls.revoked,
            "PEM file with revocation lists, one for each authority of the endpoint's certificate; null does "
                + "not check revocation."),
        .path(
            "tls.clientCertificate", \.tls.clientCertificate,
            "PEM file with the certificate chain that is sent to the endpoint."),
        .path("tls.clientKey", \.tls.clientKey, "PEM file with the key of that certificate."),
    ]
}

extension Configuration {
    private static let times = 10_000_000...UInt64(3600) * 1_000_000_000

    /// The keys that apply to all stores.
    static let upstreamSettings: [Setting<Configuration>] = [
        .name(
            "firestore.project", "a project", \.firestore.project,
            "Project in which firestore.get and firestore.exists of rules look documents up; with "
                + "null they are errors."
        ),
        .endpoint(
            "firestore.endpoint", \.firestore.endpoint,
            "URL of the service; null is FIRESTORE_EMULATOR_HOST, or else https://firestore.googleapis.com."
        ),
        .credentials(
            "firestore.credentials", \.firestore.credentials, "Credentials, as for gcs buckets."),
        .path(
            "temporaryDirectory", \.temporaryDirectory,
            "Directory for temporary files with parts of uploads: those of unknown length, and "
                + "those that may be sent again. null is TMPDIR, or else /tmp."
        ),
        .proxy(
            "upstream.proxy", \.upstream.proxy,
            "HTTP proxy for gcs and s3 endpoints with https; null is HTTPS_PROXY, except for the hosts in NO_PROXY."),
        .flag(
            "upstream.http2", \.upstream.http2,
            "Whether HTTP/2 is offered to gcs and s3 endpoints with https; false is for a service whose HTTP/2 fails."),
        .duration(
            "upstream.connectTimeout", times, \.upstream.connectTimeout,
            "Time limit for a connection to a gcs, s3 or firestore endpoint, including DNS and TLS."),
        .duration(
            "upstream.firstByteTimeout", times, \.upstream.firstByteTimeout,
            "Time limit from the end of a request to the first byte of its response."),
        .duration(
            "upstream.progressTimeout", times, \.upstream.progressTimeout,
            "Time limit for a transfer without progress while the gateway waits for the upstream."),
        .bytes(
            "upstream.progressBytes", 1...UInt64(1) << 30, \.upstream.progressBytes,
            "Bytes that count as progress."),
        .duration(
            "upstream.idleTimeout", times, \.upstream.idleTimeout,
            "How long an idle connection is kept."),
        .integer(
            "upstream.maximumTransfers", 1...10_000, \.upstream.maximumTransfers,
            "Concurrent requests to an upstream, for each event loop; more are queued."),
        .integer(
            "upstream.maximumQueue", 0...1_000_000, \.upstream.maximumQueue,
            "Queued requests, for each event loop; over it status 503."),
        .duration(
            "upstream.queueTimeout", times, \.upstream.queueTimeout,
            "How long a request may be queued; over it status 503."),
        .integer(
            "upstream.attempts", 1...20, \.upstream.attempts,
            "Maximum number of attempts for a request that is safe to repeat."),
        .duration(
            "upstream.retryDelay", times, \.upstream.retryDelay,
            "Maximum delay before the second attempt. It doubles for each further attempt; the "
                + "actual delay is random."),
        .duration(
            "upstream.maximumRetryDelay", times, \.upstream.maximumRetryDelay,
            "Maximum delay before any attempt. If the upstream asks for a longer one, there is no "
                + "further attempt."),
    ]
}
