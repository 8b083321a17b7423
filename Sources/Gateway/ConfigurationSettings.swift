import Foundation
import HTTPServer

/// One key of the configuration: how it is read, printed and explained. The one table of them drives the reader,
/// `sluice check`, and the test of `config/reference.yaml`.
public struct Setting<Root: Sendable>: Sendable {
    /// Names from the top, joined by dots.
    public let path: String
    /// What the value may be, in words, with its unit and range.
    public let type: String
    /// What it means, in a sentence.
    public let meaning: String
    /// Reads a scalar.
    let set: @Sendable (inout Root, String) throws(SettingError) -> Void
    /// Reads a sequence; nil for a scalar.
    let setList: (@Sendable (inout Root, [String]) throws(SettingError) -> Void)?
    /// The value as YAML.
    public let print: @Sendable (Root) -> String
}

/// A value that a setting can't take.
struct SettingError: Error {
    var message: String
}

extension Setting {
    init(
        _ path: String, _ type: String, _ meaning: String,
        set: @escaping @Sendable (inout Root, String) throws(SettingError) -> Void,
        print: @escaping @Sendable (Root) -> String
    ) {
        self.init(
            path: path, type: type, meaning: meaning, set: set, setList: nil, print: print)
    }

    static func text(
        _ path: String, _ type: String, _ field: WritableKeyPath<Root, String?> & Sendable,
        _ meaning: String
    ) -> Setting {
        Setting(path, type, meaning) { root, text throws(SettingError) in
            guard !text.utf8.contains(0) else { throw SettingError(message: "has a NUL") }
            root[keyPath: field] = isNull(text) ? nil : text
        } print: {
            $0[keyPath: field].map(Setting.quoted) ?? "null"
        }
    }

    static func choice(
        _ path: String, _ choices: [String], _ field: WritableKeyPath<Root, String> & Sendable,
        _ meaning: String
    ) -> Setting {
        let type = choices.joined(separator: ", ")
        return Setting(path, "one of " + type, meaning) { root, text throws(SettingError) in
            guard choices.contains(text) else {
                throw SettingError(message: "is '\(text)', and may be one of \(type)")
            }
            root[keyPath: field] = text
        } print: {
            $0[keyPath: field]
        }
    }

    static func flag(
        _ path: String, _ field: WritableKeyPath<Root, Bool> & Sendable, _ meaning: String
    ) -> Setting {
        Setting(path, "true or false", meaning) { root, text throws(SettingError) in
            guard text == "true" || text == "false" else {
                throw SettingError(message: "is '\(text)', and may be true or false")
            }
            root[keyPath: field] = text == "true"
        } print: {
            String($0[keyPath: field])
        }
    }

    static func integer(
        _ path: String, _ range: ClosedRange<Int>, _ field: WritableKeyPath<Root, Int> & Sendable,
        _ meaning: String
    ) -> Setting {
        Setting(path, "\(range.lowerBound) to \(range.upperBound)", meaning) {
            root, text throws(SettingError) in
            guard let value = Int(text) else {
                throw SettingError(message: "is '\(text)', and must be a whole number")
            }
            guard range.contains(value) else {
                throw SettingError(
                    message: "is \(value), and may be \(range.lowerBound) to \(range.upperBound)")
            }
            root[keyPath: field] = value
        } print: {
            String($0[keyPath: field])
        }
    }

    static func bytes<Value: FixedWidthInteger & Sendable>(
        _ path: String, _ range: ClosedRange<Value>,
        _ field: WritableKeyPath<Root, Value> & Sendable, _ meaning: String
    ) -> Setting {
        let bounds =
            "\(Units.bytes(UInt64(range.lowerBound))) to \(Units.bytes(UInt64(range.upperBound)))"
        return Setting(path, "bytes, \(bounds)", meaning) { root, text throws(SettingError) in
            guard let value = Units.parseBytes(text) else {
                throw SettingError(
                    message:
                        "is '\(text)', and must be a number of bytes such as 4096, 32KiB or 8MiB")
            }
            guard value >= UInt64(range.lowerBound), value <= UInt64(range.upperBound) else {
                throw SettingError(message: "is \(text), and may be \(bounds)")
            }
            root[keyPath: field] = Value(value)
        } print: {
            Units.bytes(UInt64($0[keyPath: field]))
        }
    }

