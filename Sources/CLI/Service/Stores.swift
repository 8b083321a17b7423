import Buckets
import Configuration
import Credentials
import Gateway
import Glibc
import HTTPClient
import System
import Telemetry
import Wire

/// The stores of a configuration's buckets. Directories are opened at once. Services are not contacted here; the
/// readiness check tests whether they can be reached.
struct Stores: Sendable {
    /// The drivers, by bucket name.
    private(set) var drivers: [BytewiseString: any BucketDriver] = [:]
    /// The upstreams of the buckets that a service stores, by bucket name.
    private(set) var upstreams: [BytewiseString: Upstream] = [:]
    /// The client for documents that rules look up; nil if no Firestore project is configured.
    let documents: FirestoreDocuments?

    /// - Parameters:
    ///   - pool: Must outlive the stores.
    ///   - observer: Notified of every request to a service.
    /// - Throws: ``BucketError`` if a directory can't be opened. Another error if an upstream's settings can't be used
    ///   on this machine, or if the directory for temporary files can't be written to.
    init(
        _ configuration: Configuration, pool: BlockingPool, observer: (any UpstreamObserver)? = nil
    ) throws {
        documents = configuration.firestore.project.map { project in
            FirestoreDocuments(
                project: project, endpoint: configuration.firestore.endpoint.flatMap(Origin.init),
                credentials: Configuration.source(configuration.firestore.credentials), pool: pool, observer: observer)
        }
        for bucket in configuration.buckets {
            switch bucket.store {
            case .directory(let path):
                drivers[bucket.name] = try DirectoryBucket(
                    path: path, pool: pool, readers: configuration.loopCount,
                    recording: configuration.eventFilter(of: bucket))
            case .gcs(let gcs):
                let settings = configuration.settings(of: gcs, bucket)
                try Self.checkSpools(settings.spoolDirectory, bucket.name)
                let driver = GCSBucket(settings, pool: pool, observer: observer)
                drivers[bucket.name] = driver
                upstreams[bucket.name] = driver.upstream
            case .s3(let s3):
                let settings = configuration.settings(of: s3, bucket)
                try Self.checkSpools(settings.temporaryDirectory, bucket.name)
                let upstream = Upstream(configuration.upstream(of: bucket, settings.origin), observer: observer)
                drivers[bucket.name] = S3Bucket(settings, upstream: upstream, pool: pool)
                upstreams[bucket.name] = upstream
            case nil: break
            }
            if let upstream = upstreams[bucket.name], let fault = upstream.fault {
                throw UnusableUpstream(bucket: bucket.name, cause: fault)
            }
        }
    }

    /// Fails at start if temporary files can't be created; otherwise only uploads would report it.
    private static func checkSpools(_ directory: String, _ bucket: String) throws {
        var error: Int32 = 0
        // Only a directory has an entry ".".
        if access("\(directory)/.", W_OK | X_OK) != 0 { error = errno }
        guard error != 0 else { return }
        throw UnusableUpstream(
            bucket: bucket,
            cause: "uploads can't wait in the directory '\(directory)' (temporaryDirectory, or TMPDIR): "
                + String(cString: strerror(error)))
    }

    /// Registers a readiness check of each store, and the metrics of upstreams.
    func show(in registry: PrometheusRegistry, _ health: Health) {
        registry.addUpstreams(upstreams.sorted { $0.key < $1.key }.map(\.value))
        for name in drivers.keys.sorted().map(\.text) {
            // A service bills its requests: this is the interval without requests for readiness.
            let interval: UInt64 = upstreams[name] == nil ? 0 : 10_000_000_000
            // Once its circuit is open, requests fail: that is said at once, and so is its end.
            let upstream = upstreams[name]
            let isSuspect: @Sendable () -> Bool = { upstream?.openCircuit != nil }
            health.add("bucket \(name)", interval: interval, isSuspect: isSuspect) {
                try await check(name)
            }
        }
    }

