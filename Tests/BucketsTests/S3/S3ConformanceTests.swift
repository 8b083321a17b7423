import BucketConformance
import Glibc
import HTTPClient
import System
import Testing
import Wire

@testable import Buckets

/// Creates the bucket, with retries until the server is up.
func prepare(_ bucket: S3Bucket) async throws {
    let deadline = EventLoop.monotonicNow() + 60_000_000_000
    while true {
        do {
            let made = try await bucket.call(ClientRequest("PUT", bucket.target(nil)))
            if made.status == 200 { return }
            throw S3ErrorResponse(made).error("making a bucket")
        } catch {
            if EventLoop.monotonicNow() > deadline { throw error }
        }
    }
}

func note(_ text: String) { _ = (text + "\n").withCString { write(2, $0, strlen($0)) } }

@Suite("The S3 driver conforms", .serialized, .timeLimit(.minutes(10)))
struct S3ConformanceTests {
    /// The cases that the protocol cannot support.
    static let everywhere = [
        "generations increase, even after a deletion": "the same bytes have the same entity tag",
        "no concurrent patch is lost": "a copy compares bytes, not metadata",
    ]
    /// The cases that depend on races. If they are listed for a server, they may also pass.
    static let unsteady: Set<String> = [
        "concurrent uploads of one name never mix",
        "exactly one of many concurrent create-only uploads succeeds",
        "exactly one of many concurrent create-only copies succeeds",
        "no update of a concurrent read-modify-write is lost",
    ]
    /// The cases that each server fails, and why. All other cases must pass.
    static let known: [S3Server: [String: String]] = [
        .moto: everywhere.merging([
            "concurrent uploads of one name never mix": "it responds to some of them with 500",
            "exactly one of many concurrent create-only uploads succeeds":
                "it may respond to some of them with 500",
            "no update of a concurrent read-modify-write is lost":
                "it may respond to some of them with 500",
        ]) { $1 },
        .seaweedfs: everywhere.merging([
            "every valid name works, and names are compared by their bytes":
                "a segment has at most 255 bytes, which KeyTooLongError says",
            "names that can't be opened are not listed": "it takes a//b for a/b",
            "a list continues after an entry that was deleted":
                "it shows a folder for a moment after it has become empty",
            "folder markers are objects, and items only of lists that ask for them": "a folder has no bytes",
        ]) { $1 },
        .rclone: everywhere.merging([
            "objects of every size are read back unchanged":
                "the metadata of an object in parts is another one later",
            "concurrent uploads of one name never mix": "it writes a file while it is read",
            "attributes are read back unchanged": "it limits metadata to 2,000 bytes, as AWS does",
            "every valid name works, and names are compared by their bytes":
                "names are those of files: at most 255 bytes, and not both a and a/b",
            "names are folded into prefixes, in byte order": "not both a and a/b",
            "pages of any size contain every entry once, in order": "not both a and a/b",
            "names that can't be opened are not listed": "it takes a//b for a file's path",
            "folder markers are objects, and items only of lists that ask for them": "folders are no objects",
            "lists with folder markers contain every entry once, in pages of any size": "folders are no objects",
        ]) { $1 },
    ]

    @Test(.enabled(if: S3Server.directory != nil), arguments: S3Server.allCases)
    func conforms(_ server: S3Server) async throws {
        let running = try RunningServer(server)
        let capabilities = try await onLoop {
            let bucket = try await running.makeBucket()
            let found = try await bucket.capabilities()
            await bucket.close()
            return found
        }
        note("\(server): \(capabilities)")
        for name in BucketConformance.leftOut(for: capabilities) {
            note("\(server) is not asked: \(name)")
        }
        let known = Self.known[server] ?? [:]
        for check in BucketConformance.cases(for: capabilities) {
            note("\(server): \(check)")
            do {
                try await check.run { try await running.makeBucket() }
                if let reason = known[check.name], !Self.unsteady.contains(check.name) {
                    Issue.record("\(server) passes '\(check)' now, which is listed: \(reason)")
                }
            } catch {
                if let reason = known[check.name] {
                    note("\(server) can't: \(check): \(reason)")
                } else {
                    Issue.record("\(server): \(check): \(error)")
                }
            }
        }
    }

    @Test(.enabled(if: S3Server.directory == nil))
    func serversAreNotInstalled() {
        note("SLUICE_UPSTREAMS names no directory: not tested with \(S3Server.allCases)")
    }
}
