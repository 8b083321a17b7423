import ArgumentParser
import Wire

/// `sluice put`: uploads files.
package struct Put: TransferCommand {
    /// Name, help and examples.
    package static let configuration = CommandConfiguration(
        abstract: "Upload files.",
        usage: "sluice put [<options>] <file> ... <target>",
        discussion: """
            With one FILE the target is the object's name, or a folder if it ends in '/'. With several it is a folder. \
            '-' is standard input. A file that changes while it is sent is an error. A file of more than 64 MiB is sent \
            in parts over several connections, if the bucket has that. After an interruption the same command continues \
            where the gateway stands.

            EXAMPLES:
              sluice put big.iso photos/images/
              sluice put -j 8 big.iso photos/images/
              sluice put a.jpg b.jpg sluice://photos/images/
              sluice put -R ./site photos/site
              tar c . | sluice put - photos/backup.tar
              sluice put --meta place=Oslo -- -odd-name photos/odd.jpg
            """)

    @Argument(
        help: ArgumentHelp(
            "Local files, or - for standard input; then the target: BUCKET/PATH, sluice://BUCKET/PATH or a URL.",
            valueName: "file"), completion: .file())
    /// The sources and the target.
    package var arguments: [String]

    /// Options that several verbs have.
    @OptionGroup package var recursive: RecursiveOption
    @OptionGroup package var properties: PropertyOptions
    @OptionGroup package var transfers: TransferOptions
    @OptionGroup package var connection: ConnectionOptions

    package init() {}

    /// - Throws: `ValidationError` for values that do not fit together.
    package func validate() throws {
        try checkArguments()
        if sources.contains("-"), sources.count > 1 {
            throw ValidationError("Standard input can't be sent together with files.")
        }
    }
}
