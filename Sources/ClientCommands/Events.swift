import ArgumentParser
import Wire

/// `sluice events`: the changes of buckets.
package struct Events: ParsableCommand {
    /// Name and help.
    package static let configuration = CommandConfiguration(
        abstract: "Follow the changes of a bucket.", subcommands: [EventsTail.self])

    package init() {}
}

/// `sluice events tail`: prints changes as they are made.
package struct EventsTail: ClientCommand {
    /// Name, help and examples.
    package static let configuration = CommandConfiguration(
        commandName: "tail",
        abstract: "Print changes of a folder as they are made, until interrupted.",
        discussion: """
            Each line is a change: its time, what has changed (stored, updated or deleted), and the object's name. Needs \
            a bucket in a directory, and eventOptions.watch at the gateway.

            EXAMPLES:
              sluice events tail photos
              sluice events tail --json photos/images/ | jq -r .name
            """)

    @Argument(help: ArgumentHelp("A bucket or a folder.", valueName: "folder"))
    /// As it was written.
    package var folder: String

    @Flag(help: "Print one JSON object per line.")
    /// Whether to print JSON.
    package var json = false

    /// Options that several verbs have.
    @OptionGroup package var connection: ConnectionOptions

    package init() {}
}
