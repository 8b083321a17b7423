import Configuration
import Console
import Gateway
import HTTPServer
import Identity
import Logging
import SecurityRules
import System
import Wire

/// What the console shows of the configuration. Replaced by a reload, so that no request waits for one.
struct ShownConfiguration: Sendable {
    let configuration: Configuration
    let rules: [BucketRules]
    /// The keys whose new values wait for a restart.
    var waiting: [String]

    /// Takes the configuration and rules in effect. Rules that did not change keep the time of `old`.
    /// - Parameter started: The configuration of the start, whose values of some keys stay.
    init(_ fresh: RulesInEffect, _ started: Configuration, since old: ShownConfiguration?) {
        waiting = old?.waiting ?? []
        let old = old?.rules ?? []
        let now = SystemClock.seconds()
        var configuration = fresh.configuration
        for setting in Configuration.restartSettings { setting.copy(&configuration, started) }
        self.configuration = configuration
        rules = configuration.buckets.map { bucket in
            let path = configuration.rules(of: bucket)
            let rules = fresh.ruleset(of: bucket)
            let before = old.first { BytewiseString.areEqual($0.bucket, bucket.name) }
            return BucketRules(
                bucket: bucket.name, rules: rules,
                shadow: configuration.shadowRules(of: bucket).flatMap { fresh.rulesets[$0] },
                isOpen: path == Configuration.openToAll,
                failure: path.flatMap { fresh.failed[$0] },
                since: before.flatMap { $0.rules?.source == rules?.source ? $0.since : nil } ?? now,
                findings: (rules?.diagnostics ?? []).map { $0.rendered() })
        }
    }
}

extension Configuration {
    /// The feed of the console; nil without a console.
    var feed: RequestFeed? { console.address.map { _ in RequestFeed(remembersDenials: console.remember) } }
}

extension Service {
    /// Starts the console's listener, if it is configured.
    func listenForConsole(_ configuration: Configuration, _ inherited: [BytewiseString: Int32]) throws {
        guard let feed, let address = try resolved(configuration.console.address),
            let token = configuration.console.token.flatMap({ Hexadecimal.decode($0.utf8) })
        else { return }
        let sessionDrivers = sessionDrivers
        let sources = Console.Sources(
            health: health, registry: registry, build: .current,
            listeners: [
                ("http", configuration.http), ("https", configuration.https.address), ("s3", configuration.s3.http),
                ("s3 with TLS", configuration.s3.https), ("operator", configuration.operatorAddress),
                ("console", configuration.console.address),
            ],
            rules: { [shown] in shown.withLock { $0?.rules ?? [] } },
            configuration: { [shown] in shown.withLock { $0?.configuration }?.yaml() ?? "" },
            waiting: { [shown] in shown.withLock { $0?.waiting ?? [] } },
            uploads: { [uploads] bucket in await uploads.list(sessionDrivers, in: bucket) },
            cancelUpload: { [uploads] (id) async throws(Problem) in try await uploads.cancel(id, sessionDrivers) },
            events: { [events] (query) async throws(Problem) in try await events.shown(query) },
            serve: { [gateway] in await gateway.withLock { $0 }.respond($0, adding: $1) })
        let console = Console(
            sources, token: token, hosts: configuration.console.hosts, feed: feed, pool: pool
        ) { [logger] peer in
            logger.info("console opened", metadata: ["peer": "\(peer)"])
        }
        let bound = try consoleServer.start([
            .init(
                address: address, inherited: inherited[address.description], mode: configuration.socketMode,
                handler: console.handler)
        ])
        consoleAddress.withLock { $0 = bound.first }
        logger.info("console", metadata: ["address": "\(bound[0])"])
        repeated(every: 1_000_000_000, on: loop) { feed.expire() }
    }
}
