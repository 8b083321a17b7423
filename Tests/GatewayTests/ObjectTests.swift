import Buckets
import HTTPServer
import Testing

@testable import Gateway

private let forest = "/b/photos/o/images/forest.jpg"

@Suite struct UploadTests {
    let driver = MemoryBucket()

    @Test func createsThenReplaces() async {
        let client = Client(driver)
        let first = await client.send(
            "PUT", forest,
            [
                ("content-type", "image/x"), ("cache-control", "no-cache"),
                ("x-object-meta-author", "ada"),
            ], text: "hello world")
        #expect(first.status == 201)
        #expect(first.wasContinued)
        #expect(first.fields["content-type"] == "application/json")
        #expect(first.fields["etag"] == "\"e100\"")
        #expect(first.fields["location"] == forest)
        #expect(first.json["fullPath"] as? String == "images/forest.jpg")
        #expect(first.json["name"] as? String == "forest.jpg")
        #expect(first.json["size"] as? String == "11")
        #expect(first.json["md5Hash"] as? String == "XrY7u+Ae7tCTyyK7j1rNww==")
        #expect(first.json["crc32c"] as? String == "yZRlqg==")
        #expect(first.json["contentType"] as? String == "image/x")
        #expect(first.json["customMetadata"] as? [String: String] == ["author": "ada"])
        #expect(client.records.last.operation == .create)
        #expect(client.records.last.bytesIn == 11)
        #expect(client.records.last.bytesOut == UInt64(first.body.count))
        let second = await client.send("PUT", forest, text: "")
        #expect(second.status == 200)
        #expect(second.json["contentType"] as? String == "image/jpeg")
        #expect(second.json["customMetadata"] == nil)
        #expect(driver.bytes(of: "images/forest.jpg") == [])
    }

    @Test func acceptsABodyOfUnknownLengthAndNone() async {
        let client = Client(driver)
        let unknown = await client.send(
            "PUT", forest, body: Array("abcdefgh".utf8), declared: .some(nil))
        #expect(unknown.status == 201)
        #expect(driver.bytes(of: "images/forest.jpg") == Array("abcdefgh".utf8))
        let none = await client.send("PUT", "/b/photos/o/empty")
        #expect(none.status == 201)
        #expect(driver.bytes(of: "empty") == [])
        #expect(!none.wasContinued)
    }

    @Test func encodesTheLocation() async {
        let reply = await Client(driver).send("PUT", "/b/photos/o/%C3%BC%20a%23%2Fb+c", text: "")
        #expect(reply.fields["location"] == "/b/photos/o/%C3%BC%20a%23/b%2Bc")
        #expect(reply.json["fullPath"] as? String == "ü a#/b+c")
    }

    @Test(arguments: [
        [("content-md5", "XrY7u+Ae7tCTyyK7j1rNww==")],
        [("repr-digest", "crc32c=:yZRlqg==:, unknown=1")],
        [("content-digest", "sha-256=:uU0nuZNNPgilLlLX2n2r+sSE7+N6U4DukIj3rOLvzek=:")],
    ])
    func verifiesDigests(fields: [(String, String)]) async {
        let client = Client(driver)
        let good = await client.send("PUT", forest, fields, text: "hello world")
        #expect(good.status == 201)
        let bad = await client.send("PUT", forest, fields, text: "hello_world")
        #expect(bad.status == 400)
        #expect(bad.code == "checksum-mismatch")
        #expect(driver.bytes(of: "images/forest.jpg") == Array("hello world".utf8))
        #expect(driver.calls.suffix(2) == ["begin images/forest.jpg", "abort images/forest.jpg"])
    }

    @Test(arguments: [
        ([("content-range", "bytes 0-1/2")], 400, "invalid-argument"),
        ([("content-md5", "x")], 400, "invalid-argument"),
        ([("content-digest", "x=")], 400, "invalid-argument"),
        ([("content-type", "a"), ("content-type", "b")], 400, "invalid-argument"),
        ([("if-match", "\"x\"")], 412, "precondition-failed"),
        ([("if-match", "*")], 412, "precondition-failed"),
        ([("x-object-generation-match", "5")], 412, "precondition-failed"),
        ([("x-object-generation-match", "x")], 400, "invalid-argument"),
    ])
    func rejectsBeforeTheBody(fields: [(String, String)], status: Int, code: String) async {
        let reply = await Client(driver).send("PUT", forest, fields, text: "hello")
        #expect(reply.status == status)
        #expect(reply.code == code)
        #expect(!reply.wasContinued)
        #expect(!driver.calls.contains("begin images/forest.jpg"))
    }

