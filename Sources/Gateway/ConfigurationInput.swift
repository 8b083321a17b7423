import YAML

/// A value that a setting can't take.
struct SettingError: Error {
    var message: String
    /// The nearest right spelling.
    var suggestion: String?
    /// Where the fault stands, if more exactly known than the whole value.
    var mark: Mark?
}

/// A value as it was written, in the file or in an override.
struct ConfigurationInput {
    let node: Node
    /// What relative paths are relative to; absolute.
    let base: String
    /// Whether it comes from a variable or a flag, where nothing can be quoted.
    let isOverride: Bool

    /// The text and whether it was quoted.
    /// - Throws: where it is a mapping or a sequence.
    func scalar(_ expectation: String) throws(SettingError) -> (text: String, quoted: Bool) {
        guard let scalar = node.scalar else { throw mismatch(expectation) }
        return (scalar.string, !isOverride && !scalar.isPlain)
    }

    /// The text of a scalar that must not be quoted, such as a number.
    func plain(_ expectation: String) throws(SettingError) -> String {
        let (text, quoted) = try scalar(expectation)
        if quoted || isNull { throw mismatch(expectation) }
        return text
    }

    /// Text, not empty and without control characters; in the file a number or a truth value must be quoted.
    func text(_ expectation: String) throws(SettingError) -> String {
        let (text, quoted) = try scalar(expectation)
        let isText = isOverride || quoted || YAMLText.isText(text)
        let isPrintable = text.unicodeScalars.allSatisfy { $0.value >= 0x20 && $0.value != 0x7f }
        guard isText, !text.isEmpty, isPrintable else { throw mismatch(expectation) }
        return text
    }

    /// The elements of a list; an override separates them with commas.
    func elements(_ expectation: String) throws(SettingError) -> [ConfigurationInput] {
        if isOverride, let text = node.scalar?.string {
            return text.split(separator: ",").map { word in
                var word = word.drop { $0 == " " }
                while word.last == " " { word.removeLast() }
                return ConfigurationInput(
                    node: .scalar(Node.Scalar(String(word))), base: base,
                    isOverride: true)
            }
        }
        guard let sequence = node.sequence else { throw mismatch(expectation) }
        return sequence.map { ConfigurationInput(node: $0, base: base, isOverride: false) }
    }

    /// Whether it is YAML's null.
    var isNull: Bool {
        guard let scalar = node.scalar, scalar.isPlain else { return false }
        return ["", "~", "null", "Null", "NULL"].contains(scalar.string)
    }

    /// Says what was found in place of what was expected.
    func mismatch(_ expectation: String) -> SettingError {
        let found =
            switch node {
            case .mapping: "a mapping"
            case .sequence: "a list"
            case .scalar where isNull: "nothing"
            case .scalar(let scalar) where !scalar.isPlain: "'\(scalar.string)' in quotes"
            default: "'\(node.scalar?.string ?? "")'"
            }
        return SettingError(
            message: "expected \(expectation), found \(found)", mark: node.mark)
    }
}

/// Units that follow a whole number without a space, the largest first.
struct Units: Sendable {
    let units: [(name: String, factor: UInt64)]
    /// Whether a number without a unit counts ones.
    let allowsPlain: Bool

    static let bytes = Units(
        units: [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)],
        allowsPlain: true)
    static let durations = Units(
        units: [
            ("h", 3_600_000_000_000), ("m", 60_000_000_000), ("s", 1_000_000_000),
            ("ms", 1_000_000),
        ], allowsPlain: false)

    /// nil where the text has another form, or the number is too large.
    func value(_ text: String) -> UInt64? {
        let digits = text.prefix { $0.isASCII && $0.isNumber }
        guard let count = UInt64(digits) else { return nil }
        let name = text.dropFirst(digits.count)
        if name.isEmpty { return allowsPlain || count == 0 ? count : nil }
        guard let unit = units.first(where: { $0.name == name }) else { return nil }
        let (value, overflow) = count.multipliedReportingOverflow(by: unit.factor)
        return overflow ? nil : value
    }

    /// The shortest exact text.
    func text(_ value: UInt64) -> String {
        guard value > 0, let unit = units.first(where: { value % $0.factor == 0 }) else {
            return String(value)
        }
        return unit.factor == 1 ? String(value) : "\(value / unit.factor)\(unit.name)"
    }
}

/// `host:port`, unresolved.
struct ListenAddress: Equatable {
    /// Without brackets.
    let host: String
    let port: UInt16

    init?(_ text: String) {
        guard let colon = text.lastIndex(of: ":") else { return nil }
        let digits = text[text.index(after: colon)...]
        guard digits.allSatisfy({ $0.isASCII && $0.isNumber }), let port = UInt16(digits) else {
            return nil
        }
        var host = text[..<colon]
        if host.hasPrefix("["), host.hasSuffix("]") {
            host = host.dropFirst().dropLast()
            guard host.contains(":") else { return nil }
        } else if host.contains(":") {
            return nil
        }
        let isHost = host.utf8.allSatisfy { $0 > 0x20 && $0 < 0x7f && $0 != 0x2f }
        guard !host.isEmpty, isHost else { return nil }
        self.host = String(host)
        self.port = port
    }

    /// Whether every interface is meant.
    var isWildcard: Bool { ["0.0.0.0", "::"].contains(host) }

    /// Whether both would take the same connections. Port 0 is never the same.
    func overlaps(_ other: ListenAddress) -> Bool {
        guard port == other.port, port != 0 else { return false }
        func canonical(_ host: String) -> String { host == "localhost" ? "127.0.0.1" : host }
        return isWildcard || other.isWildcard || canonical(host) == canonical(other.host)
    }
}

/// Paths as text, without asking the file system.
enum FilePath {
    /// Without empty and `.` segments, with `..` applied; absolute.
    static func normalized(_ path: String) -> String {
        var segments: [Substring] = []
        for segment in path.split(separator: "/") where segment != "." {
            if segment == ".." { _ = segments.popLast() } else { segments.append(segment) }
        }
        return "/" + segments.joined(separator: "/")
    }

    /// The path itself, or below `base` where it is relative.
    static func absolute(_ path: String, base: String) -> String {
        normalized(path.hasPrefix("/") ? path : "\(base)/\(path)")
    }

    /// The directory that holds a file.
    static func directory(of path: String) -> String {
        guard let slash = path.lastIndex(of: "/") else { return "." }
        return slash == path.startIndex ? "/" : String(path[..<slash])
    }
}

/// Scalars as YAML text.
enum YAMLText {
    /// Whether a plain scalar is text, not a number, a truth value or null.
    static func isText(_ text: String) -> Bool {
        let others = ["", "~", "null", "true", "false"]
        return !others.contains(text.lowercased()) && Int(text) == nil && Double(text) == nil
    }

    /// Plain where that is safe, otherwise in double quotes.
    static func scalar(_ text: String) -> String {
        func isSafe(_ byte: UInt8) -> Bool {
            switch byte {
            case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "A")...UInt8(ascii: "Z"),
                UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "/"), UInt8(ascii: "."),
                UInt8(ascii: "_"), UInt8(ascii: ":"), UInt8(ascii: "-"):
                true
            default: false
            }
        }
        let isPlain =
            isText(text) && text.utf8.allSatisfy(isSafe) && !text.hasPrefix("-")
            && !text.hasPrefix(":") && !text.hasSuffix(":")
        if isPlain { return text }
        let escaped = text.map { $0 == "\"" || $0 == "\\" ? "\\\($0)" : String($0) }
        return "\"\(escaped.joined())\""
    }
}
