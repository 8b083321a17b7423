import SecurityRules
import System
import Wire
import YAML

/// A value that is not valid for its setting.
struct SettingError: Error {
    var message: String
    /// The nearest valid spelling.
    var suggestion: String?
    /// The location of the error, if it is more precise than the value's.
    var mark: Mark?
}

/// A value as written in the file or in an override.
struct ConfigurationInput {
    let node: Node
    /// The absolute path of the base directory for relative paths.
    let base: String
    /// Whether the value comes from a variable or a flag, which have no YAML quotes.
    let isOverride: Bool

    /// The text of a scalar, and whether it was quoted.
    /// - Throws: ``SettingError`` if the value is a mapping or a sequence.
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

    /// Text that is not empty and has no control characters. In the file, a number or a Boolean must be quoted.
    func text(_ expectation: String) throws(SettingError) -> String {
        let (text, quoted) = try scalar(expectation)
        let isText = isOverride || quoted || YAMLText.isText(text)
        let isPrintable = text.unicodeScalars.allSatisfy { $0.value >= 0x20 && $0.value != 0x7f }
        guard isText, !text.isEmpty, isPrintable else { throw mismatch(expectation) }
        return text
    }

    /// The elements of a list. In an override, commas separate them, or they stand in brackets as in a file.
    func elements(_ expectation: String) throws(SettingError) -> [ConfigurationInput] {
        if isOverride, let text = node.scalar?.string {
            if text.hasPrefix("["), let list = try? Node.load(text)?.sequence {
                return list.map { ConfigurationInput(node: $0, base: base, isOverride: true) }
            }
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

    /// Whether the value is YAML's null.
    var isNull: Bool {
        guard let scalar = node.scalar, scalar.isPlain else { return false }
        return ["", "~", "null", "Null", "NULL"].contains(scalar.string)
    }

    /// The error that the value is not what was expected.
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

/// Units that follow a whole number without a space, largest first.
struct Units: Sendable {
    let units: [(name: String, factor: UInt64)]
    /// Whether a number may have no unit.
    let allowsPlain: Bool

    static let bytes = Units(
        units: [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)], allowsPlain: true)
    static let durations = Units(
        units: [
            ("h", 3_600_000_000_000), ("m", 60_000_000_000), ("s", 1_000_000_000),
            ("ms", 1_000_000),
        ], allowsPlain: false)

    /// Parses a number with its unit; nil if the text is malformed or the number too large.
    func value(_ text: String) -> UInt64? {
        let digits = text.prefix { $0.isASCII && $0.isNumber }
        guard let count = UInt64(digits) else { return nil }
        let name = text.dropFirst(digits.count)
        if name.isEmpty { return allowsPlain || count == 0 ? count : nil }
        guard let unit = units.first(where: { $0.name == name }) else { return nil }
        let (value, overflow) = count.multipliedReportingOverflow(by: unit.factor)
        return overflow ? nil : value
    }

    /// The shortest exact text of a number.
    func text(_ value: UInt64) -> String {
        guard value > 0, let unit = units.first(where: { value % $0.factor == 0 }) else {
            return String(value)
        }
        return unit.factor == 1 ? String(value) : "\(value / unit.factor)\(unit.name)"
    }
}

/// `host:port`, not resolved, or `unix:/path`.
struct ListenAddress: Equatable {
    /// Without brackets. For a path, the whole text.
    let host: String
    /// 0 for a path.
    let port: UInt16

    init?(_ text: String) {
        if text.hasPrefix(SocketAddress.unixPrefix) {
            guard SocketAddress(text) != nil else { return nil }
            host = text
            port = 0
            return
        }
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

    /// Whether the address means all interfaces.
    var isWildcard: Bool { ["0.0.0.0", "::"].contains(host) }

    /// Whether both addresses would accept the same connections. Port 0 overlaps with nothing.
    func overlaps(_ other: ListenAddress) -> Bool {
        if host.hasPrefix(SocketAddress.unixPrefix) { return host == other.host }
        guard port == other.port, port != 0 else { return false }
        func canonical(_ host: String) -> String { host == "localhost" ? "127.0.0.1" : host }
        return isWildcard || other.isWildcard || canonical(host) == canonical(other.host)
    }
}

/// Operations on paths as text, without file system access.
enum FilePath {
    /// The path without empty, `.` and `..` segments; absolute.
    static func normalized(_ path: String) -> String {
        var segments: [Substring] = []
        for segment in path.split(separator: "/") where segment != "." {
            if segment == ".." { _ = segments.popLast() } else { segments.append(segment) }
        }
        return "/" + segments.joined(separator: "/")
    }

    /// The path itself if it is absolute, otherwise below `base`.
    static func absolute(_ path: String, base: String) -> String {
        normalized(path.hasPrefix("/") ? path : "\(base)/\(path)")
    }

    /// The directory that contains a file.
    static func directory(of path: String) -> String {
        guard let slash = path.lastIndex(of: "/") else { return "." }
        return slash == path.startIndex ? "/" : String(path[..<slash])
    }
}

/// Scalars as YAML text.
enum YAMLText {
    /// Whether a plain scalar is text: not a number, a Boolean or null.
    static func isText(_ text: String) -> Bool {
        let others = ["", "~", "null", "true", "false"]
        return !others.contains(text.asciiLowercased()) && Int(text) == nil && Double(text) == nil
    }

    /// The scalar, plain if that is safe, otherwise in double quotes.
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
        let escaped = text.unicodeScalars.map { scalar in
            if scalar == "\"" || scalar == "\\" { return "\\\(scalar)" }
            guard VisibleText.isHidden(scalar) else { return String(scalar) }
            let digits = String(scalar.value, radix: 16)
            return "\\U" + String(repeating: "0", count: 8 - digits.count) + digits
        }
        return "\"\(escaped.joined())\""
    }
}
