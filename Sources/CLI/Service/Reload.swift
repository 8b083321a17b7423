import Configuration
import Gateway
import Identity
import Logging
import OpenSSL
import System
import Wire

extension Service {
    /// Applies the changes that need no restart: rules, buckets' limits on names and sizes, CORS, certificates, static
    /// tokens and callers' limits. If the new configuration has errors or other buckets, only certificates and rules
    /// files that load are reloaded.
    func reload(_ read: () throws -> Configuration) {
        rules.withLock { rules in
            reloadCertificates()
            do {
                let wanted = try read()
                guard wanted.hasStores(of: started) else { throw OtherBuckets() }
                var fresh = wanted
                // The path of the key file needs a restart, since the old path is watched. Its keys are reloaded.
                fresh.links.keys = started.links.keys
                fresh.issuers = started.issuers
                fresh.https = started.https
                fresh.s3 = started.s3
                fresh.console = started.console
                let callers = try fresh.callers(authenticator, self.callers.withLock { $0.s3 })
                let observer = observer.counting(CallerMetrics(groups: fresh.groups, registry))
                try applyEvents(fresh)
                // Last, because it gives the cache its new settings.
                let replacement = try Service.gateway(
                    fresh, stores, policies, staged, uploads, cache, watched, callers, observer, traces)
                authenticator.replace(fresh.tokens.compactMap(\.staticToken))
                take(RulesInEffect(fresh, keeping: rules.rulesets), &rules)
                gateway.withLock { $0 = replacement }
                eventOptions.withLock { $0 = fresh.eventOptions }
                self.callers.withLock { $0 = callers }
                configurationFailure.withLock { $0 = nil }
                configurationTime.withLock { $0 = SystemClock.seconds() }
                logger.info("configuration reloaded")
                warnOfOpenBuckets(fresh)
                warnOfRestart(wanted)
            } catch {
                logger.error("configuration not reloaded", metadata: ["cause": "\(error)"])
                configurationFailure.withLock { $0 = "\(error)" }
                reloadChanged(&rules, repeats: true)
            }
        }
    }

    private func warnOfRestart(_ fresh: Configuration) {
        let waiting = Configuration.restartSettings.filter { $0.print(fresh) != $0.print(started) }
        var paths = waiting.map(\.path)
        if fresh.issuers != started.issuers { paths.append("issuers") }
        shown.withLock { $0?.waiting = paths }
        if paths.isEmpty { return }
        let keys = paths.joined(separator: ", ")
        logger.warning("some changes take a restart", metadata: ["keys": "\(keys)"])
    }

    /// Puts rules into effect, for open requests too.
    private func take(_ fresh: RulesInEffect, _ rules: inout RulesInEffect) {
        for bucket in fresh.configuration.buckets {
            policies[bucket.name]?.replace(fresh.policy(of: bucket))
        }
        tell(fresh, since: rules)
        rules = fresh
    }

    /// Logs which rules were loaded and which failed to load.
    func tell(_ fresh: RulesInEffect, since old: RulesInEffect?) {
        if feed != nil { shown.withLock { $0 = ShownConfiguration(fresh, started, since: $0) } }
        let isNews = fresh.failures != old?.failures ?? []
        rulesFailure.withLock { state in
            state.text = fresh.failures.isEmpty ? nil : fresh.failures.joined(separator: "\n")
            if isNews && !fresh.failures.isEmpty { state.count += 1 }
        }
        for failure in fresh.failures where isNews {
            logger.error("rules not loaded; the last good ones stay", metadata: ["cause": "\(failure)"])
        }
        for (path, ruleset) in fresh.rulesets where fresh.seen[path] != old?.seen[path] && fresh.failed[path] == nil {
            logger.info("rules loaded", metadata: ["path": "\(path)", "version": "\(ruleset.version)"])
            for finding in ruleset.diagnostics {
                logger.warning("rules", metadata: ["finding": "\(finding.rendered())"])
            }
        }
        warnOfImpossible(fresh, since: old)
    }

