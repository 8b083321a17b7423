import ArgumentParser
import Buckets
import EventLoop
import Gateway
import Glibc
import HTTPServer
import Identity
import Logging
import OpenSSL
import SecurityRules
import Synchronization

/// `sluice serve`: serves until SIGTERM or SIGINT, then drains; a second signal ends it at once. SIGHUP reloads.
struct Serve: ParsableCommand {
    static let configuration = CommandConfiguration(
        abstract: "Serve the configured buckets.",
        discussion: """
            Signals: SIGTERM and SIGINT drain open requests and end with status 0; a second one ends at once. \
            SIGHUP reads the configuration, the rules and the certificates again. Exit status: 0 after a drain, 1 findings in \
            the configuration, 2 could not start, 64 wrong usage, 128 and the signal's number after a second signal.
            """)

    @OptionGroup var options: ConfigurationOptions

    @Flag(
        help: """
            For development: take the word of whoever calls, also by tokens without a signature. Only where every \
            listener is on this machine's own addresses.
            """)
    var unsignedTokens = false

    func run() throws {
        let file = try options.file()
        let configuration = try options.load()
        if unsignedTokens { try requireLoopback(configuration) }
        let signals = SignalSet([SIGTERM, SIGINT, SIGHUP])
        let service: Service
        do {
            service = try Service(configuration, acceptsUnsigned: unsignedTokens)
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

extension Serve {
    /// Who takes anybody's word must not be reached by anybody.
    private func requireLoopback(_ configuration: Configuration) throws {
        for address in [configuration.http, configuration.https.address].compactMap({ $0 }) {
            guard let resolved = try resolved(address), resolved.isLoopback else {
                complain(
                    "--unsigned-tokens: error: \(address) is not an address of this machine alone, such as 127.0.0.1"
                )
                throw ExitCode(2)
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
    private let health: Health
    private let credentials: TLSCredentials?
    private let certificates: WatchedFiles
    private let linkFiles: WatchedFiles
    private let authenticator: Authenticator?
    private let callers: Lock<Callers>
    /// The configuration that everything was started with.
    private let started: Configuration
    private let stores: Stores
    private let gateway: Lock<Gateway>
    /// By bucket: those of requests under way too.
    private let policies: [String: CurrentPolicy]
    /// Held while anything is reloaded.
    private let rules: Lock<RulesInEffect>
    /// What is wrong with files that were read again, for those who ask while a reload goes on.
    private let rulesFailure = Lock<(text: String?, count: Int)>((nil, 0))
    private let configurationFailure = Lock<String?>(nil)
    private let certificateFailure = Lock<String?>(nil)
    private let linkFailure = Lock<String?>(nil)

    init(_ configuration: Configuration, acceptsUnsigned: Bool) throws {
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
        authenticator?.start(on: loops[0])
        show(in: registry)
        if acceptsUnsigned {
            logger.critical(
                "--unsigned-tokens: whoever reaches the listeners is who they say; never for anything but trials"
            )
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
        authenticator?.show(in: registry, health)
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

    private func warnOfOpenBuckets(_ configuration: Configuration) {
        for bucket in configuration.buckets
        where configuration.rules(of: bucket) == Configuration.openToAll {
            logger.warning(
                "rules: none: everybody who reaches the listeners may read, write and delete",
                metadata: ["bucket": "\(bucket.name)"])
        }
    }

    private static func gateway(
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

    // MARK: Reload

    /// Takes over what can change while serving: the rules, buckets' limits for names and sizes, CORS, certificates.
    /// Everything but the rules of files that load stays as it is where the new configuration has findings or other
    /// buckets.
    func reload(_ read: () throws -> Configuration) {
        rules.withLock { rules in
            reloadCertificates()
            do {
                var fresh = try read()
                guard fresh.hasStores(of: started) else { throw OtherBuckets() }
                // The file that is watched stays; its keys are read again here too.
                let links = fresh.links.keys
                fresh.links.keys = started.links.keys
                let callers = try fresh.callers(authenticator)
                fresh.links.keys = links
                let replacement = try Service.gateway(fresh, stores, policies, callers, observer)
                take(RulesInEffect(fresh, keeping: rules.rulesets), &rules)
                gateway.withLock { $0 = replacement }
                self.callers.withLock { $0 = callers }
                configurationFailure.withLock { $0 = nil }
                logger.info("configuration reloaded")
                warnOfOpenBuckets(fresh)
                warnOfRestart(fresh)
            } catch {
                logger.error("configuration not reloaded", metadata: ["cause": "\(error)"])
                configurationFailure.withLock { $0 = "\(error)" }
                reloadChanged(&rules)
            }
        }
    }

    private func warnOfRestart(_ fresh: Configuration) {
        let waiting = Configuration.settings.filter {
            !$0.path.hasPrefix("cors.") && $0.path != "links.maximumLifetime"
                && !["rules", "shadowRules"].contains($0.path)
                && $0.print(fresh) != $0.print(started)
        }
        var paths = waiting.map(\.path)
        if fresh.issuers != started.issuers { paths.append("issuers") }
        if fresh.tokens != started.tokens { paths.append("tokens") }
        if paths.isEmpty { return }
        let keys = paths.joined(separator: ", ")
        logger.warning("some changes take a restart", metadata: ["keys": "\(keys)"])
    }

    /// Puts rules into effect, also for requests that are under way.
    private func take(_ fresh: RulesInEffect, _ rules: inout RulesInEffect) {
        for bucket in fresh.configuration.buckets {
            policies[bucket.name]?.replace(fresh.policy(of: bucket))
        }
        tell(fresh, since: rules)
        rules = fresh
    }

    /// Logs what was loaded, and what was not.
    private func tell(_ fresh: RulesInEffect, since old: RulesInEffect?) {
        let isNews = fresh.failures != old?.failures ?? []
        rulesFailure.withLock { state in
            state.text = fresh.failures.isEmpty ? nil : fresh.failures.joined(separator: "\n")
            if isNews && !fresh.failures.isEmpty { state.count += 1 }
        }
        for failure in fresh.failures where isNews {
            logger.error(
                "rules not loaded; the last good ones stay", metadata: ["cause": "\(failure)"])
        }
        for (path, ruleset) in fresh.rulesets
        where fresh.seen[path] != old?.seen[path] && !fresh.failed.contains(path) {
            logger.info(
                "rules loaded", metadata: ["path": "\(path)", "version": "\(ruleset.version)"])
            for finding in ruleset.diagnostics {
                logger.warning("rules", metadata: ["finding": "\(finding.rendered())"])
            }
        }
    }

    /// Reads rules again whose files have changed, or did not load the last time.
    private func reloadChanged(_ rules: inout RulesInEffect) {
        let now = RulesInEffect.stamps(rules.configuration)
        if now == rules.seen && rules.failures.isEmpty { return }
        take(RulesInEffect(rules.configuration, keeping: rules.rulesets), &rules)
    }

    /// Looks every two seconds whether files of certificates or rules have changed; on the pool, as it blocks.
    private func watchFiles(on loop: EventLoop) {
        loop.execute { [self] in
            let box = TimerBox()
            box.timer = LoopTimer { [self] in
                pool.submit { [self] in
                    rules.withLock { rules in
                        if certificates.haveChanged { reloadCertificates() }
                        if linkFiles.haveChanged { reloadLinkKeys() }
                        reloadChanged(&rules)
                    }
                }
                if let timer = box.timer { loop.arm(timer, after: 2_000_000_000) }
            }
            if let timer = box.timer { loop.arm(timer, after: 2_000_000_000) }
        }
    }

    private func reloadCertificates() {
        guard let credentials, !certificates.paths.isEmpty else { return }
        certificates.look()
        do {
            guard let context = try started.credentials() else { return }
            credentials.current = context
            certificateFailure.withLock { $0 = nil }
            logger.info("certificate loaded", metadata: ["path": "\(certificates.paths[0])"])
        } catch {
            certificateFailure.withLock { $0 = "\(error)" }
            logger.error(
                "certificate not loaded; the last good one stays", metadata: ["cause": "\(error)"])
        }
    }

    private func reloadLinkKeys() {
        linkFiles.look()
        do {
            let keys = try started.linkKeys()
            callers.withLock { $0 }.replace(keys)
            linkFailure.withLock { $0 = nil }
            logger.info("keys of links loaded")
        } catch {
            linkFailure.withLock { $0 = "\(error)" }
            logger.error(
                "keys of links not loaded; the last good ones stay", metadata: ["cause": "\(error)"]
            )
        }
    }

    // MARK: The end

    func drain() async {
        logger.info("draining")
        health.beginDraining()
        await server.drain()
        await authenticator?.close()
        await stores.close()
        logger.info("drained")
        sink.close()
    }

    /// Writes what the log still holds.
    func abandon() { _ = sink.flush(within: 200_000_000) }
}

/// A reload can't open other stores.
private struct OtherBuckets: Error, CustomStringConvertible {
    var description: String { "other buckets or stores take a restart" }
}

/// Holds a timer that arms itself again.
///
/// Safety: confined to its loop; a job on the pool only carries the reference back to it.
private final class TimerBox: @unchecked Sendable {
    var timer: LoopTimer?
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
