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
            throw ConfigurationError(findings: ["\(file): error: \(unreadable(file))"])
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
}

/// Walks the YAML tree against the tables of settings and gathers what is wrong.
struct ConfigurationReader {
    let file: String
    var result = Configuration()
    var findings: [String] = []
    /// Where each key stands in the file, for what is found wrong only later. A bucket's keys follow its name and `/`.
    private(set) var places: [String: Mark] = [:]

    init(file: String) { self.file = file }

    private mutating func report(_ mark: Mark?, _ message: String) {
        let place = mark.map { "\(file):\($0.line):\($0.column)" } ?? file
        findings.append("\(place): error: \(message)")
    }

    /// Reports what is wrong with a key's value, at what gave it: a variable, a flag, or a place in the file.
    mutating func report(at path: String, _ message: String) {
        if let source = result.overrides[path] {
            findings.append("\(source): error: \(message)")
        } else {
            report(places[path], message)
        }
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
        case .scalar(let scalar) where isNull(scalar.string): break
        default: report(value.mark, "'\(path)' must be a mapping of keys")
        }
    }

    private mutating func set<Root>(_ setting: Setting<Root>, _ value: Node, _ root: inout Root) {
        do throws(SettingError) {
            switch value {
            case .scalar(let scalar):
                if setting.setList != nil {
                    throw SettingError(message: "must be a \(setting.type)")
                }
                try setting.set(&root, scalar.string)
            case .sequence(let sequence):
                guard let setList = setting.setList else {
                    throw SettingError(message: "is a list, and must be \(setting.type)")
                }
                for node in sequence where ConfigurationReader.text(node) == nil {
                    return report(
                        node.mark, "'\(setting.path)' must be a \(setting.type)")
                }
                try setList(&root, sequence.compactMap(ConfigurationReader.text))
            default:
                throw SettingError(message: "is a mapping, and must be \(setting.type)")
            }
        } catch {
            report(value.mark, "'\(setting.path)' \(error.message)")
        }
    }

    /// A string; nil for null and what is no scalar.
    private static func text(_ node: Node) -> String? {
        guard let scalar = node.scalar, scalar.style != .plain || !isNull(scalar.string) else {
            return nil
        }
        return scalar.string
    }

    private mutating func readBuckets(_ node: Node) {
        if let scalar = node.scalar, isNull(scalar.string) { return }
        guard case .mapping(let mapping) = node else {
            return report(node.mark, "'buckets' must be a mapping of names")
        }
        for (key, value) in mapping {
            let name = key.string ?? ""
            guard BucketName(name) != nil else {
                report(key.mark, "'\(name)' is no bucket name: \(BucketName.rule)")
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
                    prefix: "buckets.\(name)/")
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
        where name.hasPrefix("SLUICE_") && !ConfigurationReader.isForeign(name) {
            let setting = Configuration.settings.first { Configuration.variable($0.path) == name }
            guard let setting else {
                let names = Configuration.settings.map { Configuration.variable($0.path) }
                findings.append("\(name): error: \(unknown(name, name, names))")
                continue
            }
            apply(.init(path: setting.path, value: value, source: name))
        }
    }

    /// Variables that stand for no key. Kubernetes sets `SLUICE_SERVICE_…` and `SLUICE_PORT…` in every container
    /// beside a Service named `sluice`.
    private static func isForeign(_ name: String) -> Bool {
        name == "SLUICE_CONFIG" || name == "SLUICE_PORT" || name.hasPrefix("SLUICE_PORT_")
            || name.hasPrefix("SLUICE_SERVICE_")
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
}

extension Configuration {
    /// The environment variable that overrides a key.
    public static func variable(_ path: String) -> String {
        "SLUICE_" + path.uppercased().replacingOccurrences(of: ".", with: "_")
    }
}

/// Why a file can't be read.
private func unreadable(_ file: String) -> String {
    var isDirectory: ObjCBool = false
    guard FileManager.default.fileExists(atPath: file, isDirectory: &isDirectory) else {
        return "there is no such file"
    }
    return isDirectory.boolValue ? "is a directory" : "can't be read"
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
