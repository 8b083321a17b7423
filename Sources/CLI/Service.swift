import Buckets
import EventLoop
import Gateway
import Glibc
import HTTPServer
import Identity
import Logging
import OpenSSL

/// Everything that runs for one configuration, and what of it a reload can replace.
final class Service: Sendable {
    let logger: Logger
    private let sink: LogSink
    private let server: HTTPServer
    private let operatorServer: HTTPServer
    let pool: BlockingPool
    let observer: GatewayObserver
    let registry: PrometheusRegistry
    private let health: Health
    let credentials: TLSCredentials?
    let certificates: WatchedFiles
    let linkFiles: WatchedFiles
    let authenticator: Authenticator
    let callers: Lock<Callers>
    /// The configuration that everything was started with.
    let started: Configuration
    let stores: Stores
    let gateway: Lock<Gateway>
    /// By bucket: those of requests under way too.
    let policies: [String: CurrentPolicy]
    /// Held while anything is reloaded.
    let rules: Lock<RulesInEffect>
    /// What is wrong with files that were read again, for those who ask while a reload goes on.
    let rulesFailure = Lock<(text: String?, count: Int)>((nil, 0))
    let configurationFailure = Lock<String?>(nil)
    let certificateFailure = Lock<String?>(nil)
    let linkFailure = Lock<String?>(nil)

    init(_ configuration: Configuration, acceptsUnsigned: Bool) throws {
        let descriptors = raiseDescriptorLimit()
        started = configuration
        let sink = LogSink(
            descriptor: STDERR_FILENO, format: .named(configuration.logFormat, for: STDERR_FILENO))
        let level = Logger.Level(rawValue: configuration.logLevel) ?? .info
        LoggingSystem.bootstrap { LogOutput(label: $0, sink: sink, level: level) }
        self.sink = sink
        logger = Logger(label: "sluice")
        pool = BlockingPool(threads: configuration.fileThreads)
        let registry = PrometheusRegistry()
        self.registry = registry
        let build = BuildInfo(version: sluiceVersion)
        observer = GatewayObserver(
            accessLog: configuration.logsAccess ? AccessLog(sink) : nil,
            decisionLog: DecisionLog(
                Logger(label: "sluice.decisions"), logsDenials: configuration.logsDenials,
                sample: configuration.allowedSample),
            metrics: RequestMetrics(registry), callers: CallerMetrics(configuration, registry))
        let loops = try (0..<configuration.loopCount).map { _ in try EventLoop() }
        for loop in loops { _ = startThread { loop.run() } }
        health = Health(executor: loops[0])
        var limits = configuration.limits
        // Files, sockets of the operator and new connections need descriptors too: half of them stay free.
        limits.connections = max(1, min(limits.connections, descriptors / 2 / loops.count))
        server = HTTPServer(loops: loops, limits: limits)
        operatorServer = HTTPServer(loops: [loops[0]], limits: configuration.limits)
        credentials = try configuration.credentials().map(TLSCredentials.init)
        let https = configuration.https
        certificates = WatchedFiles([
            https.certificate == Configuration.HTTPS.selfSigned ? nil : https.certificate,
            https.key, https.clients.authorities, https.clients.revoked,
        ])
        linkFiles = WatchedFiles([configuration.links.keys])
        let upstreams = UpstreamMetrics(registry)
        stores = try Stores(configuration, pool: pool, observer: upstreams)
        authenticator = configuration.authenticator(
            acceptsUnsigned: acceptsUnsigned, pool: pool, observer: upstreams)
        let callers = try configuration.callers(authenticator)
        self.callers = Lock(callers)
        let rules = RulesInEffect(configuration)
        self.rules = Lock(rules)
        policies = Dictionary(
            uniqueKeysWithValues: configuration.buckets.map {
                ($0.name, CurrentPolicy(rules.policy(of: $0)))
            })
        gateway = Lock(
            try Service.gateway(configuration, stores, policies, callers, observer))
        registry.addProcess(build)
        for (index, loop) in loops.enumerated() { health.add("loop \(index)", loop: loop) }
        authenticator.start(on: loops[0])
        show(in: registry)
        if acceptsUnsigned {
            logger.critical(
                "development mode: callers are whoever they say they are; never for anything but trials",
                metadata: ["flag": "--unsigned-tokens"])
        }
        if limits.connections < configuration.limits.connections {
            logger.warning(
                "fewer connections than configured: the process may have too few descriptors",
                metadata: ["connections_per_loop": "\(limits.connections)"])
        }
        try listen(configuration, Operator(health: health, registry: registry, build: build))
        tell(rules, since: nil)
        watchFiles(on: loops[0])
    }

