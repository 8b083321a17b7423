import Buckets
import Testing
import Wire

@testable import Gateway

@Suite struct CloudEventTests {
    private func object(_ name: String, attributes: ObjectAttributes = ObjectAttributes(), md5: [UInt8]? = nil)
        -> ObjectMetadata
    {
        ObjectMetadata(
            name: name, generation: 1_700_000_000_000_001, metageneration: 3, size: 1 << 53, created: 1_700_000_000_000,
            updated: 1_700_000_001_000, md5: md5, crc32c: 0x0102_0304, etag: "17", attributes: attributes)
    }

    private func text(_ bytes: [UInt8]) -> String { String(decoding: bytes, as: UTF8.self) }

    @Test func structuredFormIsExact() {
        let attributes = ObjectAttributes(contentType: "text/plain", customMetadata: ["who": "me"])
        let event = BucketEvent(
            sequence: 42, kind: .finalized, time: 1_700_000_001_234_567,
            object: object("images/\"ü\".txt", attributes: attributes, md5: Array(repeating: 0, count: 16)),
            otherGeneration: 99)
        #expect(
            text(CloudEvent(event, bucket: "photos").json) == """
                {"specversion":"1.0","id":"1700000000000001-3-1700000001234567-f",\
                "source":"//storage.googleapis.com/projects/_/buckets/photos",\
                "type":"google.cloud.storage.object.v1.finalized","subject":"objects/images/\\"ü\\".txt",\
                "time":"2023-11-14T22:13:21.234Z","bucket":"photos","sequence":"00000000000000000042",\
                "partitionkey":"images/\\"ü\\".txt","overwrotegeneration":"99","datacontenttype":"application/json",\
                "data":{"kind":"storage#object","id":"photos/images/\\"ü\\".txt/1700000000000001",\
                "name":"images/\\"ü\\".txt","bucket":"photos","generation":"1700000000000001","metageneration":"3",\
                "size":"9007199254740992","contentType":"text/plain","metadata":{"who":"me"},\
                "md5Hash":"AAAAAAAAAAAAAAAAAAAAAA==","crc32c":"AQIDBA==","etag":"17",\
                "timeCreated":"2023-11-14T22:13:20.000Z","updated":"2023-11-14T22:13:21.000Z",\
                "timeStorageClassUpdated":"2023-11-14T22:13:20.000Z","storageClass":"STANDARD"}}
                """)
    }

    @Test func kindsHaveTheTypesOfGoogle() {
        func attributes(_ kind: BucketEvent.Kind, _ other: Int64?) -> HeaderFields {
            CloudEvent(
                BucketEvent(sequence: 1, kind: kind, time: 5, object: object("a"), otherGeneration: other), bucket: "b",
                source: "urn:x"
            ).fields
        }
        let replaced = attributes(.replaced, 7)
        #expect(replaced["ce-type"] == "google.cloud.storage.object.v1.deleted")
        #expect(replaced["ce-overwrittenbygeneration"] == "7" && replaced["ce-overwrotegeneration"] == nil)
        #expect(replaced["ce-id"]?.hasSuffix("-5-d") == true && replaced["ce-source"] == "urn:x")
        let patched = attributes(.metadataUpdated, nil)
        #expect(patched["ce-type"] == "google.cloud.storage.object.v1.metadataUpdated")
        #expect(patched["ce-id"]?.hasSuffix("-m") == true)
        for kind in BucketEvent.Kind.allCases { #expect(BucketEvent.Kind(name: kind.name) == kind) }
    }

    @Test func downloadTokensNeverAppear() {
        var attributes = ObjectAttributes()
        attributes.system.downloadTokens = ["geheim"]
        let event = BucketEvent(sequence: 1, kind: .finalized, time: 5, object: object("a", attributes: attributes))
        #expect(!text(CloudEvent(event, bucket: "b").json).contains("geheim"))
        #expect(!text(CloudEvent(event, bucket: "b").data).contains("geheim"))
    }

    @Test(arguments: [
        ("plain", "plain"), ("a b", "a%20b"), ("\"%", "%22%25"), ("ü", "%C3%BC"), ("😀~", "%F0%9F%98%80~"),
        ("\u{7f}\t", "%7F%09"),
    ])
    func fieldsArePercentEncoded(_ value: String, _ expected: String) {
        #expect(CloudEvent.fieldValue(value) == expected)
    }

    @Test func estimateIsAnUpperBound() {
        let long = String(repeating: "ü", count: 512)
        let attributes = ObjectAttributes(
            contentType: String(repeating: "\"", count: 1000),
            customMetadata: ["k": String(repeating: "\\", count: 8000), "e": ""])
        for name in ["a", long, String(repeating: "\"", count: 1024)] {
            let event = CloudEvent(
                BucketEvent(
                    sequence: 1, kind: .finalized, time: 5, object: object(name, attributes: attributes),
                    otherGeneration: .max), bucket: "bucket")
            #expect(event.json.count <= event.estimatedBytes, "\(event.json.count)")
        }
    }
}

