import Buckets
import Testing

@testable import Gateway

@Suite("Bytes of uncommitted uploads") struct StagingTests {
    let driver = MemoryBucket()
    let staged = StagedBytes()

    private func client(
        _ policy: any Policy = OpenPolicy(), bucket: UInt64 = .max, caller: UInt64 = .max
    ) -> Client {
        Client([
            Bucket(
                name: BucketName("photos")!, driver: driver, policy: policy, staged: staged,
                maximumStagedBytes: bucket, maximumStagedBytesPerCaller: caller)
        ])
    }

    private func put(_ client: Client, _ count: Int, declared: Bool = false) async -> Client.Reply {
        await client.send(
            "PUT", "/b/photos/o/a", body: Array(repeating: 7, count: count),
            declared: declared ? nil : .some(nil))
    }

    @Test(arguments: [true, false]) func haveALimitOfTheBucket(declared: Bool) async throws {
        let client = client(bucket: 12)
        let rejected = await put(client, 20, declared: declared)
        #expect(rejected.status == 503 && rejected.fields["retry-after"] == "1")
        #expect(driver.bytes(of: "a") == nil && driver.calls.last == "abort a")
        #expect(staged.numbers.total == 0 && staged.numbers.rejections.bucket == 1)
        // What others have staged counts.
        #expect(await put(client, 12).status == 201)
        let other = staged.open("other")
        try staged.add(3, to: other, .init())
        #expect(await put(client, 10).status == 503)
        staged.close(other, 3)
        #expect(await put(client, 10).status == 200)
        #expect(staged.numbers.total == 0)
    }

    @Test func haveALimitOfTheCaller() async throws {
        let client = client(caller: 12)
        try staged.add(100, to: staged.open("other"), .init())
        let rejected = await put(client, 20)
        #expect(rejected.status == 429 && rejected.code == "too-many-requests")
        #expect(await put(client, 12).status == 201)
        #expect(staged.numbers.largest == 100 && staged.numbers.rejections.caller == 1)
    }

    /// Allows ten bytes, and says so.
    private struct Ten: Policy {
        func decide(_ question: AuthorizationRequest) -> Decision {
            guard let size = question.proposal.size else { return .needsBody }
            return size <= 10 ? .allow : .deny(cause: "it is too large")
        }
        func largestUpload(_ question: AuthorizationRequest) -> UInt64? { 10 }
        func shadowDecision(_ question: AuthorizationRequest) -> Decision? { nil }
    }

    @Test func endAtTheLimitOfTheRules() async {
        let client = client(Ten())
        #expect(await put(client, 1000).status == 403)
        #expect(client.records.last.bytesIn <= 10)
        #expect(client.records.last.cause == "it is too large")
        #expect(driver.calls == ["begin a", "abort a"])
        #expect(await put(client, 10).status == 201)
        // Rules that are replaced meanwhile count.
        let current = CurrentPolicy(Ten())
        driver.with { $0.beforeUpload = { _ in current.replace(OpenPolicy()) } }
        #expect(await put(self.client(current), 11).status == 200)
    }

    @Test func areNotAPartOfAnUpload() async {
        let client = client()
        for (field, value, status) in [
            ("upload-complete", "?0", 501), ("upload-incomplete", "?1", 501),
            ("upload-complete", "?0;a", 501), ("upload-complete", "?1", 201),
            ("upload-incomplete", "?0", 200),
        ] {
            let reply = await client.send("PUT", "/b/photos/o/a", [(field, value)], text: "x")
            #expect(reply.status == status, "\(field): \(value)")
            #expect((driver.bytes(of: "a") == nil) == (status == 501))
            if status < 300 { continue }
            #expect(reply.code == "not-implemented")
        }
    }

    @Test func areRejectedWithoutTheBucketsPatterns() async throws {
        let rules = try PathRules(allowed: ["ok/**"], denied: ["ok/secret/**"])
        let client = Client([
            Bucket(
                name: BucketName("photos")!, driver: driver, policy: OpenPolicy(), pathRules: rules)
        ])
        var details: Set<String> = []
        for (name, cause) in [("ok/secret/a", "ok/secret/**"), ("other", "no pattern")] {
            let reply = await client.send("GET", "/b/photos/o/\(name)")
            #expect(reply.code == "invalid-name" && !reply.text.contains("**"))
            details.insert(reply.json["detail"] as? String ?? "")
            #expect(client.records.last.cause?.contains(cause) == true)
        }
        #expect(details.count == 1)
    }
}
