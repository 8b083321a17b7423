import Buckets
import Gateway
import HTTPClient
import System
import Wire

extension Configuration {
    /// A subscription of a webhook to events of directory buckets.
    public struct EventSink: Sendable, Equatable {
        /// Fields of the requests that a file of fields can't have: of the connection, and of the event.
        static let reservedFields = [
            "host", "connection", "content-length", "content-type", "expect", "keep-alive", "te", "trailer",
            "transfer-encoding", "upgrade", "ce-", "webhook-",
        ]

        /// The subscription's name.
        public let name: String
        /// The webhook; its query may be a secret.
        public var url: String?
        /// The names of the buckets.
        public var buckets: [String] = []
        /// Names of ``BucketEvent/Kind``.
        public var types = ["finalized", "deleted", "metadataUpdated"]
        /// Patterns of objects' names.
        public var allowed: [String] = [], denied: [String] = []
        /// An ``EventSubscription/Mode``.
        public var mode = EventSubscription.Mode.structured.rawValue
        /// Events in a request, at most.
        public var batch = 1
        /// Requests at the same time.
        public var concurrency = 8
        /// In nanoseconds.
        public var timeout: UInt64 = 15_000_000_000
        /// In nanoseconds.
        public var maximumAge: UInt64 = 72 * 3_600_000_000_000
        /// A file of ``WebhookKeys``; nil sends unsigned requests.
        public var keys: String?
        /// A file with a field of each request on each line, `name: value`.
        public var headers: String?
        /// Whether the webhook is asked for its permission first.
        public var handshake = false
        /// The attribute `source`; nil for the resource name of the bucket.
        public var source: String?
        public var tls = StoreTLS()

        public init(name: String) { self.name = name }
    }
}

extension Configuration.EventSink: ConfigurationEntry {
    static let section = "events"
    static var all: WritableKeyPath<Configuration, [Self]> { \.events }
    static let example = "{ url: https://hooks.example.com/sluice, buckets: [photos] }"
    private static let second: UInt64 = 1_000_000_000

    static let settings: [Setting<Self>] = [
        .webhook(
            "url", \.url,
            "The webhook that gets events by POST, as CloudEvents 1.0. Its query is not shown in logs."),
        .list("buckets", "bucket names", \.buckets, "Directory buckets whose events it gets.", check: nameFault),
        .list(
            "types", "words", \.types,
            "Which events: finalized (created or replaced), deleted, metadataUpdated, and replaced, which reports the "
                + "overwritten object as deleted too.",
            check: typeFault),
        .list(
            "allowed", "patterns with * and **", \.allowed,
            "The name of the object must match one of these patterns; an empty list is all names.",
            check: Configuration.Bucket.patternFault),
        .list(
            "denied", "patterns with * and **", \.denied, "The name must match none of these patterns.",
            check: Configuration.Bucket.patternFault),
        .choice(
            "mode", EventSubscription.Mode.allCases.map(\.rawValue), \.mode,
            "Where the attributes of an event are: in the body, or in header fields, which signatures do not cover."),
        .integer(
            "batch", 1...1000, \.batch,
            "Events in a request, at most, up to 256 KiB; above 1 each body is an array. After a failure they are sent one "
                + "by one."),
        .integer(
            "concurrency", 1...256, \.concurrency,
            "Requests at the same time, at most one for each object; for each bucket."),
        .duration("timeout", second / 10...300 * second, \.timeout, "Time limit for a request."),
        .duration(
            "maximumAge", 60 * second...2400 * 3600 * second, \.maximumAge,
            "Age at which an event that can't be delivered is given up."),
        .path(
            "keys", \.keys,
            "File with the keys that sign requests as Standard Webhooks, the newest first; null is none. Reloaded when "
                + "it changes."),
        .path(
            "headers", \.headers,
            "File of fields for each request, such as 'authorization: Bearer ...', one on each line."),
        .flag(
            "handshake", \.handshake,
            "Whether the webhook is asked by OPTIONS for its permission, as receivers of CloudEvents may insist."),
        .name(
            "source", "a URI", \.source,
            "The attribute 'source'; null is //storage.googleapis.com/projects/_/buckets/BUCKET."),
        .path(
            "tls.certificateAuthorities", \.tls.certificateAuthorities,
            "PEM file with the authorities for the webhook's certificate; null is the system's."),
        .path(
            "tls.clientCertificate", \.tls.clientCertificate,
            "PEM file with the certificate chain that is sent to the webhook."),
        .path("tls.clientKey", \.tls.clientKey, "PEM file with the key of that certificate."),
    ]

    private static func nameFault(_ text: String) -> String? {
        BucketName(text) == nil ? "'\(text)' is no bucket's name" : nil
    }

    private static func typeFault(_ text: String) -> String? {
        if BucketEvent.Kind(name: text) != nil { return nil }
        let names = BucketEvent.Kind.allCases.map(\.name)
        let hint = Spelling.nearest(to: text, among: names).map { ", did you mean '\($0)'?" } ?? ""
        return "no type '\(text)'\(hint); the types are \(names.joined(separator: ", "))"
    }

