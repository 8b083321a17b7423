import Gateway
import HTTPClient
import System
import Wire

/// One configuration key: how it is read, printed and explained. The reader, `sluice check` and
/// `config/reference.yaml` all use the same table of settings.
public struct Setting<Root: Sendable>: Sendable {
    /// The key's names from the root, joined by dots.
    public let path: String
    /// The type in words, with unit and range: `a whole number from 1 to 64`.
    public let type: String
    /// The explanation, in one or two sentences.
    public let meaning: String
    let read: @Sendable (inout Root, ConfigurationInput) throws(SettingError) -> Void
    /// Takes the value of another root.
    public let copy: @Sendable (inout Root, Root) -> Void
    /// The value as YAML.
    public let print: @Sendable (Root) -> String
    /// Whether the value is a secret.
    private(set) var isSecret: @Sendable (Root) -> Bool = { _ in false }

    /// - Parameters:
    ///   - parse: Reads a value of `type`.
    ///   - text: Writes it as YAML.
    init<Value>(
        _ path: String, _ type: String, _ field: WritableKeyPath<Root, Value> & Sendable, _ meaning: String,
        parse: @escaping @Sendable (ConfigurationInput) throws(SettingError) -> Value,
        print text: @escaping @Sendable (Value) -> String
    ) {
        self.path = path
        self.type = type
        self.meaning = meaning
        read = { (root, input) throws(SettingError) in
            root[keyPath: field] = try parse(input)
        }
        copy = { $0[keyPath: field] = $1[keyPath: field] }
        self.print = { text($0[keyPath: field]) }
    }
}

extension Setting {
    /// `host:port` or `unix:/path`; null switches the listener off.
    static func address(
        _ path: String, _ field: WritableKeyPath<Root, String?> & Sendable, _ meaning: String
    ) -> Setting {
        let form = "an address such as 127.0.0.1:8080, '[::1]:8080' or unix:/run/sluice/http.sock"
        return optionalText(path, form + ", or null for off", field, meaning) {
            (text, _) throws(SettingError) in
            if text.hasPrefix(SocketAddress.unixPrefix), SocketAddress(text) == nil {
                throw SettingError(
                    message:
                        "the path of a socket begins with / and has at most 107 bytes: '\(text)'")
            }
            guard ListenAddress(text) != nil else {
                throw SettingError(message: "expected \(form), found '\(text)'")
            }
            return text
        }
    }

    /// A path, made absolute. The value `word` is not a path and is kept.
    static func path(
        _ path: String, _ field: WritableKeyPath<Root, String?> & Sendable, or word: String? = nil, _ meaning: String
    ) -> Setting {
        let type = "a path, " + (word.map { "\($0), " } ?? "") + "or null"
        return optionalText(path, type, field, meaning) { (text, base) throws(SettingError) in
            if text == word { return text }
            return FilePath.absolute(text, base: base)
        }
    }

    /// A name that the service defines, such as a bucket's; `what` describes its kind.
    static func name(
        _ path: String, _ what: String, _ field: WritableKeyPath<Root, String?> & Sendable, _ meaning: String
    ) -> Setting {
        optionalText(path, "\(what), or null", field, meaning) { (text, _) throws(SettingError) in
            func isAlphanumeric(_ byte: UInt8) -> Bool {
                ASCII.isLetter(byte) || ASCII.isDigit(byte)
            }
            let isWord = text.utf8.allSatisfy { isAlphanumeric($0) || "-_.:".utf8.contains($0) }
            guard isWord, text.utf8.count <= 222, text.utf8.contains(where: isAlphanumeric)
            else {
                throw SettingError(message: "expected \(what), found '\(text)'")
            }
            return text
        }
    }

    /// Any text of visible ASCII, such as a claim's name.
    static func text(_ path: String, _ field: WritableKeyPath<Root, String?> & Sendable, _ meaning: String) -> Setting {
        optionalText(path, "text, or null", field, meaning) { (text, _) throws(SettingError) in
            guard text.utf8.allSatisfy({ (0x21...0x7e).contains($0) }), text.utf8.count <= 1024
            else { throw SettingError(message: "expected visible ASCII, found '\(text)'") }
            return text
        }
    }

