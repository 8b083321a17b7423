extension Library {
    /// The tables of functions and methods for the language reference, in Markdown. A test compares them.
    static var reference: String {
        var text = "### Functions\n\n" + table(Function.allCases.map(\.entry))
        for type in TypeName.allCases {
            let entries = methods.filter { $0.owner == .type(type) }
            if !entries.isEmpty { text += "\n### Methods of \(type.rawValue)\n\n" + table(entries) }
        }
        return text
    }

    private static func table(_ entries: [LibraryEntry]) -> String {
        var text = "| call | gives | |\n|---|---|---|\n"
        for entry in entries {
            let warning = entry.warning.map { " Note: \($0)." } ?? ""
            let signature = entry.signature.replacing("|", with: " or ")
            let result = entry.result.replacing("|", with: " or ")
            text += "| `\(signature)` | \(result) | \(entry.summary)\(warning) |\n"
        }
        return text
    }
}
