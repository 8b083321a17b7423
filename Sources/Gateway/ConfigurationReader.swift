import EventLoop
import Foundation
import Yams

extension Configuration {
    /// A value from the environment or a flag.
    public struct Override: Sendable {
        /// The key, as in ``settings``.
        public var path: String
        public var value: String
        /// What to name in an error: `SLUICE_THREADS`, `--set threads`.
        public var source: String

        public init(path: String, value: String, source: String) {
            self.path = path
            self.value = value
            self.source = source
        }
    }

    /// Reads and validates a configuration.
    /// - Parameters:
    ///   - file: A YAML file. Relative paths in it are relative to its directory.
    ///   - environment: `SLUICE_` and a key in upper case, dots as underscores, overrides that key: `SLUICE_LISTEN_HTTP`.
    ///   - flags: Override the environment.
    /// - Throws: ``ConfigurationError`` with every finding.
    public static func load(
        file: String, environment: [String: String] = [:], flags: [Override] = []
    ) throws(ConfigurationError) -> Configuration {
        guard let data = FileManager.default.contents(atPath: file) else {
            throw ConfigurationError(findings: ["\(file): error: can't be read"])
        }
        guard let text = String(validating: data, as: UTF8.self) else {
            throw ConfigurationError(findings: ["\(file): error: is not valid UTF-8"])
        }
        var reader = ConfigurationReader(file: file)
        reader.read(text)
        reader.override(environment)
        for flag in flags { reader.apply(flag) }
        reader.resolvePaths()
        reader.validate()
        if !reader.findings.isEmpty { throw ConfigurationError(findings: reader.findings) }
        return reader.result
    }

    /// The whole configuration as YAML, with what overrode the file.
    public func yaml() -> String {
        var lines = YAMLLines()
        for setting in Configuration.settings {
            lines.add(setting.path, setting.print(self), comment: overrides[setting.path])
        }
        for bucket in buckets {
            for setting in Bucket.settings {
                lines.add("buckets.\(bucket.name)/\(setting.path)", setting.print(bucket))
            }
        }
        return lines.text
    }
}

/// Builds nested YAML from dotted paths in order.
private struct YAMLLines {
    private(set) var text = ""
    private var open: [Substring] = []

    /// A `/` after a bucket's name ends it, since a name may have dots.
    mutating func add(_ path: String, _ value: String, comment: String? = nil) {
        var names = path.split(separator: ".")
        if let slash = path.firstIndex(of: "/") {
            let head = path[..<slash]
            names = ["buckets", head.dropFirst("buckets.".count)]
            names += path[path.index(after: slash)...].split(separator: ".")
        }
        let parents = names.dropLast()
        var common = 0
        while common < min(open.count, parents.count), open[common] == parents[common] {
            common += 1
        }
        for depth in common..<parents.count {
            text += String(repeating: "  ", count: depth) + parents[depth] + ":\n"
        }
        open = Array(parents)
        text += String(repeating: "  ", count: parents.count) + names.last! + ": " + value
        text += comment.map { "  # from \($0)\n" } ?? "\n"
    }
}

/// Walks the YAML tree against the tables of settings and gathers what is wrong.
struct ConfigurationReader {
    let file: String
    var result = Configuration()
    var findings: [String] = []
    /// Where each key stands in the file, for what is found wrong only later.
    private var places: [String: Mark] = [:]

    init(file: String) { self.file = file }

    mutating func report(_ mark: Mark?, _ message: String) {
        let place = mark.map { "\(file):\($0.line):\($0.column)" } ?? file
        findings.append("\(place): error: \(message)")
    }

    mutating func read(_ text: String) {
        let root: Node?
        do {
            root = try Yams.compose(yaml: text)
        } catch {
            return report(yamlError: error)
        }
        guard let root else {
            return report(nil, "the file is empty; config/quickstart.yaml is an example")
        }
        guard case .mapping(let mapping) = root else {
            return report(root.mark, "the file must be a mapping of keys")
        }
        for (key, value) in mapping {
            if key.string == "buckets" {
                readBuckets(value)
            } else {
                var target = result
                walk(key, value, [], Configuration.settings, &target, extra: ["buckets"])
                result = target
            }
        }
    }