    /// Fails if a store can't serve now: it does not respond, or it responds with an error.
    private func check(_ bucket: String) async throws {
        do throws(BucketError) {
            try await drivers[bucket]?.checkHealth()
        } catch {
            guard let upstream = upstreams[bucket] else { throw error }
            throw UnreadyUpstream(origin: upstream.settings.origin, cause: error, circuit: upstream.openCircuit)
        }
    }

    /// The buckets that record events.
    var eventLogs: [(bucket: String, log: any EventDeliveryLog)] {
        drivers.compactMap { name, driver in (driver as? any EventDeliveryLog).map { (name.text, $0) } }
    }

    /// Closes all stores concurrently, because each may wait for its cleanup.
    func close() async {
        await withTaskGroup { group in
            for driver in drivers.values { group.addTask { await driver.close() } }
            if let documents { group.addTask { await documents.close() } }
        }
    }
}

/// The settings of a bucket's service can't be used on this machine.
private struct UnusableUpstream: Error, CustomStringConvertible {
    let bucket: String
    let cause: String

    var description: String { "bucket \(bucket): \(cause)" }
}

/// Why a service can't serve, with its origin.
private struct UnreadyUpstream: Error, CustomStringConvertible {
    let origin: Origin
    let cause: BucketError
    /// The last failure, if the circuit is open.
    let circuit: String?

    var description: String {
        guard let circuit, cause.cause != circuit else { return "\(origin): \(cause.cause)" }
        return "\(origin): the circuit is open after: \(circuit)"
    }
}

extension Configuration {
    /// The limits and TLS settings for requests to a bucket's service.
    func upstream(of bucket: Bucket, _ origin: Origin) -> UpstreamSettings {
        var settings = upstream
        settings.name = "bucket \(bucket.name)"
        settings.origin = origin
        settings.secureTransport = .own
        settings.passesTrace = true
        settings.certificateAuthorities = bucket.tls.certificateAuthorities
        settings.revocations = bucket.tls.revoked
        settings.clientCertificate = bucket.tls.clientCertificate
        settings.clientKey = bucket.tls.clientKey
        return settings
    }

    func settings(of gcs: GCS, _ bucket: Bucket) -> GCSBucket.Settings {
        var settings = GCSBucket.Settings(
            bucket: gcs.bucket ?? "", endpoint: gcs.endpoint.flatMap(Origin.init),
            credentials: Self.source(gcs.credentials), userProject: gcs.userProject)
        settings.upstream = upstream(of: bucket, settings.upstream.origin)
        if let temporaryDirectory { settings.spoolDirectory = temporaryDirectory }
        return settings
    }

    func settings(of s3: S3, _ bucket: Bucket) -> S3Bucket.Settings {
        let environment = Environment.variables()
        var settings = S3Bucket.Settings(
            endpoint: s3.endpoint.flatMap(Origin.init),
            region: s3.region ?? environment["AWS_REGION"] ?? environment["AWS_DEFAULT_REGION"] ?? "us-east-1",
            bucket: s3.bucket ?? "", pathStyle: s3.isPathStyle, credentials: Self.source(s3))
        settings.conditionalWrites =
            switch s3.conditionalWrites {
            case "yes": .yes
            case "no": .no
            default: .probe
            }
        settings.maximumParts = s3.maximumParts
        settings.uploadRetries = s3.uploadRetries == "parts" ? .parts : .memory
        settings.temporaryDirectory = temporaryDirectory ?? environment["TMPDIR"] ?? "/tmp"
        return settings
    }

    /// The source of Google credentials; nil for the machine's defaults.
    fileprivate static func source(_ credentials: String) -> GoogleCredentials.Source? {
        switch credentials {
        case defaultCredentials: nil
        case anonymous: .anonymous
        default: .file(credentials)
        }
    }

    private static func source(_ s3: S3) -> AWSCredentialSource {
        if let key = s3.accessKeyID, let secret = s3.secretAccessKey {
            return .fixed(AWSCredentials(accessKey: key, secretKey: secret))
        }
        switch s3.credentials {
        case anonymous: return .anonymous
        case defaultCredentials: return s3.profile == nil ? .standard : .profile(s3.profile)
        default: return .file(s3.credentials, profile: s3.profile)
        }
    }
}
