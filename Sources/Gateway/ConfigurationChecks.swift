import EventLoop
import Foundation

/// What one key alone can't tell: paths, and values that do not fit each other.
extension ConfigurationReader {
    mutating func resolvePaths() {
        let base = URL(fileURLWithPath: file).deletingLastPathComponent()
        func absolute(_ path: String) -> String {
            URL(fileURLWithPath: path, relativeTo: base).standardizedFileURL.path
        }
        if let path = result.https.certificate, path != Configuration.HTTPS.selfSigned {
            result.https.certificate = absolute(path)
        }
        result.https.key = result.https.key.map(absolute)
        for index in result.buckets.indices {
            result.buckets[index].directory = result.buckets[index].directory.map(absolute)
        }
    }

    mutating func validate() {
        validateListeners()
        if result.limits.initialWindow > result.limits.maximumWindow {
            report(
                at: "limits.initialWindow",
                "'limits.initialWindow' is larger than 'limits.maximumWindow'")
        }
        checkRules(result.rules, "rules")
        if result.buckets.isEmpty && findings.isEmpty {
            report(at: "buckets", "no bucket is configured: 'buckets' is missing or empty")
        }
        var directories: [String: String] = [:]
        for bucket in result.buckets { validate(bucket, &directories) }
    }

    private mutating func validateListeners() {
        let addresses = [
            ("listen.http", result.http), ("listen.https.address", result.https.address),
            ("listen.operator", result.operatorAddress),
        ]
        var seen: [String: String] = [:]
        for case (let path, let text?) in addresses {
            guard let address = SocketAddress(text) else {
                report(
                    at: path,
                    "'\(path)' is '\(text)', and must be host:port, such as 127.0.0.1:8080")
                continue
            }
            if address.port != 0, let other = seen.updateValue(path, forKey: address.description) {
                report(at: path, "'\(path)' and '\(other)' are the same address, \(text)")
            }
        }
        if result.http == nil && result.https.address == nil {
            report(
                at: "listen",
                "neither 'listen.http' nor 'listen.https.address' is set: nothing would be served")
        }
        guard result.https.address != nil else {
            // Said to be null, it switches TLS off.
            let address = "listen.https.address"
            if places["listen.https"] != nil, places[address] == nil,
                result.overrides[address] == nil
            {
                report(at: "listen.https", "'listen.https.address' is missing")
            }
            return
        }
        let path = "listen.https"
        switch (result.https.certificate, result.https.key) {
        case (nil, _):
            report(
                at: path,
                "'listen.https.certificate' is missing; 'self-signed' makes a throw-away one")
        case (Configuration.HTTPS.selfSigned, nil): break
        case (Configuration.HTTPS.selfSigned, _):
            report(at: path, "'listen.https.key' has no use with a self-signed certificate")
        case (_, nil): report(at: path, "'listen.https.key' is missing")
        case (let certificate?, let key?):
            for (path, file) in [("certificate", certificate), ("key", key)]
            where !FileManager.default.isReadableFile(atPath: file) {
                report(at: "listen.https.\(path)", "\(file) can't be read")
            }
        }
    }

    private mutating func checkRules(_ rules: String?, _ path: String) {
        guard let rules, rules != "none" else { return }
        report(
            at: path,
            "'rules' is '\(rules)': rule files are not supported by this version, and 'none' is the only value"
        )
    }

    private mutating func validate(
        _ bucket: Configuration.Bucket, _ directories: inout [String: String]
    ) {
        let path = "buckets.\(bucket.name)"
        checkRules(bucket.rules, path + "/rules")
        if bucket.rules == nil && result.rules == nil {
            report(
                at: path,
                "bucket '\(bucket.name)' has no rules, so nothing may be served from it. "
                    + "'rules: none' serves it, open to everybody who can reach the listeners: reading, writing and deleting"
            )
        }
        if let directory = bucket.directory {
            if let other = directories.updateValue(bucket.name, forKey: directory) {
                report(
                    at: path,
                    "buckets '\(bucket.name)' and '\(other)' have the same directory, \(directory)")
            }
        } else {
            report(
                at: path,
                "bucket '\(bucket.name)' has no store: 'directory: { path: … }' is missing")
        }
        do throws(PathRules.PatternError) { _ = try bucket.pathRules() } catch {
            report(at: path, "bucket '\(bucket.name)': \(error)")
        }
    }
}

extension Configuration.Bucket {
    /// The rules for names.
    public func pathRules() throws(PathRules.PatternError) -> PathRules {
        try PathRules(
            allowed: allowedPaths, denied: deniedPaths,
            maximumDepth: maximumDepth > 0 ? maximumDepth : nil,
            refusesDiscouraged: refusesDiscouraged)
    }
}