    private mutating func report(yamlError error: any Error) {
        switch error as? YamlError {
        case .scanner(_, let problem, let mark, _), .parser(_, let problem, let mark, _),
            .composer(_, let problem, let mark, _):
            report(mark, problem)
        case .duplicatedKeysInMapping(let duplicates, let context):
            report(
                context.mark,
                "key given twice: \(duplicates.map { "\($0)" }.joined(separator: ", "))")
        default: report(nil, "not valid YAML: \(error)")
        }
    }

    /// Reads one key below `parents`: a section is walked into, a setting set.
    private mutating func walk<Root>(
        _ key: Node, _ value: Node, _ parents: [String], _ settings: [Setting<Root>],
        _ root: inout Root, extra: [String] = [], prefix: String = ""
    ) {
        guard let name = key.string else { return report(key.mark, "a key must be a string") }
        let path = (parents + [name]).joined(separator: ".")
        if let setting = settings.first(where: { $0.path == path }) {
            places[prefix + path] = value.mark
            return set(setting, value, &root)
        }
        let below = settings.filter { $0.path.hasPrefix(path + ".") }
        guard !below.isEmpty else {
            let depth = parents.count
            let siblings = settings.map { $0.path.split(separator: ".").map(String.init) }
                .filter { $0.count > depth && Array($0[..<depth]) == parents }.map { $0[depth] }
            return report(key.mark, unknown(path, name, siblings + extra))
        }
        switch value {
        case .mapping(let mapping):
            places[prefix + path] = key.mark
            for (key, value) in mapping {
                walk(key, value, parents + [name], settings, &root, prefix: prefix)
            }
        case .scalar(let scalar) where scalar.string.isEmpty || scalar.string == "null": break
        default: report(value.mark, "'\(path)' must be a mapping of keys")
        }
    }

    private mutating func set<Root>(_ setting: Setting<Root>, _ value: Node, _ root: inout Root) {
        do throws(SettingError) {
            switch value {
            case .scalar(let scalar):
                if setting.setList != nil {
                    throw SettingError(message: "must be a list: \(setting.type)")
                }
                try setting.set(&root, scalar.string)
            case .sequence(let sequence):
                let texts = sequence.compactMap { $0.scalar?.string }
                guard let setList = setting.setList, texts.count == sequence.count else {
                    throw SettingError(message: "must be \(setting.type)")
                }
                setList(&root, texts)
            default: throw SettingError(message: "must be \(setting.type)")
            }
        } catch {
            report(value.mark, "'\(setting.path)' \(error.message)")
        }
    }

    private mutating func readBuckets(_ node: Node) {
        guard case .mapping(let mapping) = node else {
            return report(node.mark, "'buckets' must be a mapping of names")
        }
        for (key, value) in mapping {
            let name = key.string ?? ""
            guard BucketName(name) != nil else {
                report(
                    key.mark,
                    "'\(name)' is no bucket name: 3 to 63 lower-case letters, digits, '-', '_' and '.'"
                )
                continue
            }
            var bucket = Configuration.Bucket(name: name)
            places["buckets.\(name)"] = key.mark
            guard case .mapping(let settings) = value else {
                report(value.mark, "bucket '\(name)' must be a mapping of keys")
                continue
            }
            for (key, value) in settings {
                if key.string == "gcs" || key.string == "s3" {
                    report(
                        key.mark,
                        "'\(key.string!)' buckets are not served by this version; 'directory' is")
                    continue
                }
                walk(
                    key, value, [], Configuration.Bucket.settings, &bucket,
                    prefix: "buckets.\(name).")
            }
            result.buckets.append(bucket)
        }
    }

    private func unknown(_ path: String, _ name: String, _ candidates: [String]) -> String {
        let nearest = candidates.map { ($0, editDistance(name, $0)) }.min { $0.1 < $1.1 }
        guard let nearest, nearest.1 <= max(2, name.count / 3) else {
            let known = Set(candidates).sorted().joined(separator: ", ")
            return "unknown key '\(path)'; known here: \(known)"
        }
        return "unknown key '\(path)'; did you mean '\(nearest.0)'?"
    }

    // MARK: Overrides

    mutating func override(_ environment: [String: String]) {
        for (name, value) in environment.sorted(by: { $0.key < $1.key })
        where name.hasPrefix("SLUICE_") && name != "SLUICE_CONFIG" {
            let setting = Configuration.settings.first { Configuration.variable($0.path) == name }
            guard let setting else {
                findings.append(
                    "\(name): error: no key has this name; "
                        + unknown(
                            name, name,
                            Configuration.settings.map { Configuration.variable($0.path) }))
                continue
            }
            apply(.init(path: setting.path, value: value, source: name))
        }
    }

