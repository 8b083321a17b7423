import Buckets
import HTTPServer
import System
import Testing

import struct SecurityRules.DocumentPath

@testable import Gateway

@Suite struct ChangeTests {
    let driver = MemoryBucket()
    let client: Client

    init() {
        driver.seed(
            "a", [1],
            ObjectAttributes(contentType: "x/y", customMetadata: ["Keep": "1", "drop": "2"]))
        client = Client(driver)
    }

    private func patch(_ json: String, _ fields: [(String, String)] = []) async -> Client.Reply {
        await client.send("PATCH", "/b/photos/o/a", fields, text: json)
    }

    @Test func mergesAPatch() async {
        let reply = await patch(
            #"{"contentType":null,"cacheControl":"c","customMetadata":{"drop":null,"New":"é"}}"#,
            [("content-type", "application/json; charset=utf-8")])
        #expect(reply.status == 200)
        #expect(reply.json["metageneration"] as? String == "2")
        #expect(reply.json["contentType"] == nil)
        #expect(reply.json["cacheControl"] as? String == "c")
        #expect(reply.json["customMetadata"] as? [String: String] == ["Keep": "1", "New": "é"])
        #expect(reply.fields["etag"] == "\"e100\"")
        #expect(client.records.last.operation == .update)
        let got = await client.send("GET", "/b/photos/o/a")
        #expect(got.fields["content-type"] == "application/octet-stream")
        #expect(got.fields["x-object-meta-keep"] == "1")
        #expect(got.fields["x-object-metageneration"] == "2")
        let cleared = await patch(#"{"customMetadata":null}"#)
        #expect(cleared.json["customMetadata"] == nil)
    }

    @Test(arguments: [
        ("{", [], 400), (#"{"size":"2"}"#, [], 400), ("{}", [("content-type", "text/plain")], 415),
        ("{}", [("content-type", "application/merge-patch+json")], 200), ("{}", [], 200),
        ("{}", [("if-match", "\"x\"")], 412), ("{}", [("if-match", "\"e100\"")], 200),
        ("{}", [("x-object-metageneration-match", "2")], 412),
        (#"{"contentType":"\#(String(repeating: "a", count: 65536))"}"#, [], 413),
    ])
    func rejects(json: String, fields: [(String, String)], status: Int) async {
        let reply = await patch(json, fields)
        #expect(reply.status == status)
        if status >= 400 {
            let now = await client.send("GET", "/b/photos/o/a?metadata")
            #expect(now.json["metageneration"] as? String == "1")
        }
    }

    @Test func aMissingObjectIs404() async {
        for method in ["PATCH", "DELETE"] {
            for fields in [[], [("if-match", "*")]] {
                let reply = await client.send(method, "/b/photos/o/none", fields, text: "{}")
                #expect(reply.status == 404)
                #expect(reply.code == "object-not-found")
            }
        }
    }

    @Test func limitsTheResult() async {
        let half = String(repeating: "a", count: 4090)
        let first = await patch(#"{"customMetadata":{"x":"\#(half)"}}"#)
        #expect(first.status == 200)
        let second = await patch(#"{"customMetadata":{"y":"\#(half)"}}"#)
        #expect(second.status == 200)
        let third = await patch(#"{"customMetadata":{"z":"\#(half)"}}"#)
        #expect(third.status == 400)
        let swapped = await patch(#"{"customMetadata":{"x":null,"z":"\#(half)"}}"#)
        #expect(swapped.status == 200)
    }

    @Test func aPatchIsRepeatedAfterAConcurrentChange() async {
        driver.with {
            $0.beforeChange = { driver in
                driver.seed("a", [2], ObjectAttributes(customMetadata: ["other": "1"]))
            }
        }
        let reply = await patch(#"{"customMetadata":{"k":"v"}}"#)
        #expect(reply.status == 200)
        #expect(reply.json["generation"] as? String == "101")
        #expect(reply.json["customMetadata"] as? [String: String] == ["other": "1", "k": "v"])
        driver.with { $0.beforeChange = { driver in driver.seed("a", [3]) } }
        let pinned = await patch(
            #"{"customMetadata":{"k":"v"}}"#, [("x-object-generation-match", "101")])
        #expect(pinned.status == 412)
    }

    @Test func deletes() async {
        let failed = await client.send("DELETE", "/b/photos/o/a", [("if-match", "\"x\"")])
        #expect(failed.status == 412)
        let done = await client.send("DELETE", "/b/photos/o/a", [("if-match", "\"e100\"")])
        #expect(done.status == 204 && done.body.isEmpty)
        #expect(!done.fields.contains("content-length"))
        #expect(client.records.last.operation == .delete)
        let again = await client.send("DELETE", "/b/photos/o/a")
        #expect(again.status == 404)
    }
}

@Suite struct ProgressTests {
    /// Asks again and again for the document that it was given.
    private struct Stubborn: Policy {
        func decide(_ question: AuthorizationRequest) -> Decision {
            .needsDocuments([DocumentPath("/databases/(default)/documents/a/b")!])
        }
        func largestUpload(_ question: AuthorizationRequest) -> UInt64? { nil }
        func shadowDecision(_ question: AuthorizationRequest) -> Decision? { nil }
    }

    @Test func aPolicyWithoutProgressIsADenial() async {
        let client = Client(MemoryBucket(), policy: Stubborn())
        #expect(await client.send("GET", "/b/photos/o/a").status == 403)
        #expect(client.records.last.cause?.contains("ask again") == true)
    }
}

@Suite("After a commit") struct ChangeObserverTests {
    private final class Log: ChangeObserver {
        private let texts = Lock<[String]>([])
        var all: [String] { texts.withLock { $0 } }
        func changed(_ change: ObjectChange, in bucket: String) {
            let text =
                switch change {
                case .stored(let object): "stored \(object.name) \(object.size)"
                case .patched(let object): "patched \(object.name) \(object.metageneration)"
                case .deleted(let name): "deleted \(name)"
                }
            texts.withLock { $0.append("\(bucket): \(text)") }
        }
    }

    @Test func onlySuccessfulChangesAreObserved() async {
        let log = Log()
        let bucket = Bucket(
            name: BucketName("photos")!, driver: MemoryBucket(), policy: OpenPolicy(),
            changeObservers: [log])
        let client = Client([bucket])
        for (method, body) in [
            ("PUT", "xyz"), ("PATCH", #"{"contentType":"a/b"}"#), ("PATCH", "{"), ("DELETE", ""),
            ("DELETE", ""),
        ] {
            _ = await client.send(
                method, "/b/photos/o/a", body: body.isEmpty ? nil : Array(body.utf8))
        }
        _ = await client.send("PUT", "/b/photos/o/a", [("if-match", "\"x\"")], text: "x")
        #expect(
            log.all == ["photos: stored a 3", "photos: patched a 2", "photos: deleted a"])
    }
}