@Suite struct WebhookKeyTests {
    /// The example of Standard Webhooks' libraries.
    @Test func signatureIsThatOfTheSpecification() throws {
        let keys = try WebhookKeys(text: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n")
        let body = Array("{\"test\": 2432232314}".utf8)
        let fields = keys.fields(id: "msg_p5jXN8AQM9LWM0D4loKWxJek", timestamp: 1_614_265_330, body: body)
        #expect(fields["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=")
        #expect(fields["webhook-id"] == "msg_p5jXN8AQM9LWM0D4loKWxJek")
        #expect(fields["webhook-timestamp"] == "1614265330")
    }

    @Test func allKeysSign() throws {
        let text = "# new\n\(WebhookKeys.generate())  # comment\r\n\n\(WebhookKeys.generate())\n"
        let signatures = try WebhookKeys(text: text).fields(id: "a", timestamp: 1, body: [])["webhook-signature"]
        #expect(signatures?.split(separator: " ").count == 2)
    }

    @Test(arguments: [
        "", "# nothing\n", "whsec_c2hvcnQ=\n", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n", "whsec_!!!!\n",
        String(repeating: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n", count: 11),
    ])
    func malformedFilesAreRejectedWithoutAQuote(_ text: String) {
        let error = #expect(throws: WebhookKeys.Malformed.self) { _ = try WebhookKeys(text: text) }
        #expect(error?.description.contains("MfKQ") == false && error?.description.contains("c2hv") == false)
    }

    @Test func silenceIsBounded() {
        #expect(WebhookSender.silence("5") == 5_000_000)
        #expect(WebhookSender.silence("0") == 0)
        #expect(WebhookSender.silence("4294967295") == 3_600_000_000)
        #expect(WebhookSender.silence("99999999999999999999") == 3_600_000_000)
        #expect(WebhookSender.silence("-1") == nil)
        #expect(WebhookSender.silence(nil) == nil)
        #expect(WebhookSender.silence("Thu, 01 Jan 1970 00:00:30 GMT", now: 20) == 10_000_000)
        #expect(WebhookSender.silence("Thu, 01 Jan 1970 00:00:10 GMT", now: 20) == 0)
    }

    @Test func subscriptionsChooseKindsAndNames() throws {
        var one = EventSubscription(
            name: "s", origin: .init(.https, host: "x"), target: "/?key=geheim", buckets: ["b"])
        one.paths = try PathRules(allowed: ["images/**"], denied: ["images/*/private"])
        #expect(one.wants(.finalized, "images/a") && !one.wants(.replaced, "images/a"))
        #expect(!one.wants(.finalized, "other/a") && !one.wants(.finalized, "images/x/private"))
        #expect(EventFilter.of("c", [one], isWatched: false) == nil)
        let filter = try #require(EventFilter.of("b", [one], isWatched: false))
        #expect(filter.wants(.deleted, "images/a") && !filter.wants(.deleted, "z") && !filter.isComplete)
        let watched = try #require(EventFilter.of("b", [one], isWatched: true))
        #expect(watched.isComplete && watched.wants(.deleted, "z") && !watched.wants(.replaced, "images/a"))
    }
}
