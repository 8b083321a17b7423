extension Configuration {
    /// Where a bucket's objects are.
    public enum Store: Sendable, Equatable {
        /// A directory of this machine, absolute.
        case directory(String)
        /// Google Cloud Storage, or what speaks its JSON API.
        case gcs(GCS)
        /// What speaks the S3 protocol.
        case s3(S3)
    }

    /// A bucket of Google Cloud Storage.
    public struct GCS: Sendable, Equatable {
        /// As it is called there; nil where the store is not chosen.
        public var bucket: String?
        /// `https://HOST[:PORT]`; nil for `STORAGE_EMULATOR_HOST`, or else the public service.
        public var endpoint: String?
        /// ``Configuration/defaultCredentials``, ``Configuration/anonymous``, or a file.
        public var credentials = defaultCredentials
        /// Who pays for requests to a requester-pays bucket.
        public var userProject: String?
    }

    /// A bucket of an S3 service.
    public struct S3: Sendable, Equatable {
        /// As it is called there; nil where the store is not chosen.
        public var bucket: String?
        /// `https://HOST[:PORT]`; nil for AWS.
        public var endpoint: String?
        /// nil for what the environment says, or else `us-east-1`.
        public var region: String?
        /// `auto`, `path` or `virtual-host`.
        public var addressing = "auto"
        /// ``Configuration/defaultCredentials``, ``Configuration/anonymous``, or a file of profiles.
        public var credentials = defaultCredentials
        /// Which section of the file counts; nil for `AWS_PROFILE`, or else `default`.
        public var profile: String?
        public var accessKeyID: String?
        public var secretAccessKey: String?
        /// `probe`, `yes` or `no`.
        public var conditionalWrites = "probe"

        /// Whether the bucket stands in the path, not in the host: decided by the endpoint, and by dots in the name,
        /// which no wildcard certificate covers, where ``addressing`` leaves it open.
        public var isPathStyle: Bool {
            addressing == "auto"
                ? endpoint != nil || (bucket ?? "").contains(".") : addressing == "path"
        }
    }

    /// TLS to a bucket's store: PEM files.
    public struct StoreTLS: Sendable, Equatable {
        /// In place of the system's.
        public var certificateAuthorities: String?
        /// Both or none.
        public var clientCertificate: String?, clientKey: String?
    }

    /// Where rules' `firestore.get` and `firestore.exists` look.
    public struct Firestore: Sendable, Equatable {
        /// nil where lookups are errors.
        public var project: String?
        /// nil for `FIRESTORE_EMULATOR_HOST`, or else the public service.
        public var endpoint: String?
        /// As of ``GCS/credentials``.
        public var credentials = defaultCredentials
    }

    /// The credentials that the environment, well-known files or the machine give.
    public static let defaultCredentials = "default"
    /// No credentials.
    public static let anonymous = "anonymous"
}

extension Configuration.Bucket {
    /// The store that the keys describe; nil where they describe none.
    public var store: Configuration.Store? {
        if let directory { return .directory(directory) }
        if gcs.bucket != nil { return .gcs(gcs) }
        return s3.bucket != nil ? .s3(s3) : nil
    }

    /// Sections that describe a store; a bucket has one of them.
    static let stores = ["directory", "gcs", "s3"]

    /// Whether a key means something for a bucket with that store.
    static func concerns(_ path: String, store: String) -> Bool {
        let section = String(path.prefix { $0 != "." })
        return stores.contains(section)
            ? section == store : section != "tls" || store != "directory"
    }

    /// Those of them with a value that is not the default.
    var givenStores: [String] { Self.stores.filter { !given(in: $0).isEmpty } }

    /// Keys of a section with a value that is not the default.
    func given(in section: String) -> [String] {
        let none = Configuration.Bucket(name: name)
        return Self.settings.filter {
            $0.path.hasPrefix(section + ".") && $0.print(self) != $0.print(none)
        }.map(\.path)
    }

