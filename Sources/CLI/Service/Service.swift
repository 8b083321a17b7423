import Buckets
import Configuration
import Console
import Gateway
import Glibc
import HTTPServer
import Identity
import Logging
import OpenSSL
import System
import Telemetry
import Wire

/// All parts of a running gateway. The parts in a `Lock` can be replaced by a reload.
final class Service: Sendable {
    let logger: Logger
    private let sink: LogSink
    private let server: HTTPServer
    private let operatorServer: HTTPServer
    let consoleServer: HTTPServer
    /// The last requests, for the console; nil without it.
    let feed: RequestFeed?
    /// The address of the console's listener; nil without it.
    let consoleAddress = Lock<SocketAddress?>(nil)
    /// What the console shows.
    let shown = Lock<ShownConfiguration?>(nil)
    let pool: BlockingPool
    let manager: ServiceManager
    let observer: GatewayObserver
    /// nil if no spans are recorded.
    let traces: TraceExporter?
    let registry: PrometheusRegistry
    let health: Health
    let credentials: TLSCredentials?
    let certificates: WatchedFiles
    let linkFiles: WatchedFiles
    let uploadFiles: WatchedFiles
    let s3Files: WatchedFiles
    let authenticator: Authenticator
    let callers: Lock<Callers>
    /// The configuration at start.
    let started: Configuration
    let stores: Stores
    let gateway: Lock<Gateway>
    /// By bucket. Open requests hold them too, so that a reload affects those requests.
    let policies: [BytewiseString: CurrentPolicy]
    /// By bucket: the bytes of uploads that are not committed yet.
    let staged: [BytewiseString: StagedBytes]
    /// The read cache; nil if it is switched off.
    let cache: ReadCache?
    /// The upload sessions of all buckets.
    let uploads: Uploads
    /// The requests that wait for changes.
    let watches = Watches()
    /// By bucket.
    let watched: [BytewiseString: BucketWatch]
    let eventOptions: Lock<EventConfiguration>
    /// What is sent to webhooks.
    let events: EventDeliveries
    /// The configuration whose keys sign requests to webhooks, and their files.
    let eventKeys: Lock<(Configuration, WatchedFiles)>
    let eventFailure = Lock<String?>(nil)
    /// The loop for work that belongs to no request.
    let loop: EventLoop
    /// The lock is held during every reload.
    let rules: Lock<RulesInEffect>
    /// Why the last reload of each kind failed. Not in `rules`, so the health endpoint need not wait for a reload.
    let rulesFailure = Lock<(text: String?, count: Int)>((nil, 0))
    let configurationFailure = Lock<String?>(nil)
    /// When the configuration in effect was read, in seconds since 1970.
    let configurationTime = Lock<Int64>(SystemClock.seconds())
    let certificateFailure = Lock<String?>(nil)
    /// The last warning of the certificate's end.
    let expiryWarning = Lock<String?>(nil)
    let linkFailure = Lock<String?>(nil)
    let uploadFailure = Lock<String?>(nil)
    let s3Failure = Lock<String?>(nil)

