import ArgumentParser
import Buckets
import EventLoop
import Gateway
import Glibc
import HTTPServer
import Logging
import OpenSSL
import Synchronization

/// `sluice serve`: serves until SIGTERM or SIGINT, then drains; a second signal ends it at once. SIGHUP reloads.
struct Serve: ParsableCommand {
    static let configuration = CommandConfiguration(
        abstract: "Serve the configured buckets.",
        discussion: """
            Signals: SIGTERM and SIGINT drain open requests and end with status 0; a second one ends at once. \
            SIGHUP reads the configuration and the certificates again. Exit status: 0 after a drain, 1 findings in \
            the configuration, 2 could not start, 64 wrong usage, 128 and the signal's number after a second signal.
            """)

    @OptionGroup var options: ConfigurationOptions

    func run() throws {
        let file = try options.file()
        let configuration = try options.load()
        let signals = SignalSet([SIGTERM, SIGINT, SIGHUP])
        let service: Service
        do {
            service = try Service(configuration)
        } catch {
            complain("\(file): error: \(error)")
            throw ExitCode(2)
        }
        var isEnding = false
        while true {
            let signal = signals.wait()
            if signal == SIGHUP {
                service.reload { try options.read() }
            } else if isEnding {
                service.abandon()
                Glibc._exit(128 + signal)
            } else {
                isEnding = true
                Task {
                    await service.drain()
                    // Not exit(): loops still run, and what it would tidy up is theirs.
                    Glibc._exit(0)
                }
            }
        }
    }
}

/// Signals that are waited for in place of being delivered. Threads that are started afterwards block them too.
private struct SignalSet {
    private var set = sigset_t()

    init(_ signals: [Int32]) {
        sigemptyset(&set)
        for signal in signals { sigaddset(&set, signal) }
        pthread_sigmask(SIG_BLOCK, &set, nil)
        signal(SIGPIPE, SIG_IGN)
    }

    func wait() -> Int32 {
        var set = set
        var signal: Int32 = 0
        while sigwait(&set, &signal) != 0 {}
        return signal
    }
}

/// Everything that runs for one configuration, and what of it a reload can replace.
private final class Service: Sendable {
    private let logger: Logger
    private let sink: LogSink
    private let server: HTTPServer
    private let operatorServer: HTTPServer
    private let pool: BlockingPool
    private let observer: GatewayObserver
    private let health = Health()
    private let credentials: TLSCredentials?
    private let certificates: CertificateFiles?
    /// The configuration that everything was started with.
    private let started: Configuration
    private let buckets: [String: DirectoryBucket]
    private let gateway: Lock<Gateway>

    init(_ configuration: Configuration) throws {
        let descriptors = raiseDescriptorLimit()
        started = configuration
        let format: LogFormat =
            switch configuration.logFormat {
            case "json": .json
            case "text": .text(for: STDERR_FILENO)
            default: .automatic(for: STDERR_FILENO)
            }
        let sink = LogSink(descriptor: STDERR_FILENO, format: format)
        let level = Logger.Level(rawValue: configuration.logLevel) ?? .info
        LoggingSystem.bootstrap { LogOutput(label: $0, sink: sink, level: level) }
        self.sink = sink
        logger = Logger(label: "sluice")
        pool = BlockingPool(threads: configuration.fileThreads)
        let registry = PrometheusRegistry()
        let build = BuildInfo(version: sluiceVersion)
        observer = GatewayObserver(
            accessLog: configuration.logsAccess ? AccessLog(sink) : nil,
            metrics: RequestMetrics(registry))
        let loops = try (0..<configuration.loopCount).map { _ in try EventLoop() }
        for loop in loops { _ = startThread { loop.run() } }
        var limits = configuration.limits
        // Files, sockets of the operator and new connections need descriptors too: half of them stay free.
        limits.connections = max(1, min(limits.connections, descriptors / 2 / loops.count))
        server = HTTPServer(loops: loops, limits: limits)
        operatorServer = HTTPServer(loops: [loops[0]], limits: configuration.limits)
        credentials = try configuration.credentials().map(TLSCredentials.init)
        certificates = CertificateFiles(configuration)
        buckets = try Service.openBuckets(configuration, pool)
        gateway = Lock(try Service.gateway(configuration, buckets, observer))
        registry.addServer(server.statistics)
        registry.addLog(sink)
        registry.addProcess(build)
        for (index, loop) in loops.enumerated() { health.add("loop \(index)", loop: loop) }
        for (name, bucket) in buckets {
            health.add("bucket \(name)") { try await bucket.checkHealth() }
        }
        if limits.connections < configuration.limits.connections {
            logger.warning(
                "fewer connections than configured: the process may have too few descriptors",
                metadata: ["connections_per_loop": "\(limits.connections)"])
        }
        try listen(configuration, Operator(health: health, registry: registry, build: build))
        watchCertificates(on: loops[0])
    }

