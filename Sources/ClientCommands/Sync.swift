import ArgumentParser
import Wire

/// `sluice sync`: makes a folder equal to another.
package struct Sync: ClientCommand {
    /// Name, help and examples.
    package static let configuration = CommandConfiguration(
        abstract: "Make a folder or directory like another one.",
        discussion: """
            Transfers what is absent or different: by size and hash, by time only if the gateway knows no hash. \
            --delete removes what the source does not have; nothing is removed after an error. Both sides may be \
            remote. Which argument is local follows the rule of 'sluice cp'; a directory that does not exist yet is \
            written as './NAME'. Symbolic links to directories, sockets and the like are not taken.

            --watch does it again whenever something below a remote source changes, until it is ended. The gateway must \
            record the changes (eventOptions.watch).

            EXAMPLES:
              sluice sync ./site photos/site --delete
              sluice sync photos/site ./site
              sluice sync --watch --delete photos/config ./config
              sluice sync --dry-run ./site photos/site
              sluice sync -j 16 sluice://photos sluice://photos-cloud
            """)

    @Argument(help: "A folder or a local directory.", completion: .directory)
    /// As it was written.
    package var source: String

    @Argument(help: "A folder or a local directory.", completion: .directory)
    /// As it was written.
    package var target: String

    @Flag(help: "Remove from the target what the source does not have.")
    /// Whether entries that only the target has are removed.
    package var delete = false

    @Flag(help: "Print what would be done, and change nothing.")
    /// Whether nothing is changed.
    package var dryRun = false

    @Flag(help: "Do it again after each change of the source, until it is ended.")
    /// Whether changes of the source are waited for.
    package var watch = false

    /// Options that several verbs have.
    @OptionGroup package var transfers: TransferOptions
    @OptionGroup package var connection: ConnectionOptions

    package init() {}

    /// - Throws: `ValidationError` for options that exclude each other.
    package func validate() throws {
        if watch, dryRun { throw ValidationError("--watch and --dry-run exclude each other.") }
    }
}