    init(_ configuration: Configuration, _ manager: ServiceManager, acceptsUnsigned: Bool) throws {
        let descriptors = raiseDescriptorLimit()
        started = configuration
        self.manager = manager
        let sink = LogSink(descriptor: STDERR_FILENO, format: .named(configuration.logFormat, for: STDERR_FILENO))
        let level = Logger.Level(rawValue: configuration.logLevel) ?? .info
        LoggingSystem.bootstrap { LogOutput(label: $0, sink: sink, level: level) }
        self.sink = sink
        logger = Logger(label: "sluice")
        pool = BlockingPool(threads: configuration.fileThreads)
        let registry = PrometheusRegistry()
        self.registry = registry
        let loops = try (0..<configuration.loopCount).map { _ in try EventLoop() }
        for loop in loops { _ = startThread { loop.run() } }
        loop = loops[0]
        traces = try configuration.exporter(pool, loop, logger)
        feed = configuration.feed
        observer = configuration.observer(sink, registry, traces, feed)
        health = Health(executor: loops[0])
        let limits = configuration.limits(descriptors, loops: loops.count)
        server = HTTPServer(loops: loops, limits: limits)
        operatorServer = HTTPServer(loops: [loops[0]], limits: configuration.limits)
        consoleServer = HTTPServer(loops: [loops[0]], limits: configuration.limits.forConsole)
        credentials = try configuration.credentials().map(TLSCredentials.init)
        certificates = configuration.https.watchedFiles
        linkFiles = WatchedFiles([configuration.links.keys])
        uploadFiles = WatchedFiles([configuration.uploads.keys])
        s3Files = WatchedFiles([configuration.s3.keys, configuration.s3.sessionKeys])
        let upstreams = UpstreamMetrics(registry, traces: traces)
        stores = try Stores(configuration, pool: pool, observer: upstreams)
        authenticator = configuration.authenticator(acceptsUnsigned: acceptsUnsigned, pool: pool, observer: upstreams)
        let callers = try configuration.callers(authenticator, try configuration.s3Verifier(authenticator))
        self.callers = Lock(callers)
        let rules = RulesInEffect(configuration)
        self.rules = Lock(rules)
        policies = configuration.byBucket { CurrentPolicy(rules.policy(of: $0)) }
        staged = configuration.byBucket { _ in StagedBytes() }
        cache = configuration.readCache(pool, logger)
        uploads = Uploads(
            configuration.uploads.settings(s3Uploads: configuration.s3.uploads),
            keys: try configuration.uploadKeys() ?? .random(),
            awaitsSessions: true)
        watched = configuration.watches(watches, stores)
        eventOptions = Lock(configuration.eventOptions)
        events = EventDeliveries(
            stores.eventLogs, loop: loop, logger: logger, registry: registry, observer: upstreams, traces: traces)
        eventKeys = Lock((configuration, WatchedFiles([])))
        gateway = Lock(
            try Service.gateway(
                configuration, stores, policies, staged, uploads, cache, watched, callers, observer, traces))
        registry.addProcess(.current)
        for (index, loop) in loops.enumerated() { health.add("loop \(index)", loop: loop) }
        authenticator.start(on: loops[0]) { [logger] in
            logger.warning("issuer's keys", metadata: ["cause": "\($0)"])
        }
        show(in: registry)
        warn(acceptsUnsigned: acceptsUnsigned, connections: limits.connections)
        warnOfFiles()
        watchHealth(health, on: loops[0])
        // Before the first request, so that its event is not missed.
        try applyEvents(configuration)
        try listen(configuration, callers)
        tell(rules, since: nil)
        startWork(on: loops)
        manager.ready()
    }

    /// Starts what is done from time to time.
    private func startWork(on loops: [EventLoop]) {
        watchFiles(on: loops[0])
        startUploads(on: loops[0])
        startEvents(on: loops[0])
        startWatchdog(loops)
    }

    private func warn(acceptsUnsigned: Bool, connections: Int) {
        if acceptsUnsigned {
            logger.critical(
                "development mode: callers are whoever they say they are; never for anything but trials",
                metadata: ["flag": "--unsigned-tokens"])
        }
        if connections < started.limits.connections {
            logger.warning(
                "fewer connections than configured: the limit of open descriptors is too low",
                metadata: ["connections_per_loop": "\(connections)"])
        }
    }