    @Test func createsOnly() async {
        let client = Client(driver)
        for (fields, status) in [
            ([("if-none-match", "*")], 201), ([("if-none-match", "*")], 412),
            ([("x-object-generation-match", "0")], 412), ([("if-match", "\"e100\"")], 200),
            ([("if-match", "\"e100\"")], 412), ([("if-match", "W/\"e101\"")], 412),
            ([("if-none-match", "W/\"e101\"")], 412), ([("x-object-generation-match", "101")], 200),
            ([("x-object-metageneration-match", "1")], 200),
            ([("if-unmodified-since", "Sun, 06 Nov 1994 08:49:36 GMT")], 412),
            ([("if-unmodified-since", "Sun, 06 Nov 1994 08:49:37 GMT")], 200),
            ([("if-modified-since", "Sun, 06 Nov 2094 08:49:37 GMT")], 200),
        ] {
            let reply = await client.send("PUT", forest, fields, text: "x")
            #expect(reply.status == status, "\(fields)")
        }
    }

    @Test func rejectsConditionsThatAreNotAtomic() async {
        let client = Client(MemoryBucket(.weak))
        let reply = await client.send("PUT", forest, [("if-none-match", "*")], text: "x")
        #expect(reply.status == 501)
        let plain = await client.send("PUT", forest, text: "x")
        #expect(plain.status == 201)
    }

    @Test func limitsTheSize() async {
        let bucket = Bucket(
            name: BucketName("photos")!, driver: driver, policy: OpenPolicy(),
            maximumObjectSize: 10)
        let client = Client([bucket])
        let declared = await client.send("PUT", forest, text: "hello world")
        #expect(declared.status == 413)
        #expect(declared.code == "payload-too-large")
        #expect(!declared.wasContinued)
        let streamed = await client.send(
            "PUT", forest, body: Array("hello world".utf8), declared: .some(nil))
        #expect(streamed.status == 413)
        #expect(driver.calls == ["begin images/forest.jpg", "abort images/forest.jpg"])
        #expect(client.records.last.bytesIn == 10)
        let fitting = await client.send("PUT", forest, text: "0123456789")
        #expect(fitting.status == 201)
    }

    /// Others write to a store, too.
    @Test func unrepresentableMetadataIsInNoField() async {
        let driver = MemoryBucket()
        driver.seed(
            "images/forest.jpg", [1],
            ObjectAttributes(
                contentType: "text/html\r\nset-cookie: a=b", cacheControl: "public\r\n\r\n<html>",
                contentDisposition: "inline\u{0}", contentLanguage: "en"))
        for method in ["GET", "HEAD"] {
            let reply = await Client(driver).send(method, forest)
            #expect(reply.status == 200)
            #expect(reply.fields["content-type"] == "application/octet-stream")
            #expect(reply.fields["cache-control"] == "private, max-age=0")
            #expect(reply.fields["content-disposition"] == nil)
            #expect(reply.fields["content-language"] == "en")
        }
    }

    @Test func anInterruptedUploadKeepsTheOldObject() async {
        let client = Client(driver)
        _ = await client.send("PUT", forest, text: "old")
        _ = await client.send("PUT", forest, text: "new", .body(.clientGone))
        #expect(client.records.last.status == 499)
        #expect(client.records.last.errorCode == nil)
        #expect(client.records.last.bytesIn == 3)
        let slow = await client.send("PUT", forest, text: "new", .body(.timedOut))
        #expect(slow.status == 408)
        #expect(driver.bytes(of: "images/forest.jpg") == Array("old".utf8))
        #expect(driver.calls.filter { $0.hasPrefix("abort") }.count == 2)
    }