    private func listen(_ configuration: Configuration, _ endpoints: Operator) throws {
        let handler: RequestHandler = { [self] exchange in
            await gateway.withLock { $0 }.respond(exchange)
        }
        let onRefusal: @Sendable (RefusedRequest) -> Void = { [observer] refused in
            observer.finished(RequestRecord(refused))
        }
        var listeners: [ListenerConfiguration] = []
        if let http = try resolved(configuration.http) {
            listeners.append(.init(address: http, onRefusal: onRefusal, handler: handler))
        }
        if let https = try resolved(configuration.https.address) {
            listeners.append(
                .init(
                    address: https, credentials: credentials, onRefusal: onRefusal,
                    handler: handler))
        }
        for address in try server.start(listeners) {
            logger.info("listening", metadata: ["address": "\(address)"])
        }
        if let address = try resolved(configuration.operatorAddress) {
            let bound = try operatorServer.start([
                .init(address: address, handler: endpoints.handler)
            ])
            logger.info("operator endpoints", metadata: ["address": "\(bound[0])"])
        }
        if configuration.https.certificate == Configuration.HTTPS.selfSigned {
            logger.warning("the TLS certificate is a throw-away, self-signed one: for trials only")
        }
        warnOfOpenBuckets(configuration)
    }

    private func warnOfOpenBuckets(_ configuration: Configuration) {
        for bucket in configuration.buckets {
            logger.warning(
                "rules: none: everybody who reaches the listeners may read, write and delete",
                metadata: ["bucket": "\(bucket.name)"])
        }
    }

    private static func openBuckets(
        _ configuration: Configuration, _ pool: BlockingPool
    ) throws -> [String: DirectoryBucket] {
        var buckets: [String: DirectoryBucket] = [:]
        for bucket in configuration.buckets {
            guard let path = bucket.directory else { continue }
            buckets[bucket.name] = try DirectoryBucket(
                path: path, pool: pool, readers: configuration.loopCount)
        }
        return buckets
    }

    private static func gateway(
        _ configuration: Configuration, _ stores: [String: DirectoryBucket],
        _ observer: GatewayObserver
    ) throws -> Gateway {
        var buckets: [GatewayBucket] = []
        for bucket in configuration.buckets {
            guard let name = BucketName(bucket.name), let store = stores[bucket.name] else {
                continue
            }
            buckets.append(
                GatewayBucket(
                    name: name, driver: store, pathRules: try bucket.pathRules(),
                    maximumObjectSize: bucket.maximumObjectSize))
        }
        let cors =
            configuration.corsOrigins.isEmpty
            ? nil
            : CORSPolicy(
                origins: configuration.corsOrigins,
                maximumAge: Int(configuration.corsMaximumAge / 1_000_000_000),
                exposedHeaders: configuration.corsExposedHeaders)
        return Gateway(buckets: buckets, policy: OpenPolicy(), cors: cors, observer: observer)
    }

    // MARK: Reload