    /// Registers the metrics, readiness checks and notes of all parts.
    private func show(in registry: PrometheusRegistry) {
        registry.addServer(server.statistics, operators: operatorServer.statistics)
        registry.addLog(sink)
        showState(in: registry, health)
        if let traces {
            traces.show(in: registry)
            repeated(every: 1_000_000_000, on: loop) { traces.flush() }
        }
        stores.show(in: registry, health)
        registry.addStagedBytes(staged)
        registry.addWatches(watches)
        events.show(in: registry)
        registry.addUploads(uploads, sessionDrivers.map { BytewiseString($0.name) })
        authenticator.show(in: registry, health)
        showCache(in: registry, health)
        health.addNote("rules") { [rulesFailure] in rulesFailure.withLock { $0.text } }
        health.addNote("configuration") { [configurationFailure] in
            configurationFailure.withLock { $0 }
        }
        showCertificate(in: registry, health)
        health.addNote("links") { [linkFailure] in linkFailure.withLock { $0 } }
        health.addNote("uploads") { [uploadFailure] in uploadFailure.withLock { $0 } }
        health.addNote("s3") { [s3Failure] in s3Failure.withLock { $0 } }
        health.addNote("events") { [events, eventFailure] in eventFailure.withLock { $0 } ?? events.note }
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

    private func respond(_ exchange: Exchange) async {
        await gateway.withLock { $0 }.respond(exchange)
    }

    private func listen(_ configuration: Configuration, _ callers: Callers) throws {
        var endpoints = OperatorEndpoints(
            health: health, registry: registry, build: .current, callers: callers,
            token: try configuration.operatorTokenText())
        endpoints.addUploads(uploads, sessionDrivers)
        endpoints.addEvents(events)
        if let cache { endpoints.addCache(cache) }
        // A method and not a closure, which would make each request's task switch its executor.
        let handler: RequestHandler = respond
        let onRejection: @Sendable (RejectedRequest) -> Void = { [observer] request in
            observer.finished(RequestRecord(request))
        }
        var proxies = TrustedProxies(configuration.trustedProxies) ?? TrustedProxies()
        proxies.field = TrustedProxies.Field(rawValue: configuration.forwardedField) ?? .auto
        let inherited = try manager.sockets(for: configuration)
        func listener(_ address: String?, isSecure: Bool, _ handler: @escaping RequestHandler) throws
            -> ListenerConfiguration?
        {
            guard let address = try resolved(address) else { return nil }
            var listener = ListenerConfiguration(
                address: address, inherited: inherited[address.description], mode: configuration.socketMode,
                proxies: proxies, onRejection: onRejection, handler: handler)
            guard isSecure else { return listener }
            listener.credentials = credentials
            listener.identify = configuration.https.clients.identify
            listener.onUntrusted = { [logger] peer, reason in
                logger.info("client's certificate refused", metadata: ["peer": "\(peer)", "cause": "\(reason)"])
            }
            return listener
        }
        let listeners = try [
            listener(configuration.http, isSecure: false, handler),
            listener(configuration.https.address, isSecure: true, handler),
            listener(configuration.s3.http, isSecure: false, respondS3),
            listener(configuration.s3.https, isSecure: true, respondS3),
        ].compactMap { $0 }
        for (address, listener) in zip(try server.start(listeners), listeners) {
            let tls = listener.credentials == nil ? "no" : "yes"
            logger.info("listening", metadata: ["address": "\(address)", "tls": "\(tls)"])
        }
        if let address = try resolved(configuration.operatorAddress) {
            let bound = try operatorServer.start([
                .init(
                    address: address, inherited: inherited[address.description],
                    mode: configuration.socketMode, handler: endpoints.handler)
            ])
            logger.info("operator endpoints", metadata: ["address": "\(bound[0])"])
        }
        try listenForConsole(configuration, inherited)
        if configuration.https.certificate == Configuration.HTTPS.selfSigned {
            logger.warning("the TLS certificate is a throw-away, self-signed one: for trials only")
        }
        warnOfOpenBuckets(configuration)
    }

    func warnOfOpenBuckets(_ configuration: Configuration) {
        for bucket in configuration.buckets where configuration.rules(of: bucket) == Configuration.openToAll {
            logger.warning(
                "rules: none: everybody who reaches the listeners may read, write and delete",
                metadata: ["bucket": "\(bucket.name)"])
        }
    }

    static func gateway(
        _ configuration: Configuration, _ stores: Stores, _ policies: [BytewiseString: CurrentPolicy],
        _ staged: [BytewiseString: StagedBytes], _ uploads: Uploads, _ cache: ReadCache?,
        _ watched: [BytewiseString: BucketWatch], _ callers: Callers, _ observer: GatewayObserver,
        _ traces: TraceExporter?
    ) throws -> Gateway {
        var buckets: [Bucket] = []
        for bucket in configuration.buckets {
            guard let name = BucketName(bucket.name), let store = stores.drivers[bucket.name],
                let policy = policies[bucket.name], let staged = staged[bucket.name]
            else { continue }
            buckets.append(
                Bucket(
                    name: name, driver: store, policy: policy,
                    pathRules: try bucket.pathRules(), firestore: stores.documents,
                    maximumObjectSize: bucket.maximumObjectSize, staged: staged,
                    maximumStagedBytes: bucket.maximumStagedBytes,
                    maximumStagedBytesPerCaller: bucket.maximumStagedBytesPerCaller, uploads: uploads,
                    maximumSessionBytes: bucket.stagedBytes, firebase: configuration.firebase(of: bucket),
                    created: bucket.directory.map(File.birth) ?? 0,
                    asksServices: stores.upstreams[bucket.name] != nil || stores.documents != nil,
                    watch: watched[bucket.name] ?? .off(configuration.whyUnwatched(bucket)),
                    cache: cache?.bucket(
                        bucket.name, store, bucket.cache.freshness, staleIfError: bucket.cache.staleIfError)))
        }
        let cors = CORSPolicy(
            origins: configuration.corsOrigins, maximumAge: Int(configuration.corsMaximumAge / 1_000_000_000),
            exposedHeaders: configuration.corsExposedHeaders)
        return Gateway(
            buckets: buckets, cors: cors, callers: callers, s3: configuration.s3.settings, observers: [observer],
            traces: traces)
    }

    // MARK: Shutdown

    /// Reports that the gateway is not ready, continues to serve for `limits.drainDelay`, and then ends.
    func drain() async {
        logger.info("draining")
        manager.stopping()
        health.beginDraining()
        server.announceDrain()
        // It is not cancelled. A load balancer needs this time to learn that it must send no more.
        try? await Task.sleep(nanoseconds: started.drainDelay)
        watches.end()
        await server.drain()
        await authenticator.close()
        await events.close()
        // It reads from the stores.
        await cache?.close()
        await stores.close()
        await traces?.close()
        logger.info("drained")
        sink.close()
    }

    /// The time for closing requests and stores after `limits.drainDelay` and `limits.drainTimeout`, in nanoseconds: 8 s.
    private static let closingLimit: UInt64 = 8_000_000_000

    /// Exits with status 3 if the drain has not finished in time. A request that continues after its connection was
    /// closed, or a store that does not close, can't keep the process alive.
    func boundEnd() {
        let limit = started.drainDelay + started.limits.drainTimeout + Service.closingLimit
        // A separate thread, because the event loops or the task executor may be blocked.
        _ = startThread { [self] in
            let end = EventLoop.monotonicNow() + limit
            while case let now = EventLoop.monotonicNow(), now < end {
                var rest = timespec(
                    tv_sec: Int((end - now) / 1_000_000_000),
                    tv_nsec: Int((end - now) % 1_000_000_000))
                nanosleep(&rest, nil)
            }
            logger.error("the drain did not end: open requests and stores are abandoned")
            abandon()
            Glibc._exit(3)
        }
    }

    /// Writes the buffered log lines; waits at most 200 ms.
    func abandon() { _ = sink.flush(within: 200_000_000) }
}

/// Resolves a listener's address; nil if the listener is switched off.
func resolved(_ address: String?) throws -> SocketAddress? {
    guard let address else { return nil }
    guard let resolved = SocketAddress(address) else { throw UnknownHost(address: address) }
    return resolved
}

/// A listener's host that does not resolve.
private struct UnknownHost: Error, CustomStringConvertible {
    let address: String
    var description: String { "\(address): the host is not known" }
}

/// Raises the limit of open descriptors to the hard limit, and returns it.
private func raiseDescriptorLimit() -> Int {
    var limit = rlimit()
    guard getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit) == 0 else { return 1024 }
    limit.rlim_cur = limit.rlim_max
    setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
    return Int(clamping: limit.rlim_cur)
}

