import EventLoop
import HTTPClient
import HTTPServer

/// What a server is told to do: one immutable value, read from a YAML file, the environment and flags.
public struct Configuration: Sendable {
    /// A listener with TLS.
    public struct HTTPS: Sendable, Equatable {
        public var address: String?
        /// A PEM file, or ``selfSigned``.
        public var certificate: String?
        /// A PEM file.
        public var key: String?

        /// In place of a file: a throw-away certificate is made at start.
        public static let selfSigned = "self-signed"
        /// Whose certificates clients may show.
        public var clients = Clients()
    }

    /// One bucket.
    public struct Bucket: Sendable, Equatable {
        /// As it stands in paths.
        public var name: String
        /// The directory that holds it, absolute.
        public var directory: String?
        /// The cloud bucket that holds it. ``store`` tells which of the three counts.
        public var gcs = GCS(), s3 = S3()
        public var tls = StoreTLS()
        /// A file, ``Configuration/openToAll``, or nil where the top-level key decides.
        public var rules: String?
        /// A file, or nil where the top-level key decides.
        public var shadowRules: String?
        /// Bytes.
        public var maximumObjectSize = UInt64(1) << 42
        public var allowedPaths: [String] = []
        public var deniedPaths: [String] = []
        /// Segments of a name; 0 for no limit.
        public var maximumDepth = 0
        public var refusesDiscouraged = false

        public init(name: String) { self.name = name }
    }

    /// `host:port` for clear text; nil where it is switched off.
    public var http: String? = "127.0.0.1:8080"
    public var https = HTTPS()
    /// `host:port` of the operator endpoints; nil where they are switched off.
    public var operatorAddress: String? = "127.0.0.1:9090"
    /// Event loops; 0 for as many as there are processors to use.
    public var threads = 0
    /// Threads for file work.
    public var fileThreads = 4
    /// A file of rules for every bucket that does not say otherwise, or ``openToAll``; nil where the file does not say.
    public var rules: String?
    /// A file of rules on trial.
    public var shadowRules: String?
    /// In place of a file of rules: everybody may do everything.
    public static let openToAll = "none"
    public var logLevel = "info"
    public var logFormat = "auto"
    public var logsAccess = true
    public var logsDenials = true
    /// One of so many allowed decisions is logged; 0 for none.
    public var allowedSample = 0
    /// Origins that browsers may call from; empty where CORS is off.
    public var corsOrigins: [String] = []
    /// Nanoseconds a preflight's answer may be kept.
    public var corsMaximumAge: UInt64 = 3_600_000_000_000
    public var corsExposedHeaders: [String] = ["*"]
    public var limits = ServerLimits()
    /// What bounds the requests to each store. Name and origin are not the configuration's.
    public var upstream = UpstreamSettings(name: "", origin: Origin(.https, host: "localhost"))
    public var firestore = Firestore()
    /// Who issues tokens.
    public var issuers: [Issuer] = []
    /// Tokens of callers that no issuer knows.
    public var tokens: [Token] = []
    /// What groups of callers may use.
    public var callers: [CallerGroup] = []
    public var links = Links()
    /// A directory, absolute; nil for what the environment says.
    public var temporaryDirectory: String?
    /// By name.
    public var buckets: [Bucket] = []
    /// What gave each value that the file does not decide, by key: `SLUICE_THREADS`, `--set threads`.
    public var overrides: [String: String] = [:]

    public init() {}

    /// Event loops that are started.
    public var loopCount: Int { threads > 0 ? threads : Processors.available() }
}

/// Everything that is wrong with a configuration, each with its place.
public struct ConfigurationError: Error, CustomStringConvertible, Equatable {
    /// One finding: `file:line:column: error: …`, or the variable or flag in place of the file.
    public var findings: [String]

    public var description: String { findings.joined(separator: "\n") }
}

extension Configuration {
    /// The rules of a bucket: a file or ``openToAll``; nil where it has none and can't be served.
    public func rules(of bucket: Bucket) -> String? { bucket.rules ?? rules }

    /// The file of a bucket's rules on trial.
    public func shadowRules(of bucket: Bucket) -> String? { bucket.shadowRules ?? shadowRules }

    /// Whether both have the same buckets in the same stores.
    public func hasStores(of other: Configuration) -> Bool {
        buckets.map(\.name) == other.buckets.map(\.name)
            && buckets.map(\.store) == other.buckets.map(\.store)
            && buckets.map(\.tls) == other.buckets.map(\.tls)
    }

    /// The files of rules that are in use, each once.
    public var rulesFiles: [String] {
        let all = buckets.flatMap { [rules(of: $0), shadowRules(of: $0)] }.compactMap { $0 }
        return Set(all).subtracting([Configuration.openToAll]).sorted()
    }
}

extension Configuration.Bucket {
    /// The rules for names.
    public func pathRules() throws(PathRules.PatternError) -> PathRules {
        try PathRules(
            allowed: allowedPaths, denied: deniedPaths,
            maximumDepth: maximumDepth > 0 ? maximumDepth : nil,
            refusesDiscouraged: refusesDiscouraged)
    }
}