    /// The name of a caller group.
    static func word(_ path: String, _ field: WritableKeyPath<Root, String?> & Sendable, _ meaning: String) -> Setting {
        optionalText(path, "a name, or null", field, meaning) { (text, _) throws(SettingError) in
            if let fault = CallerGroup.fault(ofName: text) {
                throw SettingError(message: fault)
            }
            return text
        }
    }

    /// A URL, or a path that is made absolute.
    static func keys(_ path: String, _ field: WritableKeyPath<Root, String?> & Sendable, _ meaning: String) -> Setting {
        let form = "a URL such as https://accounts.example.com/keys, or a path"
        return optionalText(path, form + ", or null", field, meaning) {
            (text, base) throws(SettingError) in
            text.contains("://") ? text : FilePath.absolute(text, base: base)
        }
    }

    /// A SHA-256 digest in hexadecimal.
    static func digest(_ path: String, _ field: WritableKeyPath<Root, String?> & Sendable, _ meaning: String) -> Setting
    {
        let form = "64 hexadecimal digits"
        return optionalText(path, form + ", or null", field, meaning) {
            (text, _) throws(SettingError) in
            // Don't quote the text: it may be the token itself.
            guard text.utf8.count == 64, Hexadecimal.decode(text.utf8) != nil else {
                throw SettingError(message: "expected \(form)")
            }
            return text
        }
    }

    /// `http://` or `https://` with a host and perhaps a port.
    static func endpoint(
        _ path: String, _ field: WritableKeyPath<Root, String?> & Sendable, _ meaning: String
    ) -> Setting {
        let form = "a URL such as https://s3.example.com or http://127.0.0.1:8333"
        return optionalText(path, form + ", or null", field, meaning) {
            (text, _) throws(SettingError) in
            guard Origin(text) != nil else {
                // Don't quote the text if it may contain a password.
                let found = text.contains("@") ? " or a user" : ", found '\(text)'"
                throw SettingError(message: "expected \(form), without a path\(found)")
            }
            return text
        }
    }

    /// `http://` or `https://` with a host, and perhaps a port, a path and a query.
    static func url(_ path: String, _ field: WritableKeyPath<Root, String?> & Sendable, _ meaning: String) -> Setting {
        let form = "a URL such as http://127.0.0.1:4318"
        return optionalText(path, form + ", or null", field, meaning) {
            (text, _) throws(SettingError) in
            // The text is not quoted: it may have a password or a key.
            guard Origin.cut(text) != nil else { throw SettingError(message: "expected \(form)") }
            return text
        }
    }

    /// The URL of a webhook, whose query may be a secret: it is never printed and never quoted in an error.
    static func webhook(
        _ path: String, _ field: WritableKeyPath<Root, String?> & Sendable, _ meaning: String
    ) -> Setting {
        let form = "a URL such as https://hooks.example.com/sluice"
        let type = form + ", or null"
        var setting = Setting(path, type, field, meaning) { (input) throws(SettingError) in
            if input.isNull { return nil }
            let text = try input.text(type)
            guard Origin.cut(text) != nil, !text.hasSuffix("?<redacted>") else {
                throw SettingError(message: "expected \(form)", mark: input.node.mark)
            }
            return text
        } print: {
            $0.map { YAMLText.scalar($0.contains("?") ? $0.prefix { $0 != "?" } + "?<redacted>" : $0) } ?? "null"
        }
        setting.isSecret = { $0[keyPath: field]?.contains("?") == true }
        return setting
    }

