import Glibc
import System
import Wire
import YAML

extension Configuration {
    /// A value from the environment or a flag.
    public struct Override: Sendable {
        /// The key, as in ``settings``; a key of a bucket begins with `buckets.NAME.`.
        public var path: String
        /// The value as in the file but without quotes. Commas separate the elements of a list.
        public var value: String
        /// The source for error messages: `SLUICE_THREADS`, `--set threads`.
        public var source: String

        public init(path: String, value: String, source: String) {
            self.path = path
            self.value = value
            self.source = source
        }
    }

    /// Reads the file, applies the environment and then the flags, and validates the result.
    /// - Parameters:
    ///   - file: A YAML file of at most 1 MiB. Relative paths in it are relative to its directory. nil if environment
    ///     and flags have all values.
    ///   - environment: ``variable(_:)`` is the name of a key's variable. An empty variable counts as not set. A
    ///     variable that starts with `SLUICE_` and names no key is an error, unless Kubernetes set it for a service
    ///     called `sluice`.
    ///   - flags: Override the environment. They may name a bucket that the file does not have.
    ///   - directory: The base directory for relative paths in the environment and in flags.
    /// - Throws: ``ConfigurationError`` with all errors.
    public static func load(
        file: String?, environment: [BytewiseString: String] = [:], flags: [Override] = [], directory: String = "."
    ) throws(ConfigurationError) -> Configuration {
        var reader = ConfigurationReader(file: file ?? "configuration", directory: directory)
        if file != nil { reader.readFile() }
        for flag in flags { reader.addEntry(of: flag) }
        reader.readEnvironment(environment)
        for flag in flags { reader.apply(flag) }
        reader.check()
        if reader.findings.isEmpty { return reader.result }
        // Errors in the file come first, in its order; then errors of overrides.
        let sorted = reader.findings.enumerated().sorted {
            ($0.element.line, $0.offset) < ($1.element.line, $1.offset)
        }
        throw ConfigurationError(findings: sorted.map(\.element.text))
    }

    /// The environment variable of a key: `SLUICE_` and the key in capitals, with `_` for other characters.
    public static func variable(_ path: String) -> String {
        "SLUICE_" + String(path.asciiUppercased().map { $0.isLetter || $0.isNumber ? $0 : "_" })
    }
}

/// The source of a value.
enum ConfigurationOrigin {
    case file(Mark)
    /// The name of a variable or a flag.
    case override(String)

    var isOverride: Bool {
        if case .override = self { true } else { false }
    }
}

/// Collects values, their sources and errors.
struct ConfigurationReader {
    /// One line of ``ConfigurationError``, and the line of the file that it is about.
    struct Finding {
        var line: Int
        var text: String
    }

    var result = Configuration()
    private(set) var findings: [Finding] = []
    /// The sources of keys, sections and entries.
    private(set) var origins: [BytewiseString: ConfigurationOrigin] = [:]
    /// Keys whose values could not be read, and sections with unknown keys. Follow-up errors are not reported for them.
    private(set) var broken: Set<BytewiseString> = []
    /// Whether the file has a secret, used or overridden.
    private var hasSecret = false
    private let file: String
    private let directory: String
    private static let sections = Configuration.sections.map { $0.section }

    init(file: String, directory: String) {
        self.file = file
        self.directory = Self.absolute(directory)
    }

    /// - Parameter origin: The source of the error; nil for the file as a whole.
    mutating func report(_ error: SettingError, _ origin: ConfigurationOrigin?) {
        let hint = error.suggestion.map { "; did you mean '\($0)'?" } ?? ""
        var finding = Finding(line: 0, text: "error: \(error.message)\(hint)")
        switch origin {
        case .override(let name):
            finding = Finding(line: .max, text: "\(name): \(finding.text)")
        case .file(let mark):
            let mark = error.mark ?? mark
            let location = "\(file):\(mark.line):\(mark.column)"
            finding = Finding(line: mark.line, text: "\(location): \(finding.text)")
        case nil: finding.text = "\(file): \(finding.text)"
        }
        findings.append(finding)
    }

    // MARK: The file

    mutating func readFile() {
        do {
            let text = try Self.contents(of: file)
            guard let root = try Node.load(text) else {
                throw SettingError(message: "is empty")
            }
            guard let mapping = root.mapping else {
                throw SettingError(
                    message: "expected a mapping of keys to values", mark: root.mark)
            }
            read(root: mapping)
        } catch {
            broken.insert("")
            let error =
                error as? SettingError ?? (error as? YAMLError).map { SettingError(message: $0.message, mark: $0.mark) }
                ?? SettingError(message: "\(error)")
            report(error, error.mark.map { .file($0) })
        }
    }