    /// Logs the statements that can never allow anything in their bucket, once the service's capabilities are known.
    private func warnOfImpossible(_ fresh: RulesInEffect, since old: RulesInEffect?) {
        for bucket in fresh.configuration.buckets {
            guard let path = fresh.configuration.rules(of: bucket), fresh.seen[path] != old?.seen[path],
                let rules = fresh.ruleset(of: bucket), let driver = stores.drivers[bucket.name]
            else { continue }
            let logger = logger
            Task(executorPreference: loop) {
                // An unreachable service is reported by the readiness check.
                guard let capabilities = try? await driver.capabilities() else { return }
                for finding in rules.impossibleStatements(bucket: bucket.name, capabilities) {
                    logger.warning("rules", metadata: ["finding": "\(finding)"])
                }
            }
        }
    }

    /// Reloads the rules if a file has changed.
    /// - Parameter repeats: Whether files that failed to load last time are tried again.
    private func reloadChanged(_ rules: inout RulesInEffect, repeats: Bool) {
        let now = RulesInEffect.stamps(rules.configuration)
        if now == rules.seen && (rules.failures.isEmpty || !repeats) { return }
        take(RulesInEffect(rules.configuration, keeping: rules.rulesets), &rules)
    }

    /// Checks twice a second whether certificate, key or rules files have changed, and whether the certificate expires.
    /// Runs on the pool because it blocks, at most once at a time. Rules that did not load are tried again every two
    /// seconds.
    func watchFiles(on loop: EventLoop) {
        let state = Lock((isRunning: false, looks: 0))
        repeated(every: 500_000_000, on: loop) { [self] in
            let look = state.withLock { state -> Int? in
                if state.isRunning { return nil }
                state = (true, state.looks &+ 1)
                return state.looks
            }
            guard let look else { return }
            pool.submit { [self] in
                rules.withLock { rules in
                    if certificates.haveChanged { reloadCertificates() }
                    if linkFiles.haveChanged { reloadLinkKeys() }
                    if uploadFiles.haveChanged { reloadUploadKeys() }
                    if s3Files.haveChanged { reloadS3Keys() }
                    reloadWebhookKeys()
                    reloadChanged(&rules, repeats: look % 4 == 0)
                }
                warnOfExpiry()
                state.withLock { $0.isRunning = false }
            }
        }
    }

    /// Runs `job` on the loop again and again.
    /// - Parameter interval: Nanoseconds between its beginnings, and before the first.
    func repeated(
        every interval: UInt64, on loop: EventLoop, _ job: @escaping @Sendable () -> Void
    ) {
        loop.execute {
            let box = TimerBox()
            box.timer = LoopTimer {
                job()
                if let timer = box.timer { loop.arm(timer, after: interval) }
            }
            if let timer = box.timer { loop.arm(timer, after: interval) }
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
            warnOfExpiry()
        } catch {
            certificateFailure.withLock { $0 = "\(error)" }
            logger.error("certificate not loaded; the last good one stays", metadata: ["cause": "\(error)"])
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
            logger.error("keys of links not loaded; the last good ones stay", metadata: ["cause": "\(error)"])
        }
    }
}

extension Configuration {
    /// The settings whose changes wait for a restart.
    static let restartSettings = settings.filter {
        !$0.path.hasPrefix("cors.") && !$0.path.hasPrefix("firebase")
            && !["rules", "shadowRules", "links.maximumLifetime"].contains($0.path)
            && !["eventOptions.retention", "eventOptions.maximumPending"].contains($0.path)
    }
}

/// The new configuration has other buckets or stores, which a reload can't open.
private struct OtherBuckets: Error, CustomStringConvertible {
    var description: String { "other buckets or stores take a restart" }
}

/// Holds a timer that rearms itself.
///
/// Safety: confined to its loop; a job on the pool only holds a reference.
private final class TimerBox: @unchecked Sendable {
    var timer: LoopTimer?
}