    /// The subscription without its header fields; nil if it is incomplete, which is an error of the configuration.
    /// - Parameter options: The limits of all subscriptions.
    func subscription(_ options: EventConfiguration) -> EventSubscription? {
        guard let url, let (origin, target) = Origin.cut(url) else { return nil }
        var made = EventSubscription(name: name, origin: origin, target: target, buckets: buckets)
        made.kinds = Set(types.compactMap { BucketEvent.Kind(name: $0) })
        guard let paths = try? PathRules(allowed: allowed, denied: denied) else { return nil }
        made.paths = paths
        made.mode = EventSubscription.Mode(rawValue: mode) ?? .structured
        made.source = source
        made.asksPermission = handshake
        made.timeout = timeout
        made.concurrency = concurrency
        made.batch = batch
        made.maximumAge = maximumAge
        made.maximumPending = options.maximumPending
        made.certificateAuthorities = tls.certificateAuthorities
        made.clientCertificate = tls.clientCertificate
        made.clientKey = tls.clientKey
        return made
    }
}

extension Configuration {
    /// The subscriptions to buckets, without the contents of their files.
    public var eventFilters: [EventSubscription] { events.compactMap { $0.subscription(eventOptions) } }

    /// The subscriptions with the fields of their requests.
    /// - Throws: An error if a file of fields can't be used.
    public func eventSubscriptions() throws -> [EventSubscription] {
        try events.compactMap { sink in
            guard var made = sink.subscription(eventOptions) else { return nil }
            if let file = sink.headers {
                made.fields = try FieldFile.read(file, reserved: Configuration.EventSink.reservedFields)
            }
            return made
        }
    }

    /// What may be intended but is seldom right, as `key: warning: …`.
    public var eventWarnings: [String] {
        events.flatMap { sink -> [String] in
            var found: [String] = []
            if let url = sink.url, let (origin, _) = Origin.cut(url), origin.scheme == .http, !origin.isLoopback {
                found.append("\(sink.path("url")): warning: http: everybody on the way can read and change the events")
            }
            if sink.mode == EventSubscription.Mode.binary.rawValue, sink.keys != nil {
                found.append(
                    "\(sink.path("mode")): warning: signatures do not cover header fields: with 'binary', an event's "
                        + "type and name could be changed on the way")
            }
            return found
        }
    }
}

extension ConfigurationReader {
    mutating func checkEvents() {
        for sink in result.events {
            let path = "events.\(sink.name)"
            guard broken.isDisjoint(with: ["", path]) else { continue }
            if sink.url == nil {
                report(SettingError(message: "'\(path).url' is missing"), at: path + ".url", otherwise: [path])
            }
            if sink.buckets.isEmpty {
                report(SettingError(message: "'\(path).buckets' is missing"), at: path + ".buckets", otherwise: [path])
            }
            for name in sink.buckets { checkBucket(name, path) }
            if sink.types.isEmpty {
                report(SettingError(message: "'\(path).types' is empty"), at: path + ".types")
            }
            if sink.batch > 1, sink.mode == EventSubscription.Mode.binary.rawValue {
                report(
                    SettingError(message: "'\(path).batch' requires 'mode: structured'"), at: path + ".batch",
                    path + ".mode")
            }
            if (sink.tls.clientCertificate == nil) != (sink.tls.clientKey == nil) {
                report(
                    SettingError(message: "'\(path).tls' needs both 'clientCertificate' and 'clientKey'"),
                    at: path + ".tls.clientCertificate", path + ".tls.clientKey")
            }
            checkFiles(of: sink, path)
        }
    }

    private mutating func checkBucket(_ name: String, _ path: String) {
        let found = result.buckets.first { BytewiseString.areEqual($0.name, name) }
        let reason: String
        switch found?.store {
        case .directory: return
        case .gcs:
            reason =
                "bucket '\(name)' is stored by Google Cloud Storage: use its Pub/Sub notifications, which have the events "
                + "of all writers"
        case .s3:
            reason =
                "bucket '\(name)' is stored by an S3 service: use its event notifications, which have the events of all "
                + "writers"
        case nil:
            // Its own error is reported already.
            if found != nil { return }
            reason = "there is no bucket '\(name)'"
        }
        report(SettingError(message: "'\(path).buckets': \(reason)"), at: path + ".buckets")
    }

    private mutating func checkFiles(of sink: Configuration.EventSink, _ path: String) {
        let files = [
            ("keys", sink.keys), ("tls.certificateAuthorities", sink.tls.certificateAuthorities),
            ("tls.clientCertificate", sink.tls.clientCertificate), ("tls.clientKey", sink.tls.clientKey),
        ]
        for case (let key, let file?) in files {
            guard let reason = Self.whyUnreadable(file) else { continue }
            let key = "\(path).\(key)"
            report(SettingError(message: "'\(key)': \(file) can't be read: \(reason)"), at: key)
        }
        guard let headers = sink.headers else { return }
        do throws(FieldFile.Malformed) {
            _ = try FieldFile.read(headers, reserved: Configuration.EventSink.reservedFields)
        } catch {
            report(SettingError(message: "'\(path).headers': \(error)"), at: path + ".headers")
        }
    }
}
