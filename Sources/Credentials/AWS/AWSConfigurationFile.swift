import Wire

/// Parses AWS's `config` and `credentials` files as far as they contain keys.
///
/// Sections in brackets hold `key = value` lines. A `#` or `;` at the start of a line, or after a space, begins a
/// comment. Indented lines belong to the previous key and are ignored.
struct AWSConfigurationFile {
    private var sections: [BytewiseString: [BytewiseString: String]] = [:]

    init(_ text: String) {
        var section: String?
        for line in text.split(whereSeparator: \.isNewline) {
            guard let first = line.utf8.first, !ASCII.isSpace(first) else { continue }
            if first == UInt8(ascii: "#") || first == UInt8(ascii: ";") { continue }
            if first == UInt8(ascii: "[") {
                section = line.dropFirst().prefix { $0 != "]" }
                    .split(whereSeparator: \.isWhitespace).joined(separator: " ")
                if let section, sections[section] == nil { sections[section] = [:] }
                continue
            }
            guard let section, let equals = line.firstIndex(of: "=") else { continue }
            let key = AWSConfigurationFile.trimmed(line[..<equals]).asciiLowercased()
            var value = line[line.index(after: equals)...]
            for comment in [" #", " ;", "\t#", "\t;"] {
                if let range = AWSConfigurationFile.range(of: comment, in: value) {
                    value = value[..<range]
                }
            }
            sections[section, default: [:]][key] = AWSConfigurationFile.trimmed(value)
        }
    }

    /// The keys of a profile: `NAME` in the credentials file, `profile NAME` in the config file, except for `default`.
    func profile(_ name: String, inConfiguration: Bool) -> [BytewiseString: String] {
        section(name, inConfiguration) ?? [:]
    }

    /// Whether the file has the profile, even without keys.
    func hasProfile(_ name: String, inConfiguration: Bool) -> Bool {
        section(name, inConfiguration) != nil
    }

    private func section(_ name: String, _ inConfiguration: Bool) -> [BytewiseString: String]? {
        guard inConfiguration else { return sections[name] }
        return sections["profile \(name)"] ?? (name == "default" ? sections[name] : nil)
    }

    private static func trimmed(_ text: Substring) -> String {
        String(decoding: ASCII.trimmed(Array(text.utf8)[...]), as: UTF8.self)
    }

    private static func range(of text: String, in value: Substring) -> Substring.Index? {
        value.indices.first { value[$0...].hasPrefix(text) }
    }
}