    /// The URL of an HTTP proxy. Its user is never printed and never quoted in an error.
    static func proxy(
        _ path: String, _ field: WritableKeyPath<Root, ProxyAddress?> & Sendable, _ meaning: String
    ) -> Setting {
        let form = "a URL such as http://proxy.example.com:3128"
        let type = form + ", or null"
        var setting = Setting(path, type, field, meaning) { (input) throws(SettingError) in
            if input.isNull { return nil }
            guard let proxy = ProxyAddress(try input.text(type)) else {
                throw SettingError(message: "expected \(form)", mark: input.node.mark)
            }
            return proxy
        } print: {
            $0.map { YAMLText.scalar($0.description) } ?? "null"
        }
        setting.isSecret = { $0[keyPath: field]?.hasUser == true }
        return setting
    }

    /// `default`, `anonymous`, or a path that is made absolute.
    static func credentials(
        _ path: String, _ field: WritableKeyPath<Root, String> & Sendable, _ meaning: String
    ) -> Setting {
        let words = [Configuration.defaultCredentials, Configuration.anonymous]
        let type = "\(words.joined(separator: ", ")), or a path"
        return Setting(path, type, field, meaning) { (input) throws(SettingError) in
            let text = try input.text(type)
            if words.contains(text) { return text }
            if !text.contains(where: { "/.".contains($0) }) {
                var error = input.mismatch(type)
                error.suggestion = Spelling.nearest(to: text, among: words) ?? "./\(text)"
                throw error
            }
            return FilePath.absolute(text, base: input.base)
        } print: {
            YAMLText.scalar($0)
        }
    }

    /// Secret text, which is never printed and never quoted in an error.
    static func secret(_ path: String, _ field: WritableKeyPath<Root, String?> & Sendable, _ meaning: String) -> Setting
    {
        let type = "a secret, or null"
        let redacted = "<redacted>"
        var setting = Setting(path, type, field, meaning) { (input) throws(SettingError) in
            if input.isNull { return nil }
            guard let text = try? input.text(type), text != redacted else {
                throw SettingError(
                    message: "expected a secret as text, in quotes where it looks like a number", mark: input.node.mark)
            }
            return text
        } print: {
            $0 == nil ? "null" : redacted
        }
        setting.isSecret = { $0[keyPath: field] != nil }
        return setting
    }

    private static func optionalText(
        _ path: String, _ type: String, _ field: WritableKeyPath<Root, String?> & Sendable, _ meaning: String,
        check: @escaping @Sendable (String, _ base: String) throws(SettingError) -> String
    ) -> Setting {
        Setting(path, type, field, meaning) { (input) throws(SettingError) in
            input.isNull ? nil : try check(try input.text(type), input.base)
        } print: {
            $0.map(YAMLText.scalar) ?? "null"
        }
    }

    static func choice(
        _ path: String, _ choices: [String], _ field: WritableKeyPath<Root, String> & Sendable, _ meaning: String
    ) -> Setting {
        let type = "one of " + choices.joined(separator: ", ")
        return Setting(path, type, field, meaning) { (input) throws(SettingError) in
            let (text, _) = try input.scalar(type)
            if choices.contains(text) { return text }
            var error = input.mismatch(type)
            error.suggestion = Spelling.nearest(to: text, among: choices)
            throw error
        } print: {
            $0
        }
    }

    static func flag(_ path: String, _ field: WritableKeyPath<Root, Bool> & Sendable, _ meaning: String) -> Setting {
        let type = "true or false"
        return Setting(path, type, field, meaning) { (input) throws(SettingError) in
            switch try input.plain(type) {
            case "true": return true
            case "false": return false
            default: throw input.mismatch(type)
            }
        } print: {
            String($0)
        }
    }

    /// The same, where null is the value of another key.
    static func flag(_ path: String, _ field: WritableKeyPath<Root, Bool?> & Sendable, _ meaning: String) -> Setting {
        let type = "true, false, or null"
        return Setting(path, type, field, meaning) { (input) throws(SettingError) in
            if input.isNull { return nil }
            switch try input.plain(type) {
            case "true": return true
            case "false": return false
            default: throw input.mismatch(type)
            }
        } print: {
            $0.map { String($0) } ?? "null"
        }
    }