    @Test func aBodyShorterThanDeclaredIsRejected() async {
        let reply = await Client(driver).send("PUT", forest, body: [1, 2], declared: 3)
        #expect(reply.status == 400)
        #expect(driver.bytes(of: "images/forest.jpg") == nil)
    }

    @Test func differentStoredBytesAreDetected() async {
        driver.with { $0.isLying = true }
        let client = Client(driver)
        let reply = await client.send("PUT", forest, text: "x")
        #expect(reply.status == 502)
        #expect(driver.bytes(of: "images/forest.jpg") == nil)
        #expect(client.records.last.cause?.contains("other bytes") == true)
    }
}

extension Client {
    func send(
        _ method: String, _ target: String, text: String, _ trouble: Trouble
    ) async -> Reply {
        await send(method, target, body: Array(text.utf8), trouble)
    }
}

@Suite struct DownloadTests {
    let driver = MemoryBucket()
    let client: Client

    init() {
        driver.seed(
            "images/forest.jpg", Array("0123456789".utf8),
            ObjectAttributes(contentType: "image/jpeg", cacheControl: "no-cache"))
        driver.seed("empty")
        client = Client(driver)
    }

    @Test func sendsBytesAndFields() async {
        let reply = await client.send("GET", forest)
        #expect(reply.status == 200)
        #expect(reply.text == "0123456789")
        #expect(reply.fields["content-type"] == "image/jpeg")
        #expect(reply.fields["x-request-id"] == client.records.last.requestId)
        #expect(client.records.last.operation == .get)
        #expect(client.records.last.bytesOut == 10)
        #expect(client.records.last.errorCode == nil)
        let head = await client.send("HEAD", forest, [("range", "bytes=0-1")])
        #expect(head.status == 200 && head.body.isEmpty)
        #expect(head.fields["content-length"] == "10")
        for name in ["content-type", "etag", "last-modified", "repr-digest"] as [StaticString] {
            #expect(head.fields[name] == reply.fields[name])
        }
        #expect(driver.openReaders == 0)
    }

    @Test(arguments: [
        ("bytes=2-4", 206, "234", "bytes 2-4/10"), ("bytes=-1", 206, "9", "bytes 9-9/10"),
        ("bytes=0-", 206, "0123456789", "bytes 0-9/10"), ("bytes=0-1,3-4", 200, "0123456789", nil),
        ("nonsense", 200, "0123456789", nil),
    ])
    func sendsRanges(range: String, status: Int, body: String, contentRange: String?) async {
        let reply = await client.send("GET", forest, [("range", range)])
        #expect(reply.status == status)
        #expect(reply.text == body)
        #expect(reply.fields["content-range"] == contentRange)
        #expect(reply.fields["repr-digest"]?.hasPrefix("md5=:eB5e") == true)
        #expect(driver.openReaders == 0)
    }

    @Test func rejectsRangesOutside() async {
        let reply = await client.send("GET", forest, [("range", "bytes=10-")])
        #expect(reply.status == 416)
        #expect(reply.code == "range-not-satisfiable")
        #expect(reply.fields["content-range"] == "bytes */10")
        let empty = await client.send("GET", "/b/photos/o/empty", [("range", "bytes=0-")])
        #expect(empty.status == 416)
        #expect(empty.fields["content-range"] == "bytes */0")
        let suffix = await client.send("GET", "/b/photos/o/empty", [("range", "bytes=-1")])
        #expect(suffix.status == 200 && suffix.body.isEmpty)
        #expect(driver.openReaders == 0)
    }

