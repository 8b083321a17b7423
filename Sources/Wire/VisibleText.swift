/// Makes text from a file, a request or an argument safe to print on a terminal.
package enum VisibleText {
    /// Whether a terminal may interpret a character: ASCII and C1 control characters (U+0080 to U+009F), format
    /// characters such as those that change the text direction, and line and paragraph separators.
    package static func isHidden(_ scalar: Unicode.Scalar) -> Bool {
        if scalar.value < 0x7F { return scalar.value < 0x20 }
        switch scalar.properties.generalCategory {
        case .control, .format, .lineSeparator, .paragraphSeparator: return true
        default: return false
        }
    }

    /// An argument for messages: a URL without user, query and fragment, which could grant access.
    package static func withoutSecrets(_ argument: String) -> String {
        let lower = argument.asciiLowercased()
        guard lower.hasPrefix("http://") || lower.hasPrefix("https://") else { return argument }
        let head = argument.utf8.prefix { $0 != UInt8(ascii: "?") && $0 != UInt8(ascii: "#") }
        let end = head.count < argument.utf8.count ? "?…" : ""
        let parts = head.split(separator: UInt8(ascii: "/"), maxSplits: 3, omittingEmptySubsequences: false)
        let shown = parts.enumerated().map { index, part in
            let at = index == 2 ? part.lastIndex(of: UInt8(ascii: "@")) : nil
            return at.map { "…" + String(decoding: part[$0...], as: UTF8.self) }
                ?? String(decoding: part, as: UTF8.self)
        }
        return shown.joined(separator: "/") + end
    }

    /// Escapes a character as in rules and JSON: `\u001b`, or two escapes for a surrogate pair.
    package static func escape(_ scalar: Unicode.Scalar) -> String {
        UTF16.encode(scalar)!.map { unit in
            let digits = String(unit, radix: 16)
            return "\\u" + String(repeating: "0", count: 4 - digits.count) + digits
        }.joined()
    }

    /// Appends a quoted text, escaping the quote, backslashes and hidden characters.
    package static func quote(_ text: String, in quote: Unicode.Scalar, to output: inout String) {
        output.unicodeScalars.append(quote)
        for scalar in text.unicodeScalars {
            switch scalar {
            case quote, "\\":
                output += "\\"
                output.unicodeScalars.append(scalar)
            case _ where isHidden(scalar): output += escapeShortly(scalar)
            default: output.unicodeScalars.append(scalar)
            }
        }
        output.unicodeScalars.append(quote)
    }

    /// Like ``escape(_:)``, but line breaks and tabs by their letters.
    private static func escapeShortly(_ scalar: Unicode.Scalar) -> String {
        switch scalar {
        case "\n": "\\n"
        case "\r": "\\r"
        case "\t": "\\t"
        default: escape(scalar)
        }
    }

    /// A text in one line: hidden characters are escaped, line breaks and tabs as `\n`, `\r` and `\t`.
    package static func escaped(_ text: String) -> String { escaped(text, keeping: "") }

    /// Like ``escaped(_:)``, but keeps line feeds and tabs.
    package static func escapedLines(_ text: String) -> String { escaped(text, keeping: "\n\t") }

    private static func escaped(_ text: String, keeping kept: String) -> String {
        guard text.unicodeScalars.contains(where: isHidden) else { return text }
        var result = ""
        for scalar in text.unicodeScalars {
            switch scalar {
            case _ where !isHidden(scalar) || kept.unicodeScalars.contains(scalar): result.unicodeScalars.append(scalar)
            default: result += escapeShortly(scalar)
            }
        }
        return result
    }
}
