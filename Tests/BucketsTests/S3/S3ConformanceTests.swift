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
        "generations rise, also after a deletion": "the same bytes have the same entity tag",
        "patches at once all count": "a copy compares bytes, not metadata",
    ]
    /// The cases that depend on races. If they are listed for a server, they may also pass.
    static let unsteady: Set<String> = [
        "uploads of one name at once never mix",
        "of many create-only uploads at once exactly one wins",
        "read, change, write back: no update is lost",
    ]
    /// The cases that each server fails, and why. All other cases must pass.
    static let known: [S3Server: [String: String]] = [
        .moto: everywhere.merging([
            "uploads of one name at once never mix": "it responds to some of them with 500",
            "of many create-only uploads at once exactly one wins":
                "it may respond to some of them with 500",
            "read, change, write back: no update is lost":
                "it may respond to some of them with 500",
        ]) { $1 },
        .seaweedfs: everywhere.merging([
            "any valid name works, and names differ by their bytes":
                "a segment has at most 255 bytes, which KeyTooLongError says",
            "names that can't be opened are not shown": "it takes a//b for a/b",
            "a page goes on after an entry that is gone":
                "it shows a folder for a moment after it has become empty",
        ]) { $1 },
        .rclone: everywhere.merging([
            "bytes of every size come back as they were sent":
                "the metadata of an object in parts is another one later",
            "uploads of one name at once never mix": "it writes a file while it is read",
            "attributes come back exactly": "it limits metadata to 2,000 bytes, as AWS does",
            "any valid name works, and names differ by their bytes":
                "names are those of files: at most 255 bytes, and not both a and a/b",
            "folders fold, and entries come in byte order": "not both a and a/b",
            "pages of any size give every entry exactly once, in order": "not both a and a/b",
            "names that can't be opened are not shown": "it takes a//b for a file's path",
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