    static func duration(
        _ path: String, _ range: ClosedRange<UInt64>,
        _ field: WritableKeyPath<Root, UInt64> & Sendable, _ meaning: String
    ) -> Setting {
        let bounds = "\(Units.duration(range.lowerBound)) to \(Units.duration(range.upperBound))"
        return Setting(path, "duration, \(bounds)", meaning) { root, text throws(SettingError) in
            guard let value = Units.parseDuration(text) else {
                throw SettingError(
                    message: "is '\(text)', and must be a duration such as 500ms, 10s or 2m")
            }
            guard range.contains(value) else {
                throw SettingError(message: "is \(text), and may be \(bounds)")
            }
            root[keyPath: field] = value
        } print: {
            Units.duration($0[keyPath: field])
        }
    }

    /// A list; in the environment and in flags with commas between.
    static func list(
        _ path: String, _ type: String, _ field: WritableKeyPath<Root, [String]> & Sendable,
        each isValid: @escaping @Sendable (String) -> Bool = { _ in true }, _ meaning: String
    ) -> Setting {
        let set: @Sendable (inout Root, [String]) throws(SettingError) -> Void = {
            root, values throws(SettingError) in
            if let wrong = values.first(where: { !isValid($0) }) {
                throw SettingError(message: "has '\(wrong)', and must be a \(type)")
            }
            root[keyPath: field] = values
        }
        return Setting(path: path, type: type, meaning: meaning) {
            root, text throws(SettingError) in
            let values = text.split(separator: ",").map { $0.trimmingCharacters(in: .whitespaces) }
            try set(&root, values)
        } setList: { root, values throws(SettingError) in
            try set(&root, values)
        } print: {
            "[" + $0[keyPath: field].map(Setting.quoted).joined(separator: ", ") + "]"
        }
    }

    /// A string as YAML that reads back as the same string.
    static func quoted(_ text: String) -> String {
        let plain = text.utf8.allSatisfy { byte in
            ASCII.isLetter(byte) || ASCII.isDigit(byte) || "-_./".utf8.contains(byte)
        }
        let isWord = ["null", "true", "false", "yes", "no", "on", "off", ""].contains(
            text.lowercased())
        let begins = text.utf8.first.map { ASCII.isLetter($0) || $0 == UInt8(ascii: "/") } ?? false
        if plain && begins && !isWord && Double(text) == nil { return text }
        var quoted = "\""
        for scalar in text.unicodeScalars {
            switch scalar {
            case "\"", "\\": quoted += "\\" + String(scalar)
            case _ where scalar.properties.generalCategory == .control || scalar.value > 0x7e:
                let digits = String(scalar.value, radix: 16)
                quoted += "\\U" + String(repeating: "0", count: 8 - digits.count) + digits
            default: quoted.unicodeScalars.append(scalar)
            }
        }
        return quoted + "\""
    }
}

/// Whether a plain scalar stands for nothing.
func isNull(_ text: String) -> Bool { ["null", "~", ""].contains(text) }

/// Bytes and durations in the forms of the configuration.
enum Units {
    private static let byteUnits: [(String, UInt64)] = [
        ("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10),
    ]
    private static let timeUnits: [(String, UInt64)] = [
        ("h", 3_600_000_000_000), ("m", 60_000_000_000), ("s", 1_000_000_000), ("ms", 1_000_000),
    ]

    static func bytes(_ value: UInt64) -> String {
        for (unit, size) in byteUnits where value >= size && value % size == 0 {
            return "\(value / size)\(unit)"
        }
        return String(value)
    }

    static func parseBytes(_ text: String) -> UInt64? {
        for (unit, size) in byteUnits where text.hasSuffix(unit) {
            return scaled(text.dropLast(unit.count), size)
        }
        return scaled(text[...], 1)
    }

    static func duration(_ value: UInt64) -> String {
        for (unit, size) in timeUnits where value >= size && value % size == 0 {
            return "\(value / size)\(unit)"
        }
        return value == 0 ? "0s" : "\(value / 1_000_000)ms"
    }

    static func parseDuration(_ text: String) -> UInt64? {
        for unit in ["ms", "h", "m", "s"] where text.hasSuffix(unit) {
            return scaled(text.dropLast(unit.count), timeUnits.first { $0.0 == unit }!.1)
        }
        return nil
    }

    private static func scaled(_ digits: Substring, _ size: UInt64) -> UInt64? {
        guard !digits.isEmpty, digits.utf8.allSatisfy(ASCII.isDigit), let value = UInt64(digits)
        else { return nil }
        let (product, overflow) = value.multipliedReportingOverflow(by: size)
        return overflow ? nil : product
    }
}
