import EventLoop
import Gateway
import Identity
import Logging
import OpenSSL

extension Service {
    /// Takes over what can change while serving: the rules, buckets' limits for names and sizes, CORS, certificates, static
    /// tokens and callers' limits. Everything but the rules of files that load stays as it is where the new configuration
    /// has findings or other buckets.
    func reload(_ read: () throws -> Configuration) {
        rules.withLock { rules in
            reloadCertificates()
            do {
                let wanted = try read()
                guard wanted.hasStores(of: started) else { throw OtherBuckets() }
                var fresh = wanted
                // The file that is watched stays; its keys are read again here too.
                fresh.links.keys = started.links.keys
                fresh.issuers = started.issuers
                fresh.https = started.https
                let callers = try fresh.callers(authenticator)
                let observer = observer.counting(CallerMetrics(fresh, registry))
                let replacement = try Service.gateway(fresh, stores, policies, callers, observer)
                authenticator.replace(fresh.tokens.compactMap(\.staticToken))
                take(RulesInEffect(fresh, keeping: rules.rulesets), &rules)
                gateway.withLock { $0 = replacement }
                self.callers.withLock { $0 = callers }
                configurationFailure.withLock { $0 = nil }
                logger.info("configuration reloaded")
                warnOfOpenBuckets(fresh)
                warnOfRestart(wanted)
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
    func tell(_ fresh: RulesInEffect, since old: RulesInEffect?) {
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
    func watchFiles(on loop: EventLoop) {
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
