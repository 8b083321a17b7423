import Gateway
import HTTPClient
import HTTPServer
import System
import Wire

/// The configuration of a server: one immutable value, read from a YAML file, the environment and flags.
public struct Configuration: Sendable {
    /// A listener with TLS.
    public struct HTTPS: Sendable, Equatable {
        public var address: String?
        /// A PEM file, or ``selfSigned``.
        public var certificate: String?
        /// A PEM file.
        public var key: String?

        /// The value of ``certificate`` that makes a temporary certificate at start.
        public static let selfSigned = "self-signed"
        /// Client certificates.
        public var clients = Clients()
    }

    /// One bucket.
    public struct Bucket: Sendable, Equatable {
        /// The name in request paths.
        public var name: String
        /// The absolute path of the directory that stores the bucket.
        public var directory: String?
        /// The cloud bucket that stores it. ``store`` is the one of the three that is configured.
        public var gcs = GCS(), s3 = S3()
        public var tls = StoreTLS()
        /// A file, ``Configuration/openToAll``, or nil for the top-level key.
        public var rules: String?
        /// A file, or nil for the top-level key.
        public var shadowRules: String?
        /// In bytes.
        public var maximumObjectSize = Bucket.defaultMaximumObjectSize
        public static let defaultMaximumObjectSize = UInt64(1) << 42
        /// In bytes.
        public var maximumStagedBytes = UInt64(1) << 44
        /// In bytes.
        public var maximumStagedBytesPerCaller = UInt64(1) << 42
        /// The maximum size of open upload sessions in bytes; 0 for no limit.
        public var stagedBytes: UInt64 = 0
        /// Whether the Firebase dialect serves it; nil for the top-level key.
        public var firebase: Bool?
        public var cache = BucketCache()
        public var allowedPaths: [String] = []
        public var deniedPaths: [String] = []
        /// The maximum number of segments of a name; 0 for no limit.
        public var maximumDepth = 0
        public var rejectsDiscouraged = false

        public init(name: String) { self.name = name }
    }

    /// `host:port` of the listener without TLS; nil if it is switched off.
    public var http: String? = "127.0.0.1:8080"
    public var https = HTTPS()
    /// `host:port` of the operator endpoints; nil if they are switched off.
    public var operatorAddress: String? = "127.0.0.1:9090"
    /// A file with the token for changes at the operator endpoints; nil if they need none.
    public var operatorToken: String?
    /// The permissions of Unix domain sockets.
    public var socketMode: UInt32 = 0o600
    /// Addresses, ranges, or ``TrustedProxies/processes``.
    public var trustedProxies: [String] = []
    /// A ``TrustedProxies/Field``.
    public var forwardedField = TrustedProxies.Field.auto.rawValue
    /// Nanoseconds between SIGTERM and the drain.
    public var drainDelay: UInt64 = 0
    /// The number of event loops; 0 for one for each available processor.
    public var threads = 0
    /// The number of threads for blocking file operations.
    public var fileThreads = 4
    /// The rules file of buckets without their own, or ``openToAll``; nil if not set.
    public var rules: String?
    /// The shadow rules of buckets without their own.
    public var shadowRules: String?
    /// The value for a rules file that allows everything to everybody.
    public static let openToAll = "none"
    public var logLevel = "info"
    public var logFormat = "auto"
    public var logsAccess = true
    public var logsDenials = true
    /// One in this many allowed decisions is logged; 0 for none.
    public var allowedSample = 0
    /// Origins whose pages may call the gateway; empty if CORS is off.
    public var corsOrigins: [String] = []
    /// How long browsers may cache the response to a preflight request, in nanoseconds.
    public var corsMaximumAge: UInt64 = 3_600_000_000_000
    public var corsExposedHeaders: [String] = ["*"]
    public var limits = ServerLimits()
    /// The limits for requests to each store. Its name and origin are placeholders.
    public var upstream = UpstreamSettings(name: "", origin: Origin(.https, host: "localhost"))
    public var firestore = Firestore()
    /// Issuers of tokens.
    public var issuers: [Issuer] = []
    /// Static tokens.
    public var tokens: [Token] = []
    /// Subscriptions of webhooks, sorted by name.
    public var events: [EventSink] = []
    /// The limits of caller groups.
    public var callers: [CallerGroup] = []
    /// The configuration file, if a secret stands in it.
    public internal(set) var fileWithSecret: String?
    public var links = Links()
    public var traces = TraceConfiguration()
    public var uploads = UploadConfiguration()
    public var firebase = FirebaseConfiguration()
    public var s3 = S3Configuration()
    public var console = ConsoleConfiguration()
    public var eventOptions = EventConfiguration()
    public var cache = CacheConfiguration()
    /// The absolute path of a directory; nil for `TMPDIR`, or else `/tmp`.
    public var temporaryDirectory: String?
    /// Sorted by name.
    public var buckets: [Bucket] = []
    /// The source of each overridden value, such as `SLUICE_THREADS` or `--set threads`, by key.
    public var overrides: [BytewiseString: String] = [:]

    public init() {}

    /// The number of event loops that are started.
    public var loopCount: Int { threads > 0 ? threads : Processors.available() }
}

/// All errors in a configuration, each with its location.
public struct ConfigurationError: Error, CustomStringConvertible, Equatable {
    /// The errors as `file:line:column: error: …`, or with the variable or flag in place of the file.
    public var findings: [String]

    public var description: String { findings.joined(separator: "\n") }
}

extension Configuration {
    /// The rules of a bucket: a file or ``openToAll``; nil if it has none and can't be served.
    public func rules(of bucket: Bucket) -> String? { bucket.rules ?? rules }

    /// The file of a bucket's shadow rules.
    public func shadowRules(of bucket: Bucket) -> String? { bucket.shadowRules ?? shadowRules }

    /// Whether both have the same buckets in the same stores.
    public func hasStores(of other: Configuration) -> Bool {
        buckets.map(\.name) == other.buckets.map(\.name) && buckets.map(\.store) == other.buckets.map(\.store)
            && buckets.map(\.tls) == other.buckets.map(\.tls)
    }

    /// The rules files in use, without duplicates.
    public var rulesFiles: [String] {
        let all = buckets.flatMap { [rules(of: $0), shadowRules(of: $0)] }.compactMap { $0 }
        return Set(all).subtracting([Configuration.openToAll]).sorted()
    }
}

extension Configuration.Bucket {
    /// The bucket's limits on object names.
    public func pathRules() throws(PathRules.PatternError) -> PathRules {
        try PathRules(
            allowed: allowedPaths, denied: deniedPaths, maximumDepth: maximumDepth > 0 ? maximumDepth : nil,
            rejectsDiscouraged: rejectsDiscouraged)
    }
}