    private mutating func read(root: [(key: Node, value: Node)]) {
        // A copy, because exclusivity forbids passing `self` and a part of it.
        var copy = result
        read(root, "", Configuration.settings, into: &copy)
        result = copy
        for section in Configuration.sections { readEntries(section, root) }
        if hasSecret { result.fileWithSecret = FilePath.absolute(file, base: directory) }
    }

    /// Records the source location of a key or entry.
    mutating func found(_ path: String, at node: Node) { origins[path] = origin(of: node) }

    /// Records that an override names an entry.
    mutating func found(_ path: String, in override: Configuration.Override) {
        origins[path] = .override(override.source)
    }

    /// Reports a value that can't be read, and suppresses follow-up errors.
    mutating func reject(_ path: String, _ error: SettingError, at node: Node) {
        broken.insert(path)
        report(error, origin(of: node))
    }

    func input(_ node: Node) -> ConfigurationInput {
        ConfigurationInput(node: node, base: Self.absolute(FilePath.directory(of: file)), isOverride: false)
    }

    /// Reads one mapping and its nested mappings.
    /// - Parameters:
    ///   - prefix: The path to the mapping, with a dot at the end; empty for the root.
    ///   - section: The part of `prefix` that belongs to the paths of `settings`.
    mutating func read<Root>(
        _ mapping: [(key: Node, value: Node)], _ prefix: String, section: String = "",
        _ settings: [Setting<Root>], into root: inout Root
    ) {
        for (key, value) in mapping {
            guard let word = key.scalar?.string else {
                report(SettingError(message: "a key must be a word"), origin(of: key))
                continue
            }
            if prefix.isEmpty, Self.sections.contains(word) { continue }
            let name = section + word
            if let setting = settings.first(where: { $0.path == name }) {
                origins[prefix + word] = origin(of: value)
                set(setting, prefix + word, input(value), &root)
                if setting.isSecret(root) { hasSecret = true }
            } else if settings.contains(where: { $0.path.hasPrefix(name + ".") }) {
                origins[prefix + word] = origin(of: key)
                if let inner = value.mapping {
                    read(inner, prefix + word + ".", section: name + ".", settings, into: &root)
                } else if !input(value).isNull {
                    broken.insert(prefix + word)
                    let error = input(value).mismatch("a mapping")
                    report(SettingError(message: "'\(name)': \(error.message)"), origin(of: value))
                }
            } else {
                broken.insert(String(prefix.dropLast()))
                report(unknown(word, in: prefix, section, settings.map(\.path)), origin(of: key))
            }
        }
    }

    mutating func set<Root>(
        _ setting: Setting<Root>, _ path: String, _ input: ConfigurationInput, _ root: inout Root
    ) {
        do throws(SettingError) {
            try setting.read(&root, input)
        } catch {
            var error = error
            if !input.isOverride { error.message = "'\(setting.path)': \(error.message)" }
            broken.insert(path)
            report(error, origins[path])
        }
    }

    /// The error for a key that is not in the table.
    private func unknown(_ word: String, in prefix: String, _ section: String, _ names: [String])
        -> SettingError
    {
        let siblings = names.filter { $0.hasPrefix(section) }.map {
            String($0.dropFirst(section.count).prefix { $0 != "." })
        }
        let nearest = Spelling.nearest(to: word, among: prefix.isEmpty ? siblings + Self.sections : siblings)
        let elsewhere = names.first { $0.hasSuffix("." + word) }
        let location = prefix.isEmpty ? "" : " in '\(prefix.dropLast())'"
        return SettingError(message: "unknown key '\(word)'\(location)", suggestion: nearest ?? elsewhere)
    }

    private func origin(of node: Node) -> ConfigurationOrigin? {
        node.mark.map { .file($0) }
    }

    // MARK: Overrides

    /// Variables that are read elsewhere: the configuration's path, the cluster's API server (`JWKSClient`), and those of the
    /// client's verbs, which a shell has set for all commands.
    private static let otherVariables: Set<BytewiseString> = [
        "SLUICE_CONFIG", "SLUICE_KUBERNETES_API", "SLUICE_KUBERNETES_ACCOUNT",
        "SLUICE_URL", "SLUICE_BUCKET", "SLUICE_TOKEN", "SLUICE_TOKEN_FILE", "SLUICE_OTHER_TOKEN",
        "SLUICE_OTHER_TOKEN_FILE",
    ]

