import ArgumentParser
import Gateway
import Identity
import Wire

/// `sluice s3`: keys of S3 clients.
struct S3Command: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "s3", abstract: "Make keys for S3 clients.",
        subcommands: [NewAccessKey.self, NewSessionKey.self])
}

/// `sluice s3 new-key`: makes an access key.
private struct NewAccessKey: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "new-key",
        abstract: "Print a line for the file of s3.keys, with a new access key.",
        discussion: """
            The line has the access key's ID, its secret, and the caller's request.auth.uid. Add it to the file, and give \
            ID and secret to the client. A signature can only be verified with the secret itself, so keep the file \
            readable for its owner alone.
            """)

    @Argument(help: "The caller's request.auth.uid.")
    var uid: String

    @Option(help: "The caller group; 's3' if it is left out.")
    var group: String?

    func run() throws {
        do throws(AccessKeys.Malformed) {
            print(try AccessKeys.generate(uid: uid, group: group))
        } catch {
            throw ValidationError("\(error)")
        }
    }
}

/// `sluice s3 new-session-key`: makes a line for the file of session keys.
private struct NewSessionKey: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "new-session-key",
        abstract: "Print a line for the file of s3.sessionKeys, with a new key.",
        discussion: """
            Put the line at the top of the file: the first key seals new temporary credentials, and all of them open \
            what they sealed. A key can be removed when s3.maximumSession has passed; removing it earlier ends its \
            credentials. All replicas need the same file.
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