extension ServerLimits {
    private static let consoleConnections = 64

    /// Few connections are enough for viewers, who all come from loopback.
    fileprivate var forConsole: ServerLimits {
        var limits = self
        limits.connections = ServerLimits.consoleConnections
        limits.connectionsPerAddress = ServerLimits.consoleConnections
        return limits
    }

    /// Limits one address to three quarters of the connections.
    fileprivate mutating func leaveRoom() {
        connectionsPerAddress = min(connectionsPerAddress, max(1, connections * 3 / 4))
    }
}

extension Configuration {
    /// The exporter of spans; nil if none are recorded.
    fileprivate func exporter(_ pool: BlockingPool, _ loop: EventLoop, _ logger: Logger) throws
        -> TraceExporter?
    {
        try traces.exporterSettings().map {
            TraceExporter($0, pool: pool, loop: loop, logger: logger)
        }
    }

    /// The observers of each request.
    fileprivate func observer(
        _ sink: LogSink, _ registry: PrometheusRegistry, _ traces: TraceExporter?, _ feed: RequestFeed?
    ) -> GatewayObserver {
        GatewayObserver(
            accessLog: logsAccess ? AccessLog(sink) : nil,
            decisionLog: DecisionLog(
                Logger(label: "sluice.decisions"), logsDenials: logsDenials, sample: allowedSample),
            metrics: RequestMetrics(registry, buckets: buckets.map(\.name)),
            callers: CallerMetrics(groups: groups, registry),
            traces: traces, feed: feed)
    }

    /// A value for each bucket, by its name.
    fileprivate func byBucket<Value>(_ value: (Bucket) -> Value) -> [BytewiseString: Value] {
        Dictionary(uniqueKeysWithValues: buckets.map { (BytewiseString($0.name), value($0)) })
    }
}

extension Configuration {
    /// The limits of each loop's connections.
    /// - Parameter descriptors: The most open files of the process.
    fileprivate func limits(_ descriptors: Int, loops: Int) -> ServerLimits {
        var limits = limits
        // Files, operator connections and connections to services need descriptors too: half of them stay free.
        limits.connections = max(1, min(limits.connections, descriptors / 2 / loops))
        // The limit per address must stay below the reduced total.
        if limits.connections < self.limits.connections { limits.leaveRoom() }
        return limits
    }
}

extension Configuration.HTTPS {
    /// The files that are reloaded when they change.
    fileprivate var watchedFiles: WatchedFiles {
        WatchedFiles([
            certificate == Configuration.HTTPS.selfSigned ? nil : certificate, key, clients.authorities,
            clients.revoked,
        ])
    }
}
