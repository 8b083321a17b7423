import ArgumentParser
import Wire

/// `sluice get`: downloads objects.
package struct Get: ClientCommand {
    /// Name, help and examples.
    package static let configuration = CommandConfiguration(
        abstract: "Download objects.",
        usage: "sluice get [<options>] <source> ... [<target>]",
        discussion: """
            The last argument is local if there are several: a directory, or the file's name for one object; '-' is \
            standard output. The default is the current directory. Quoted globs match names: '*' and '?' within a \
            segment, '**' across segments. A file appears under its name when it is complete and verified; an \
            interrupted download continues if the object has not changed.

            EXAMPLES:
              sluice get photos/images/a.jpg
              sluice get 'photos/images/*.jpg' ./pictures/
              sluice get -R photos/site ./site
              sluice get photos/backup.tar - | tar t
            """)

    @Argument(
        help: ArgumentHelp(
            "Objects, globs or, with -R, folders; then the local target.", valueName: "source"))
    /// The sources and the target.
    package var arguments: [String]

    /// Options that several verbs have.
    @OptionGroup package var recursive: RecursiveOption
    @OptionGroup package var transfers: TransferOptions
    @OptionGroup package var connection: ConnectionOptions

    package init() {}

    /// The source of the download.
    package var sources: [String] {
        arguments.count == 1 ? arguments : Array(arguments.dropLast())
    }

    /// The last argument; without one, the current directory.
    package var target: String { arguments.count == 1 ? "." : arguments[arguments.count - 1] }

    /// - Throws: `ValidationError` for values that do not fit together.
    package func validate() throws {
        if arguments.isEmpty { throw ValidationError("Missing expected argument '<source> ...'") }
    }
}

/// `sluice cat`: prints objects.
package struct Cat: ClientCommand {
    /// Name, help and examples.
    package static let configuration = CommandConfiguration(
        abstract: "Write objects to standard output.",
        discussion: """
            The bytes are written as they come. They are verified at the end of each object: if they are damaged, the \
            exit status is not 0.

            EXAMPLES:
              sluice cat photos/notes.txt
              sluice cat 'sluice://photos/logs/2026-11-*.log' | grep error
            """)

    @Argument(help: ArgumentHelp("Objects or globs.", valueName: "object"))
    /// As they were written.
    package var sources: [String]

    /// Options that several verbs have.
    @OptionGroup package var connection: ConnectionOptions

    package init() {}
}