    static func integer(
        _ path: String, _ range: ClosedRange<Int>, _ field: WritableKeyPath<Root, Int> & Sendable, _ meaning: String
    ) -> Setting {
        let type = "a whole number from \(range.lowerBound) to \(range.upperBound)"
        return Setting(path, type, field, meaning) { (input) throws(SettingError) in
            guard let value = Int(try input.plain(type)), range.contains(value) else {
                throw input.mismatch(type)
            }
            return value
        } print: {
            String($0)
        }
    }

    /// A part of a whole.
    static func fraction(
        _ path: String, _ field: WritableKeyPath<Root, Double> & Sendable, _ meaning: String
    ) -> Setting {
        let type = "a number from 0 to 1"
        return Setting(path, type, field, meaning) { (input) throws(SettingError) in
            guard let value = Double(try input.plain(type)), (0...1).contains(value) else {
                throw input.mismatch(type)
            }
            return value
        } print: {
            $0 == $0.rounded() ? String(Int($0)) : String($0)
        }
    }

    /// The permissions of a file in octal digits.
    static func mode(_ path: String, _ field: WritableKeyPath<Root, UInt32> & Sendable, _ meaning: String) -> Setting {
        let type = "permissions in octal digits such as 0660, to 0777"
        return Setting(path, type, field, meaning) { (input) throws(SettingError) in
            let (text, _) = try input.scalar(type)
            guard text.utf8.allSatisfy({ (0x30...0x37).contains($0) }),
                let mode = UInt32(text, radix: 8), mode <= 0o777
            else { throw input.mismatch(type) }
            return mode
        } print: {
            let digits = String($0, radix: 8)
            return "\"" + String(repeating: "0", count: max(0, 4 - digits.count)) + digits + "\""
        }
    }

    /// A number of bytes, plain or with `KiB`, `MiB`, `GiB`, `TiB`.
    static func bytes<Value: FixedWidthInteger & Sendable>(
        _ path: String, _ range: ClosedRange<Value>,
        _ field: WritableKeyPath<Root, Value> & Sendable, _ meaning: String
    ) -> Setting {
        quantity(path, range, .bytes, "bytes such as 4096 or 32KiB", field, meaning)
    }

    /// Nanoseconds, written with `ms`, `s`, `m` or `h`.
    static func duration(
        _ path: String, _ range: ClosedRange<UInt64>,
        _ field: WritableKeyPath<Root, UInt64> & Sendable, _ meaning: String
    ) -> Setting {
        quantity(path, range, .durations, "a duration such as 500ms or 10s", field, meaning)
    }

    private static func quantity<Value: FixedWidthInteger & Sendable>(
        _ path: String, _ range: ClosedRange<Value>, _ units: Units, _ form: String,
        _ field: WritableKeyPath<Root, Value> & Sendable, _ meaning: String
    ) -> Setting {
        let bounds = [range.lowerBound, range.upperBound].map { units.text(UInt64($0)) }
        let type = "\(form), from \(bounds[0]) to \(bounds[1])"
        return Setting(path, type, field, meaning) { (input) throws(SettingError) in
            let count = units.value(try input.plain(type))
            guard let value = count.flatMap(Value.init(exactly:)), range.contains(value) else {
                throw input.mismatch(type)
            }
            return value
        } print: {
            units.text(UInt64($0))
        }
    }

    /// A list of texts; `check` returns why an element is not valid.
    static func list(
        _ path: String, _ type: String, _ field: WritableKeyPath<Root, [String]> & Sendable,
        _ meaning: String, check: @escaping @Sendable (String) -> String? = { _ in nil }
    ) -> Setting {
        let type = "a list of " + type
        return Setting(path, type, field, meaning) { (input) throws(SettingError) in
            var texts: [String] = []
            for element in try input.elements(type) {
                let text = try element.text(type)
                if let reason = check(text) {
                    throw SettingError(message: reason, mark: element.node.mark)
                }
                texts.append(text)
            }
            return texts
        } print: {
            "[" + $0.map(YAMLText.scalar).joined(separator: ", ") + "]"
        }
    }
}