    /// Every key of a store, below `buckets.NAME`.
    static let storeSettings: [Setting<Configuration.Bucket>] = [
        .path(
            "directory.path", \.directory,
            "The directory that holds the bucket; made where it is missing."),
        .name("gcs.bucket", "a bucket's name", \.gcs.bucket, "A bucket of Google Cloud Storage."),
        .endpoint(
            "gcs.endpoint", \.gcs.endpoint,
            "Where it is; null is STORAGE_EMULATOR_HOST, or else https://storage.googleapis.com."),
        .credentials(
            "gcs.credentials", \.gcs.credentials,
            "'default' is the file that GOOGLE_APPLICATION_CREDENTIALS names, or else the metadata server of the "
                + "machine; a path is such a file: a service account's key or a workload identity federation."
        ),
        .name(
            "gcs.userProject", "a project", \.gcs.userProject,
            "The project that is billed for requests to a requester-pays bucket."),
        .name("s3.bucket", "a bucket's name", \.s3.bucket, "A bucket of an S3 service."),
        .endpoint("s3.endpoint", \.s3.endpoint, "Where it is; null is AWS in the region."),
        .name(
            "s3.region", "a region", \.s3.region,
            "What requests are signed for; null is AWS_REGION, AWS_DEFAULT_REGION, or else us-east-1."
        ),
        .choice(
            "s3.addressing", ["auto", "path", "virtual-host"], \.s3.addressing,
            "Where the bucket's name stands; 'auto' is the path with an endpoint or a name with dots, and the host "
                + "otherwise."),
        .credentials(
            "s3.credentials", \.s3.credentials,
            "'default' is accessKeyId and secretAccessKey, or else what AWS tools take: the environment, the "
                + "shared files, a web identity, the container's or the machine's role; a path is a file of profiles."
        ),
        .name(
            "s3.profile", "a profile", \.s3.profile,
            "The profile of the shared files; null is AWS_PROFILE, or else default."),
        .name(
            "s3.accessKeyId", "a key's identifier", \.s3.accessKeyID,
            "A key of this bucket's own."),
        .secret(
            "s3.secretAccessKey", \.s3.secretAccessKey,
            "Its secret; better given as a variable than written here."),
        .choice(
            "s3.conditionalWrites", ["probe", "yes", "no"], \.s3.conditionalWrites,
            "Whether the service decides If-Match and If-None-Match on writes; 'probe' asks it once."
        ),
        .path(
            "tls.certificateAuthorities", \.tls.certificateAuthorities,
            "PEM file of the authorities that a gcs or s3 endpoint's certificate may have; null is the system's."
        ),
        .path(
            "tls.clientCertificate", \.tls.clientCertificate,
            "PEM chain that the endpoint is shown."),
        .path("tls.clientKey", \.tls.clientKey, "PEM key of that certificate."),
    ]
}

extension Configuration {
    private static let times = 10_000_000...UInt64(3600) * 1_000_000_000

    /// The keys that concern every store.
    static let upstreamSettings: [Setting<Configuration>] = [
        .name(
            "firestore.project", "a project", \.firestore.project,
            "Where firestore.get and firestore.exists of rules look; null makes them errors, which deny."
        ),
        .endpoint(
            "firestore.endpoint", \.firestore.endpoint,
            "Where it is; null is FIRESTORE_EMULATOR_HOST, or else https://firestore.googleapis.com."
        ),
        .credentials("firestore.credentials", \.firestore.credentials, "As of gcs buckets."),
        .path(
            "temporaryDirectory", \.temporaryDirectory,
            "For parts of uploads that may be sent again or of unknown length; null is TMPDIR, or else /tmp."
        ),
        .duration(
            "upstream.connectTimeout", times, \.upstream.connectTimeout,
            "For a connection to a gcs, s3 or firestore endpoint, its name and TLS included."),
        .duration(
            "upstream.firstByteTimeout", times, \.upstream.firstByteTimeout,
            "From the end of a request to the first byte of its answer."),
        .duration(
            "upstream.progressTimeout", times, \.upstream.progressTimeout,
            "The longest time without progress of a transfer while it is the upstream's turn."),
        .bytes(
            "upstream.progressBytes", 1...UInt64(1) << 30, \.upstream.progressBytes,
            "What counts as progress."),
        .duration(
            "upstream.idleTimeout", times, \.upstream.idleTimeout,
            "How long a connection is kept without a request."),
        .integer(
            "upstream.maximumTransfers", 1...10_000, \.upstream.maximumTransfers,
            "Requests to an upstream at once, for each loop; more wait."),
        .integer(
            "upstream.maximumQueue", 0...1_000_000, \.upstream.maximumQueue,
            "Requests that may wait, for each loop; over it 503."),
        .duration(
            "upstream.queueTimeout", times, \.upstream.queueTimeout,
            "How long one may wait; over it 503."),
        .integer(
            "upstream.attempts", 1...20, \.upstream.attempts,
            "How often a request that is safe to repeat is sent."),
        .duration(
            "upstream.retryDelay", times, \.upstream.retryDelay,
            "The most before the second attempt; it doubles with each. What is waited is random."),
        .duration(
            "upstream.maximumRetryDelay", times, \.upstream.maximumRetryDelay,
            "The most before any attempt; where the upstream asks for more there is none."),
    ]
}
