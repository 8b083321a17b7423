import EventLoop
import Gateway
import Glibc
import OpenSSL
import SecurityRules

/// Files that are read again when they change, and what they were when they were last read.
final class WatchedFiles: Sendable {
    let paths: [String]
    private let seen: Lock<[FileStamp]>

    init(_ paths: [String?]) {
        self.paths = paths.compactMap { $0 }
        seen = Lock(self.paths.map(FileStamp.init))
    }

    /// They are about to be read: a change in between is seen the next time.
    func look() { seen.withLock { $0 = paths.map(FileStamp.init) } }

    var haveChanged: Bool { seen.withLock { $0 } != paths.map(FileStamp.init) }
}

/// The rules that are in effect.
struct RulesInEffect {
    /// What they were loaded for.
    let configuration: Configuration
    /// By file: as it is now, or as it was when it was last good.
    let rulesets: [String: Ruleset]
    /// What the files were when they were looked at, good or not.
    let seen: [String: FileStamp]
    /// Why a file as it is now is not in effect.
    let failures: [String]
    /// The files of those.
    let failed: Set<String>

    /// Loads the files that a configuration names; one that does not load keeps what it had in `old`. Blocks.
    init(_ configuration: Configuration, keeping old: [String: Ruleset] = [:]) {
        self.configuration = configuration
        // Before they are read: a change in between is seen the next time.
        seen = RulesInEffect.stamps(configuration)
        var rulesets: [String: Ruleset] = [:]
        var failures: [String] = []
        var failed: Set<String> = []
        for path in configuration.rulesFiles {
            do throws(RulesFileError) {
                rulesets[path] = try Ruleset.load(file: path)
            } catch {
                rulesets[path] = old[path]
                failures.append(error.description)
                failed.insert(path)
            }
        }
        self.rulesets = rulesets
        self.failures = failures
        self.failed = failed
    }

    static func stamps(_ configuration: Configuration) -> [String: FileStamp] {
        Dictionary(uniqueKeysWithValues: configuration.rulesFiles.map { ($0, FileStamp($0)) })
    }

    /// The policy of a bucket. Where its rules have never loaded, nobody may do anything.
    func policy(of bucket: Configuration.Bucket) -> any Policy {
        let shadow = configuration.shadowRules(of: bucket).flatMap { rulesets[$0] }
        let path = configuration.rules(of: bucket)
        if path == Configuration.openToAll {
            return OpenPolicy(shadow: shadow.map { RulesPolicy($0) })
        }
        guard let rules = path.flatMap({ rulesets[$0] }) else { return ClosedPolicy() }
        return RulesPolicy(rules, shadow: shadow)
    }
}
