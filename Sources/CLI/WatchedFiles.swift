import EventLoop
import Gateway
import Glibc
import OpenSSL
import SecurityRules

/// What a file was when it was looked at.
struct FileStamp: Equatable {
    private var inode: UInt
    private var size: Int
    private var seconds: Int
    private var nanoseconds: Int

    /// Of a file that is not there: nothing but zeros.
    init(_ path: String) {
        var status = stat()
        stat(path, &status)
        inode = UInt(status.st_ino)
        size = Int(status.st_size)
        seconds = status.st_mtim.tv_sec
        nanoseconds = status.st_mtim.tv_nsec
    }
}

/// The certificate's files and what they were when they were last read.
final class CertificateFiles: Sendable {
    let certificate: String
    private let key: String
    private let seen: Lock<[FileStamp]>

    init?(_ configuration: Configuration) {
        guard configuration.https.address != nil, let certificate = configuration.https.certificate,
            let key = configuration.https.key
        else { return nil }
        self.certificate = certificate
        self.key = key
        seen = Lock([certificate, key].map(FileStamp.init))
    }

    func load() throws -> TLSContext {
        seen.withLock { $0 = [certificate, key].map(FileStamp.init) }
        return try TLSContext(certificateFile: certificate, keyFile: key)
    }

    func haveChanged() -> Bool {
        seen.withLock { $0 } != [certificate, key].map(FileStamp.init)
    }
}

/// The rules that are in effect, and what is wrong with newer ones.
struct RulesInEffect {
    /// What they were loaded for.
    var configuration: Configuration
    /// By file.
    var rulesets: [String: Ruleset]
    /// What the files were when they were last looked at, good or not.
    var seen: [String: FileStamp]

    /// Loads the files that a configuration names. Blocks.
    /// - Throws: ``RulesFileError`` for the first that does not load.
    init(_ configuration: Configuration) throws(RulesFileError) {
        self.configuration = configuration
        // Before they are read: a change in between is seen the next time.
        seen = RulesInEffect.stamps(configuration)
        rulesets = [:]
        for path in configuration.rulesFiles { rulesets[path] = try Ruleset.load(file: path) }
    }

    /// What is wrong with the files that a configuration names now; nil where they load.
    static func failure(_ configuration: Configuration) -> String? {
        do throws(RulesFileError) {
            _ = try RulesInEffect(configuration)
            return nil
        } catch {
            return error.description
        }
    }

    static func stamps(_ configuration: Configuration) -> [String: FileStamp] {
        Dictionary(uniqueKeysWithValues: configuration.rulesFiles.map { ($0, FileStamp($0)) })
    }

    /// The policy of a bucket.
    func policy(of bucket: Configuration.Bucket) -> any Policy {
        let path = configuration.rules(of: bucket)
        if path == Configuration.openToAll { return OpenPolicy() }
        guard let rules = path.flatMap({ rulesets[$0] }) else { return ClosedPolicy() }
        let shadow = configuration.shadowRules(of: bucket).flatMap { rulesets[$0] }
        return RulesPolicy(rules, shadow: shadow)
    }
}
