import ArgumentParser
import Wire

/// `sluice ls`: lists folders.
package struct List: ClientCommand {
    /// Name, help and examples.
    package static let configuration = CommandConfiguration(
        commandName: "ls",
        abstract: "List folders and objects.",
        discussion: """
            Names are relative to the folder that is listed; folders end in '/'. -l adds size in bytes and time, in \
            the local time zone; '-' is what the gateway does not show.

            EXAMPLES:
              sluice ls photos
              sluice ls -l photos/images/
              sluice ls -R --json sluice://photos | jq -r .path
              sluice ls 'photos/images/*.jpg'
            """)

    @Argument(
        help: ArgumentHelp("Folders, objects or globs (default: the bucket of SLUICE_BUCKET).", valueName: "path"))
    /// As they were written.
    package var paths: [String] = []

    @Flag(name: .short, help: "Add size and time.")
    /// Whether size and time are printed.
    package var long = false

    @Flag(name: [.customShort("R"), .long], help: "List folders with everything in them.")
    /// Whether a folder includes everything below it.
    package var recursive = false

    @Flag(help: "Print one JSON object per line.")
    /// Whether to print JSON.
    package var json = false

    /// Options that several verbs have.
    @OptionGroup package var connection: ConnectionOptions

    package init() {}
}

/// `sluice stat`: prints metadata.
package struct Stat: ClientCommand {
    /// Name, help and examples.
    package static let configuration = CommandConfiguration(
        abstract: "Print the metadata of objects.",
        discussion: """
            EXAMPLES:
              sluice stat photos/images/a.jpg
              sluice stat --json 'photos/images/*' | jq .size
            """)

    @Argument(help: ArgumentHelp("Objects or globs.", valueName: "object"))
    /// As they were written.
    package var sources: [String]

    @Flag(help: "Print one JSON object per line.")
    /// Whether to print JSON.
    package var json = false

    /// Options that several verbs have.
    @OptionGroup package var connection: ConnectionOptions

    package init() {}
}

/// `sluice rm`: deletes objects.
package struct Remove: ClientCommand {
    /// Name, help and examples.
    package static let configuration = CommandConfiguration(
        commandName: "rm",
        abstract: "Delete objects.",
        discussion: """
            EXAMPLES:
              sluice rm photos/images/a.jpg
              sluice rm 'photos/tmp/*.part'
              sluice rm -R photos/tmp/
            """)

    @Argument(help: ArgumentHelp("Objects, globs or, with -R, folders.", valueName: "object"))
    /// As they were written.
    package var sources: [String]

    /// Options that several verbs have.
    @OptionGroup package var recursive: RecursiveOption
    @OptionGroup package var transfers: TransferOptions
    @OptionGroup package var connection: ConnectionOptions

    package init() {}
}