    /// Takes over what can change while serving: buckets' rules for names and sizes, CORS, certificates. Everything
    /// stays as it is where the new configuration has findings or other buckets.
    func reload(_ read: () throws -> Configuration) {
        reloadCertificates()
        do {
            let fresh = try read()
            let stores = { (configuration: Configuration) in
                configuration.buckets.map { [$0.name, $0.directory ?? ""] }
            }
            guard stores(fresh) == stores(started) else {
                return logger.error(
                    "configuration not reloaded",
                    metadata: ["cause": "other buckets or directories take a restart"])
            }
            let replacement = try Service.gateway(fresh, buckets, observer)
            gateway.withLock { $0 = replacement }
            logger.info("configuration reloaded")
            let waiting = Configuration.settings.filter {
                !$0.path.hasPrefix("cors.") && $0.path != "rules"
                    && $0.print(fresh) != $0.print(started)
            }
            if !waiting.isEmpty {
                let keys = waiting.map(\.path).joined(separator: ", ")
                logger.warning("some changes take a restart", metadata: ["keys": "\(keys)"])
            }
        } catch {
            logger.error("configuration not reloaded", metadata: ["cause": "\(error)"])
        }
    }

    /// Looks every two seconds whether the certificate's files have changed.
    private func watchCertificates(on loop: EventLoop) {
        guard certificates != nil else { return }
        loop.execute { [self] in
            let box = TimerBox()
            box.timer = LoopTimer { [self] in
                // The files may be on a disk that must be waited for.
                pool.submit { [self] in
                    if certificates?.haveChanged() == true { reloadCertificates() }
                    loop.execute {
                        if let timer = box.timer { loop.arm(timer, after: 2_000_000_000) }
                    }
                }
            }
            if let timer = box.timer { loop.arm(timer, after: 2_000_000_000) }
        }
    }

    private func reloadCertificates() {
        guard let credentials, let certificates else { return }
        do {
            credentials.current = try certificates.load()
            logger.info("certificate loaded", metadata: ["path": "\(certificates.certificate)"])
        } catch {
            logger.error(
                "certificate not loaded; the last good one stays", metadata: ["cause": "\(error)"])
        }
    }

    // MARK: The end

    func drain() async {
        logger.info("draining")
        health.beginDraining()
        await server.drain()
        for bucket in buckets.values { await bucket.close() }
        logger.info("drained")
        sink.close()
    }

    /// Writes what the log still holds.
    func abandon() { _ = sink.flush(within: 200_000_000) }
}

/// Holds a timer that arms itself again.
///
/// Safety: confined to its loop; a job on the pool only carries the reference back to it.
private final class TimerBox: @unchecked Sendable {
    var timer: LoopTimer?
}

/// The certificate's files and what they were when they were last read.
private final class CertificateFiles: Sendable {
    let certificate: String
    private let key: String
    private let seen: Lock<[Stamp]>

    private struct Stamp: Equatable {
        var inode: UInt
        var size: Int
        var seconds: Int
        var nanoseconds: Int
    }

    init?(_ configuration: Configuration) {
        guard configuration.https.address != nil, let certificate = configuration.https.certificate,
            let key = configuration.https.key
        else { return nil }
        self.certificate = certificate
        self.key = key
        seen = Lock([certificate, key].map(CertificateFiles.stamp))
    }

    func load() throws -> TLSContext {
        seen.withLock { $0 = [certificate, key].map(CertificateFiles.stamp) }
        return try TLSContext(certificateFile: certificate, keyFile: key)
    }

    func haveChanged() -> Bool {
        seen.withLock { $0 } != [certificate, key].map(CertificateFiles.stamp)
    }

    private static func stamp(_ path: String) -> Stamp {
        var status = stat()
        stat(path, &status)
        return Stamp(
            inode: UInt(status.st_ino), size: Int(status.st_size), seconds: status.st_mtim.tv_sec,
            nanoseconds: status.st_mtim.tv_nsec)
    }
}

/// What the system makes of a listener's address; nil where it is switched off.
private func resolved(_ address: String?) throws -> SocketAddress? {
    guard let address else { return nil }
    guard let resolved = SocketAddress(address) else { throw UnknownHost(address: address) }
    return resolved
}

/// A listener's host that the system does not know.
private struct UnknownHost: Error, CustomStringConvertible {
    let address: String
    var description: String { "\(address): the host is not known" }
}

/// Takes as many descriptors as the hard limit allows; returns how many there are.
private func raiseDescriptorLimit() -> Int {
    var limit = rlimit()
    guard getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit) == 0 else { return 1024 }
    limit.rlim_cur = limit.rlim_max
    setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
    return Int(clamping: limit.rlim_cur)
}
