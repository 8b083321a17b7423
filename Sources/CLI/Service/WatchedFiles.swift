import Buckets
import Configuration
import Gateway
import Glibc
import OpenSSL
import SecurityRules
import System
import Wire

/// Files that are reloaded when they change, with their stamps at the last load.
final class WatchedFiles: Sendable {
    let paths: [String]
    private let seen: Lock<[FileStamp]>

    init(_ paths: [String?]) {
        self.paths = paths.compactMap { $0 }
        seen = Lock(self.paths.map(FileStamp.init))
    }

    /// Records the current stamps. Called before the files are read, so that a later change is detected.
    func look() { seen.withLock { $0 = paths.map(FileStamp.init) } }

    var haveChanged: Bool { seen.withLock { $0 } != paths.map(FileStamp.init) }
}

/// The rules in effect.
struct RulesInEffect {
    /// The configuration that names the rules.
    let configuration: Configuration
    /// By path: the last version of each file that loaded.
    let rulesets: [BytewiseString: Ruleset]
    /// The files' stamps at the last load, whether it succeeded or not.
    let seen: [BytewiseString: FileStamp]
    /// Why the current version of a file is not in effect.
    let failures: [String]
    /// The paths of the files in `failures`.
    let failed: Set<BytewiseString>

    /// Loads the files that a configuration names. A file that fails to load keeps its rules from `old`. Blocks.
    init(_ configuration: Configuration, keeping old: [BytewiseString: Ruleset] = [:]) {
        self.configuration = configuration
        // Before the files are read, so that a later change is detected.
        seen = RulesInEffect.stamps(configuration)
        var rulesets: [BytewiseString: Ruleset] = [:]
        var failures: [String] = []
        var failed: Set<BytewiseString> = []
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

    static func stamps(_ configuration: Configuration) -> [BytewiseString: FileStamp] {
        Dictionary(
            uniqueKeysWithValues: configuration.rulesFiles.map {
                (BytewiseString($0), FileStamp($0))
            })
    }

    /// Warnings about each bucket's rules.
    /// - Parameter probed: The capabilities of buckets' services, by bucket name. A bucket that is not in it is assumed
    ///   to have all capabilities that a service of its kind can have.
    func findings(_ probed: [BytewiseString: Capabilities] = [:]) -> [RulesFinding] {
        configuration.buckets.flatMap { bucket in
            // 'rules: none' is intended; 'serve' logs a warning.
            guard let rules = ruleset(of: bucket) else { return [RulesFinding]() }
            return bucket.findings(
                in: rules, probed: probed[bucket.name], listsReadable: configuration.s3.listsReadable)
        }
    }

    /// The rules of a bucket; nil if it has none, or if they have never loaded.
    func ruleset(of bucket: Configuration.Bucket) -> Ruleset? {
        configuration.rules(of: bucket).flatMap { rulesets[$0] }
    }

    /// The policy of a bucket. If its rules have never loaded, every request is denied.
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