    /// Adds checks, notes and numbers of everything.
    private func show(in registry: PrometheusRegistry) {
        registry.addServer(server.statistics)
        registry.addLog(sink)
        stores.show(in: registry, health)
        authenticator.show(in: registry, health)
        health.addNote("rules") { [rulesFailure] in rulesFailure.withLock { $0.text } }
        health.addNote("configuration") { [configurationFailure] in
            configurationFailure.withLock { $0 }
        }
        health.addNote("certificates") { [certificateFailure] in
            certificateFailure.withLock { $0 }
        }
        health.addNote("links") { [linkFailure] in linkFailure.withLock { $0 } }
        registry.collect { [rulesFailure] text in
            let (failure, count) = rulesFailure.withLock { $0 }
            text.single(
                "sluice_rules_reload_failures_total", .counter,
                "Changed rules that did not load; those before them stayed.", count)
            text.single(
                "sluice_rules_current", .gauge, "Whether the files of rules are those in effect.",
                failure == nil ? 1 : 0)
        }
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
                    address: https, credentials: credentials,
                    identify: configuration.https.clients.identify,
                    onUntrusted: { [logger] peer, reason in
                        logger.info(
                            "client's certificate refused",
                            metadata: ["peer": "\(peer)", "cause": "\(reason)"])
                    },
                    onRefusal: onRefusal, handler: handler))
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

    func warnOfOpenBuckets(_ configuration: Configuration) {
        for bucket in configuration.buckets
        where configuration.rules(of: bucket) == Configuration.openToAll {
            logger.warning(
                "rules: none: everybody who reaches the listeners may read, write and delete",
                metadata: ["bucket": "\(bucket.name)"])
        }
    }

    static func gateway(
        _ configuration: Configuration, _ stores: Stores,
        _ policies: [String: CurrentPolicy], _ callers: Callers, _ observer: GatewayObserver
    ) throws -> Gateway {
        var buckets: [GatewayBucket] = []
        for bucket in configuration.buckets {
            guard let name = BucketName(bucket.name), let store = stores.drivers[bucket.name],
                let policy = policies[bucket.name]
            else { continue }
            buckets.append(
                GatewayBucket(
                    name: name, driver: store, policy: policy,
                    pathRules: try bucket.pathRules(), firestore: stores.documents,
                    maximumObjectSize: bucket.maximumObjectSize))
        }
        let cors =
            configuration.corsOrigins.isEmpty
            ? nil
            : CORSPolicy(
                origins: configuration.corsOrigins,
                maximumAge: Int(configuration.corsMaximumAge / 1_000_000_000),
                exposedHeaders: configuration.corsExposedHeaders)
        return Gateway(buckets: buckets, cors: cors, callers: callers, observer: observer)
    }

    // MARK: The end

    func drain() async {
        logger.info("draining")
        health.beginDraining()
        await server.drain()
        await authenticator.close()
        await stores.close()
        logger.info("drained")
        sink.close()
    }

    /// Writes what the log still holds.
    func abandon() { _ = sink.flush(within: 200_000_000) }
}

/// What the system makes of a listener's address; nil where it is switched off.
func resolved(_ address: String?) throws -> SocketAddress? {
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
