import ArgumentParser
import Wire

/// `sluice meta …`: changes the metadata of objects.
package struct Meta: ParsableCommand {
    /// Name, help and examples.
    package static let configuration = CommandConfiguration(
        abstract: "Change the metadata of objects.",
        discussion: """
            EXAMPLES:
              sluice meta set photos/a.jpg contentType=image/jpeg
              sluice meta unset photos/a.jpg cacheControl
            """,
        subcommands: [MetaSet.self, MetaUnset.self])

    /// The properties that can be changed, apart from custom metadata.
    package static let properties = [
        "contentType", "cacheControl", "contentDisposition", "contentEncoding", "contentLanguage",
    ]
    /// The prefix of a key of custom metadata.
    package static let custom = "customMetadata."

    package init() {}

    fileprivate static func check(_ key: Substring) throws {
        let isCustom = key.hasPrefix(custom) && key.utf8.count > custom.utf8.count
        guard isCustom || properties.contains(where: { $0.utf8.elementsEqual(key.utf8) }) else {
            throw ValidationError(
                """
                '\(key)' is not a property: write \(properties.joined(separator: ", ")), or \(custom)KEY for your own.
                """)
        }
    }
}

/// `sluice meta set`: sets properties.
package struct MetaSet: ClientCommand {
    /// Name, help and examples.
    package static let configuration = CommandConfiguration(
        commandName: "set",
        abstract: "Set properties of an object.",
        discussion: """
            The properties are contentType, cacheControl, contentDisposition, contentEncoding and contentLanguage, and \
            customMetadata.KEY for your own. Others keep their values.

            EXAMPLES:
              sluice meta set photos/a.jpg cacheControl=public,max-age=300
              sluice meta set photos/a.jpg contentType=image/jpeg customMetadata.place=Oslo
            """)

    @Argument(help: ArgumentHelp("An object or a glob.", valueName: "object"))
    /// As it was written.
    package var source: String

    @Argument(help: ArgumentHelp("PROPERTY=VALUE.", valueName: "property=value"))
    /// `PROPERTY=VALUE`.
    package var assignments: [String]

    @Flag(help: "Print the metadata after the change, one JSON object per line.")
    /// Whether to print JSON.
    package var json = false

    /// Options that several verbs have.
    @OptionGroup package var connection: ConnectionOptions

    package init() {}

    /// Keys and values.
    package var pairs: [(key: String, value: String)] {
        assignments.map { text in
            let equals = text.utf8.firstIndex(of: UInt8(ascii: "=")) ?? text.endIndex
            return (String(text[..<equals]), String(text[equals...].dropFirst()))
        }
    }

    /// - Throws: `ValidationError` for values that do not fit together.
    package func validate() throws {
        for text in assignments {
            guard let equals = text.utf8.firstIndex(of: UInt8(ascii: "=")) else {
                throw ValidationError("PROPERTY=VALUE is expected, not '\(text)'.")
            }
            try Meta.check(text[..<equals])
        }
    }
}

/// `sluice meta unset`: removes properties.
package struct MetaUnset: ClientCommand {
    /// Name, help and examples.
    package static let configuration = CommandConfiguration(
        commandName: "unset",
        abstract: "Remove properties of an object.",
        discussion: """
            EXAMPLES:
              sluice meta unset photos/a.jpg cacheControl
              sluice meta unset photos/a.jpg customMetadata.place
            """)

    @Argument(help: ArgumentHelp("An object or a glob.", valueName: "object"))
    /// As it was written.
    package var source: String

    @Argument(help: ArgumentHelp("The properties.", valueName: "property"))
    /// The properties.
    package var keys: [String]

    @Flag(help: "Print the metadata after the change, one JSON object per line.")
    /// Whether to print JSON.
    package var json = false

    /// Options that several verbs have.
    @OptionGroup package var connection: ConnectionOptions

    package init() {}

    /// - Throws: `ValidationError` for values that do not fit together.
    package func validate() throws {
        for key in keys { try Meta.check(key[...]) }
    }
}