    @Test(arguments: [
        ([("if-none-match", "\"e100\"")], 304), ([("if-none-match", "W/\"e100\"")], 304),
        ([("if-none-match", "*")], 304), ([("if-none-match", "\"e1\"")], 200),
        ([("if-match", "\"e100\"")], 200), ([("if-match", "W/\"e100\"")], 412),
        ([("if-match", "\"e1\"")], 412), ([("if-match", "*")], 200), ([("if-match", "e100")], 400),
        ([("if-modified-since", "Sun, 06 Nov 1994 08:49:37 GMT")], 304),
        ([("if-modified-since", "Sun, 06 Nov 1994 08:49:36 GMT")], 200),
        ([("if-modified-since", "yesterday")], 200),
        (
            [("if-modified-since", "Sun, 06 Nov 1994 08:49:37 GMT"), ("if-none-match", "\"x\"")],
            200
        ),
        ([("if-unmodified-since", "Sun, 06 Nov 1994 08:49:36 GMT")], 412),
        ([("x-object-generation-match", "1")], 412),
    ])
    func evaluatesConditions(fields: [(String, String)], status: Int) async {
        for method in ["GET", "HEAD"] {
            let reply = await client.send(method, forest, fields)
            #expect(reply.status == status)
            if status == 304 {
                #expect(reply.body.isEmpty)
                #expect(reply.fields["etag"] == "\"e100\"")
                #expect(reply.fields["cache-control"] == "no-cache")
                #expect(!reply.fields.contains("content-length"))
            }
        }
        #expect(driver.openReaders == 0)
        let missing = await client.send("GET", "/b/photos/o/none", fields)
        #expect(missing.status == (status == 400 ? 400 : 404))
    }

    @Test func aRangeWithAFailedConditionIsNotSent() async {
        let reply = await client.send(
            "GET", forest, [("range", "bytes=0-1"), ("if-none-match", "\"e100\"")])
        #expect(reply.status == 304)
        let other = await client.send(
            "GET", forest, [("range", "bytes=0-1"), ("if-range", "\"e1\"")])
        #expect(other.status == 200 && other.text == "0123456789")
    }

    @Test func sendsMetadata() async {
        let reply = await client.send("GET", forest + "?metadata")
        #expect(reply.status == 200)
        #expect(reply.json["generation"] as? String == "100")
        #expect(!reply.fields.contains("etag"))
        let head = await client.send("HEAD", forest + "?metadata=1")
        #expect(head.body.isEmpty)
        #expect(head.fields["content-length"] == String(reply.body.count))
        let unmodified = await client.send(
            "GET", forest + "?metadata", [("if-none-match", "\"e100\"")])
        #expect(unmodified.status == 200)
        let failed = await client.send("GET", forest + "?metadata", [("if-match", "\"e1\"")])
        #expect(failed.status == 412)
    }

    @Test func aDisconnectedClientIs499() async {
        _ = await client.send("GET", forest, [], .goneWhileSending)
        #expect(client.records.last.status == 499)
        #expect(driver.openReaders == 0)
    }

    @Test func anAbortedResponseIsOurFault() async {
        driver.with { $0.breaksOff = true }
        _ = await client.send("GET", forest)
        let record = client.records.last
        #expect(record.status == 200 && record.statusClass == 5)
        #expect(record.errorCode == "upstream-unavailable")
        #expect(record.cause == "the store's bytes broke off: gone")
        #expect(driver.openReaders == 0)
    }

    @Test(arguments: [
        (BucketError(.unavailable, "cause-1 disk gone"), 502, "upstream-unavailable"),
        (BucketError(.insufficientStorage, "cause-2"), 507, "insufficient-storage"),
        (BucketError(.unsupported, "cause-3"), 501, "not-implemented"),
        (BucketError(.internal, "sqlite: /secret/path"), 500, "internal"),
        (BucketError(.objectNotFound, "cause-4"), 404, "object-not-found"),
    ])
    func causesStayInTheLog(fault: BucketError, status: Int, code: String) async {
        driver.with { $0.fault = fault }
        for (method, target) in [
            ("GET", forest), ("HEAD", forest), ("GET", forest + "?metadata"), ("DELETE", forest),
            ("PATCH", forest), ("PUT", forest), ("GET", "/b/photos/o"),
        ] {
            let reply = await client.send(method, target, text: "{}")
            #expect(reply.status == status)
            #expect(client.records.last.cause == fault.cause)
            #expect(client.records.last.errorCode == code)
            if method != "HEAD" {
                #expect(reply.fields["content-type"] == "application/problem+json")
                #expect(reply.code == code)
                #expect(reply.json["status"] as? Int == status)
                #expect(reply.json["instance"] as? String == reply.fields["x-request-id"])
                #expect(!reply.text.contains(fault.cause))
            }
        }
    }
}