    mutating func apply(_ override: Configuration.Override) {
        guard let setting = Configuration.settings.first(where: { $0.path == override.path }) else {
            let message = unknown(override.path, override.path, Configuration.settings.map(\.path))
            findings.append("\(override.source): error: \(message)")
            return
        }
        do throws(SettingError) {
            try setting.set(&result, override.value)
            result.overrides[setting.path] = override.source
        } catch {
            findings.append("\(override.source): error: '\(setting.path)' \(error.message)")
        }
    }

    // MARK: The whole

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
                places["limits.initialWindow"],
                "'limits.initialWindow' is larger than 'limits.maximumWindow'")
        }
        checkRules(result.rules, "rules")
        if result.buckets.isEmpty && findings.isEmpty {
            report(nil, "no bucket is configured: 'buckets' is missing or empty")
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
                    places[path],
                    "'\(path)' is '\(text)', and must be host:port, such as 127.0.0.1:8080")
                continue
            }
            if address.port != 0, let other = seen.updateValue(path, forKey: address.description) {
                report(places[path], "'\(path)' and '\(other)' are the same address, \(text)")
            }
        }
        if result.http == nil && result.https.address == nil {
            report(
                places["listen"],
                "neither 'listen.http' nor 'listen.https.address' is set: nothing would be served")
        }
        guard result.https.address != nil else { return }
        let mark = places["listen.https"]
        switch (result.https.certificate, result.https.key) {
        case (nil, _):
            report(
                mark, "'listen.https.certificate' is missing; 'self-signed' makes a throw-away one")
        case (Configuration.HTTPS.selfSigned, nil): break
        case (Configuration.HTTPS.selfSigned, _):
            report(mark, "'listen.https.key' has no use with a self-signed certificate")
        case (_, nil): report(mark, "'listen.https.key' is missing")
        case (let certificate?, let key?):
            for path in [certificate, key] where !FileManager.default.isReadableFile(atPath: path) {
                report(mark, "\(path) can't be read")
            }
        }
    }

    private mutating func checkRules(_ rules: String?, _ path: String) {
        guard let rules, rules != "none" else { return }
        report(
            places[path],
            "'\(path)' is '\(rules)': rule files are not supported by this version, and 'none' is the only value"
        )
    }

    private mutating func validate(
        _ bucket: Configuration.Bucket, _ directories: inout [String: String]
    ) {
        let path = "buckets.\(bucket.name)"
        let mark = places[path]
        checkRules(bucket.rules, path + ".rules")
        if bucket.rules == nil && result.rules == nil {
            report(
                mark,
                "bucket '\(bucket.name)' has no rules, so nothing may be served from it. "
                    + "'rules: none' serves it, open to everybody who can reach the listeners: reading, writing and deleting"
            )
        }
        if let directory = bucket.directory {
            if let other = directories.updateValue(bucket.name, forKey: directory) {
                report(
                    mark,
                    "buckets '\(bucket.name)' and '\(other)' have the same directory, \(directory)")
            }
        } else {
            report(
                mark, "bucket '\(bucket.name)' has no store: 'directory: { path: … }' is missing")
        }
        do throws(PathRules.PatternError) { _ = try bucket.pathRules() } catch {
            report(mark, "bucket '\(bucket.name)': \(error)")
        }
    }
}

extension Configuration {
    /// The environment variable that overrides a key.
    public static func variable(_ path: String) -> String {
        "SLUICE_" + path.uppercased().replacingOccurrences(of: ".", with: "_")
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

/// Insertions, deletions and changes that make one string the other.
private func editDistance(_ first: String, _ second: String) -> Int {
    let (first, second) = (Array(first.lowercased().utf8), Array(second.lowercased().utf8))
    var row = Array(0...second.count)
    for (index, byte) in first.enumerated() {
        var diagonal = row[0]
        row[0] = index + 1
        for (place, other) in second.enumerated() {
            let changed = diagonal + (byte == other ? 0 : 1)
            diagonal = row[place + 1]
            row[place + 1] = min(changed, row[place] + 1, diagonal + 1)
        }
    }
    return row[second.count]
}
