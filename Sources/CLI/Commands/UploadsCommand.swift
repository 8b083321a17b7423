import ArgumentParser
import Gateway
import Wire

/// `sluice uploads`: upload sessions.
struct UploadsCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "uploads",
        abstract: "Upload sessions: list, cancel and remove them, make keys.",
        subcommands: [
            ListUploads.self, CancelUpload.self, SweepUploads.self, NewUploadKey.self,
        ])
}

/// `sluice uploads new-key`: makes a line for the file of keys.
private struct NewUploadKey: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "new-key",
        abstract: "Print a line for the key file of uploads.keys, with a new key.",
        discussion: """
            Put the line at the top of the file: the first key seals new sessions, and all of them open what they \
            sealed. A key can be removed when uploads.lifetime has passed. All replicas need the same file.
            """)

    @Argument(help: "The key's ID: 1 to 64 of a-z, A-Z, 0-9, '-', '_' and '.'.")
    var id: String

    func run() throws {
        do throws(LinkKeys.Malformed) {
            print(try LinkKeys.generate(id: id))
        } catch {
            throw ValidationError("\(error)")
        }
    }
}
