import Buckets
import Glibc
import System
import TestSupport
import Testing
import Wire

@testable import Gateway

/// Requests of the Firebase dialect, without connections.
@Suite struct FirebaseSessionTests {
    private let directory = TemporaryDirectory()

    private func client(_ driver: any BucketDriver) -> Client {
        Client([
            Bucket(
                name: BucketName("photos")!, driver: driver, policy: OpenPolicy(),
                firebase: FirebaseSettings(administrators: [.init(uid: "alice")]))
        ])
    }

    private func begin(_ client: Client) async throws -> String {
        // Without X-Goog-Upload-Protocol too.
        let reply = await client.send(
            "POST", "/v0/b/photos/o?name=a", [("x-goog-upload-command", "start")], text: "{}")
        #expect(reply.status == 200 && reply.body.isEmpty)
        let url = try #require(reply.fields["x-goog-upload-url"])
        return String(url.dropFirst("http://localhost".count))
    }

    private func part(at offset: Int) -> [(String, String)] {
        [("x-goog-upload-command", "upload"), ("x-goog-upload-offset", "\(offset)")]
    }

    /// Three requests repeat a chunk. Each begins when the one before has stored more than it has found.
    @Test func bytesThatAnOlderRequestStoresMeanwhileAreSkipped() async throws {
        let pool = BlockingPool(threads: 1)
        let driver = try DirectoryBucket(
            path: directory.path + "/a", pool: pool, readers: 1,
            clock: { 1_767_225_600_000_000 })
        let client = client(driver)
        let path = try await begin(client)
        var ends: [Int32] = [-1, -1]
        #expect(pipe(&ends) == 0)
        let blocked = ends[0]
        pool.submit {
            var byte: UInt8 = 0
            _ = read(blocked, &byte, 1)
            close(blocked)
        }
        var requests: [Client.Pending] = []
        for body: [UInt8] in [[1], [1, 2], [1, 2, 3]] {
            requests.append(await client.begin("POST", path, part(at: 0), body: body))
        }
        close(ends[1])
        var replies: [Client.Reply] = []
        for request in requests { replies.append(await request.reply) }
        for reply in replies { #expect([200, 503].contains(reply.status), "\(reply.text)") }
        #expect(replies[2].status == 200 && replies[2].fields["x-goog-upload-size-received"] == "3")
        let end = await client.send("POST", path, [("x-goog-upload-command", "finalize")])
        #expect(end.status == 200)
        #expect(await client.send("GET", "/b/photos/o/a").body == [1, 2, 3])
        await driver.close()
    }

    @Test func aStoreWithoutSessionsEndsTheUpload() async {
        let reply = await client(MemoryBucket()).send(
            "POST", "/v0/b/photos/o?name=a",
            [("x-goog-upload-protocol", "resumable"), ("x-goog-upload-command", "start")],
            text: "{}")
        #expect(reply.status == 400 && reply.fields["x-goog-upload-status"] == "final")
        #expect(reply.text.contains("no uploads in several requests"))
    }

    @Test(arguments: ["/v0/b/photos/o/a", "/v0/b/none/o", "/v0/b/photos", "/v0/x", "/v0/b/%ff/o/a"])
    func everyPreflightSucceeds(path: String) async {
        let reply = await client(MemoryBucket()).send(
            "OPTIONS", path,
            [("origin", "https://a.example"), ("access-control-request-method", "POST")])
        #expect(reply.status == 204 && reply.fields["access-control-allow-origin"] == "*")
        #expect(reply.fields["access-control-allow-methods"]?.contains("POST") == true)
    }

    @Test(arguments: [#"{"contentEncoding":"","contentDisposition":""}"#])
    func emptyPropertiesAreUnset(json: String) throws {
        let attributes = try UploadDescription(json: Array(json.utf8), type: nil).attributes()
        #expect(attributes.contentEncoding == nil && attributes.contentDisposition == nil)
        let patch = try AttributePatch(firebase: Array(json.utf8))
        #expect(patch.contentEncoding == .remove && patch.contentDisposition == .remove)
    }
}