    mutating func readEnvironment(_ environment: [BytewiseString: String]) {
        var paths: [BytewiseString: [String]] = [:]
        for path in Configuration.settings.map(\.path) + result.entryPaths {
            paths[Configuration.variable(path), default: []].append(path)
        }
        let given = environment.map { (key: $0.key.text, value: $0.value) }
            .filter { $0.key.hasPrefix("SLUICE_") && !$0.value.isEmpty }
        for (variable, value) in given.sorted(by: { $0.key < $1.key })
        where !Self.otherVariables.contains(variable) && !Self.isServiceLink(variable, value) {
            let matches = paths[variable] ?? []
            if matches.count == 1 {
                apply(.init(path: matches[0], value: value, source: variable))
            } else if matches.isEmpty {
                let nearest = Spelling.nearest(to: variable, among: paths.keys.sorted().map(\.text))
                report(
                    SettingError(message: "no key has this variable", suggestion: nearest),
                    .override(variable))
            } else {
                let names = matches.map { "'\($0)'" }.joined(separator: " and ")
                report(
                    SettingError(message: "could mean \(names); use --set"), .override(variable))
            }
        }
    }

    /// Whether Kubernetes sets the variable for a service called `sluice` or `sluice-…`, in every pod of its namespace:
    /// `…_SERVICE_HOST`, `…_SERVICE_PORT`, `…_SERVICE_PORT_NAME`, `…_PORT=tcp://…`, `…_PORT_80_TCP_ADDR`.
    private static func isServiceLink(_ variable: String, _ value: String) -> Bool {
        let words = variable.split(separator: "_")
        guard let port = words.lastIndex(of: "PORT") else {
            return variable.hasSuffix("_SERVICE_HOST")
        }
        if words[port - 1] == "SERVICE" { return true }
        if port == words.count - 1 { return value.contains("://") }
        return Int(words[port + 1]) != nil
    }

    /// Adds the entry that a flag names if the file does not have it.
    mutating func addEntry(of flag: Configuration.Override) {
        for section in Configuration.sections { addEntry(section, of: flag) }
    }

    mutating func apply(_ override: Configuration.Override) {
        let path = override.path
        let origin = ConfigurationOrigin.override(override.source)
        let input = ConfigurationInput(
            node: .scalar(Node.Scalar(override.value)), base: directory,
            isOverride: true)
        origins[path] = origin
        result.overrides[path] = override.source
        if let setting = Configuration.settings.first(where: { $0.path == path }) {
            var copy = result
            set(setting, path, input, &copy)
            result = copy
        } else if !Configuration.sections.contains(where: { applyEntry($0, path, input) }) {
            let names = Configuration.settings.map(\.path)
            let nearest = Spelling.nearest(to: path, among: names)
            let error = SettingError(
                message: "unknown key '\(path)'", suggestion: nearest ?? names.first { $0.hasSuffix("." + path) })
            report(error, origin)
        }
    }

    // MARK: The system

    private static func absolute(_ path: String) -> String {
        if path.hasPrefix("/") { return path }
        guard let directory = getcwd(nil, 0) else { return "/" + path }
        defer { free(directory) }
        return "\(String(cString: directory))/\(path)"
    }

    /// Reads the file: at most 1 MiB of UTF-8.
    static func contents(of file: String) throws(SettingError) -> String {
        // O_NONBLOCK keeps `open` from waiting for the writer of a pipe. A pipe with a writer is read to its end.
        let descriptor = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK)
        guard descriptor >= 0 else {
            throw SettingError(message: "can't be opened: \(String(cString: strerror(errno)))")
        }
        defer { close(descriptor) }
        _ = fcntl(descriptor, F_SETFL, 0)
        let bytes: [UInt8]
        do throws(SystemError) {
            bytes = try File.contents(of: descriptor, limit: 1 << 20)
        } catch {
            if error.code == EFBIG { throw SettingError(message: "has more than 1 MiB") }
            throw SettingError(message: "can't be read: \(String(cString: strerror(error.code)))")
        }
        guard let text = String(validating: bytes, as: UTF8.self) else {
            throw SettingError(message: "is not UTF-8")
        }
        return text
    }
}
