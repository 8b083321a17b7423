import Buckets
import HTTPClient
import Wire

/// A webhook that gets events of buckets.
public struct EventSubscription: Sendable {
    /// How an event becomes a request.
    public enum Mode: String, Sendable, CaseIterable {
        /// The attributes are a part of the body.
        case structured
        /// The attributes are header fields, which no signature covers.
        case binary
    }

    /// The name in the configuration. Its progress is kept by this name.
    public var name: String
    /// The names of the buckets.
    public var buckets: [String]
    public var kinds: Set<BucketEvent.Kind>
    /// The names of objects.
    public var paths: PathRules
    public var mode = Mode.structured
    /// `source` of the events; nil for the resource name of the bucket.
    public var source: String?
    /// Whether the sink is asked for its permission before it gets events.
    public var asksPermission = false
    /// The origin, and the path with the query, which may be a secret.
    public var origin: Origin
    public var target: String
    /// For a request, in nanoseconds.
    public var timeout: UInt64 = 15_000_000_000
    /// Fields of each request, with names in lower case.
    public var fields = HeaderFields()
    /// PEM files: the authorities of the sink's certificate, and the gateway's own certificate and its key.
    public var certificateAuthorities: String?
    public var clientCertificate: String?, clientKey: String?
    /// Requests at the same time.
    public var concurrency = 8
    /// Events in a request, at most.
    public var batch = 1
    /// In nanoseconds.
    public var maximumAge: UInt64 = 72 * 3_600_000_000_000
    /// Events that lie further behind the newest one are given up.
    public var maximumPending = 1_000_000

    /// A subscription to everything but `replaced`.
    public init(name: String, origin: Origin, target: String, buckets: [String]) {
        self.name = name
        self.origin = origin
        self.target = target
        self.buckets = buckets
        kinds = [.finalized, .deleted, .metadataUpdated]
        paths = .none
    }

    /// Whether it gets events of this kind for the object. Must not block: it decides in the transaction of the change.
    package func wants(_ kind: BucketEvent.Kind, _ name: String) -> Bool {
        kinds.contains(kind) && paths.admits(name)
    }

    /// Whether it gets events of a bucket.
    package func hasBucket(_ bucket: String) -> Bool {
        buckets.contains { BytewiseString.areEqual($0, bucket) }
    }

    /// What may not change without a new sender. It has secrets and is never shown.
    var fingerprint: String {
        let fields = fields.all(withPrefix: "").map { "\($0.suffix):\(String(decoding: $0.value, as: UTF8.self))" }
        let files = [certificateAuthorities, clientCertificate, clientKey].map { $0 ?? "" }
        let numbers = "\(timeout) \(concurrency) \(batch) \(maximumAge) \(maximumPending) \(asksPermission) \(mode)"
        let kinds = kinds.map(\.rawValue).sorted()
        return "\(origin)\(target) \(kinds) \(paths.fingerprint) \(source ?? "") \(numbers) \(files) \(fields)"
    }

    /// Whether requests go to the same URL.
    func isSameSink(as other: EventSubscription) -> Bool {
        origin == other.origin && BytewiseString.areEqual(target, other.target)
    }

    var limits: DeliveryLimits {
        var limits = DeliveryLimits()
        limits.concurrency = concurrency
        limits.batch = mode == .binary ? 1 : batch
        limits.maximumAge = Int64(clamping: maximumAge / 1000)
        limits.maximumPending = Int64(maximumPending)
        return limits
    }
}

extension EventFilter {
    /// What a bucket records for subscriptions and for the watch; nil if it records nothing.
    public static func of(_ bucket: String, _ subscriptions: [EventSubscription], isWatched: Bool) -> EventFilter? {
        let all = subscriptions.filter { $0.hasBucket(bucket) }
        if isWatched { return .complete { name in all.contains { $0.wants(.replaced, name) } } }
        if all.isEmpty { return nil }
        return EventFilter { kind, name in all.contains { $0.wants(kind, name) } }
    }
}
