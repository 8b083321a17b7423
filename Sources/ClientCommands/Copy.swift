import ArgumentParser
import Wire

/// `sluice cp`: copies objects between buckets, gateways and local files.
package struct Copy: TransferCommand {
    /// Name, help and examples.
    package static let configuration = CommandConfiguration(
        commandName: "cp",
        abstract: "Copy objects between buckets, gateways and local files.",
        usage: "sluice cp [<options>] <source> ... <target>",
        discussion: """
            Within a bucket the gateway copies. Between buckets the bytes stream through this program, and the copy is \
            verified by its hashes. Type, cache settings and custom metadata are kept. An argument is remote if it begins with sluice://, gs://, http:// or https://, and \
            local if it begins with '/', './' or '../'. Any other one is local if the other side is remote and such a \
            file exists, and remote otherwise.

            EXAMPLES:
              sluice cp sluice://photos/a.jpg sluice://archive/2026/a.jpg
              sluice cp -R photos/images sluice://archive/images
              sluice cp photos/a.jpg https://other.example.com/b/photos/o/a.jpg
              sluice cp ./a.jpg photos/images/
            """)

    @Argument(
        help: ArgumentHelp(
            """
            Objects, globs, files or, with -R, folders; then the target: a name, or a folder that ends in '/'. With several sources it is a \
            folder.
            """, valueName: "source"))
    /// The sources and the target.
    package var arguments: [String]

    /// Options that several verbs have.
    @OptionGroup package var recursive: RecursiveOption
    @OptionGroup package var transfers: TransferOptions
    @OptionGroup package var connection: ConnectionOptions

    package init() {}
}

/// `sluice mv`: moves objects.
package struct Move: TransferCommand {
    /// Name, help and examples.
    package static let configuration = CommandConfiguration(
        commandName: "mv",
        abstract: "Move or rename objects.",
        usage: "sluice mv [<options>] <source> ... <target>",
        discussion: """
            Within a bucket the gateway moves. Between buckets it copies as 'sluice cp' does, and deletes each source after \
            its copy is verified. A source that was replaced meanwhile is not deleted. Both sides are remote.

            EXAMPLES:
              sluice mv photos/a.jpg photos/images/b.jpg
              sluice mv 'photos/2025-*.jpg' photos/2025/
              sluice mv -R photos/old sluice://archive/old
            """)

    @Argument(
        help: ArgumentHelp(
            """
            Objects, globs or, with -R, folders; then the target: a name, or a folder that ends in '/'. With several sources it is a \
            folder.
            """, valueName: "source"))
    /// The sources and the target.
    package var arguments: [String]

    /// Options that several verbs have.
    @OptionGroup package var recursive: RecursiveOption
    @OptionGroup package var transfers: TransferOptions
    @OptionGroup package var connection: ConnectionOptions

    package init() {}
}
