import Buckets
import SecurityRules
import Testing
import Wire

@testable import Gateway

/// Links whose decision has read the object, over stores that can do more or less.
@Suite struct PinnedLinkTests {
    /// Everybody may create an object, and do anything with an own one.
    private func client(_ driver: MemoryBucket) throws -> Client {
        let rules = try Ruleset.load(
            source: """
                rules_version = '2';
                service firebase.storage {
                  match /b/{bucket}/o/{name=**} {
                    allow create: if resource == null;
                    allow read, write: if resource.contentType == 'text/own';
                  }
                }
                """)
        let keys = try LinkKeys(
            text: "k \(Base64.encodeForURL([UInt8](repeating: 1, count: 32)))")
        return Client(
            [Client.bucket(driver, policy: RulesPolicy(rules))], callers: Callers(linkKeys: keys))
    }

    private let own = ObjectAttributes(contentType: "text/own")

    private func link(_ method: String, _ client: Client) async throws -> String {
        let reply = await client.send(
            "POST", "/b/photos/o/a?sign", text: #"{"method": "\#(method)"}"#)
        #expect(reply.status == 200, "\(reply.text)")
        return try #require(reply.json["path"] as? String)
    }

    @Test func noOtherChangeComesBetween() async throws {
        let driver = MemoryBucket()
        let client = try client(driver)
        let put = try await link("PUT", client)
        driver.with { $0.beforeChange = { $0.seed("a", [1]) } }
        let reply = await client.send("PUT", put, text: "x")
        #expect(reply.status == 403 && reply.code == "link-expired")
        #expect(driver.bytes(of: "a") == [1])
        #expect(client.records.last.decision == .denied)
        driver.seed("a", [2], own)
        let delete = try await link("DELETE", client)
        driver.with { $0.beforeChange = { [own] in $0.seed("a", [3], own) } }
        #expect(await client.send("DELETE", delete).code == "link-expired")
        #expect(driver.bytes(of: "a") == [3])
        let get = try await link("GET", client)
        #expect(await client.send("GET", get).body == [3])
        driver.seed("a", [4], own)
        #expect(await client.send("GET", get).code == "link-expired")
        #expect(await client.send("HEAD", get).status == 403)
        #expect(driver.openReaders == 0)
    }

    /// What could not be used is not given out.
    @Test func aStoreThatCannotPinGivesNoLinkThatWrites() async throws {
        let driver = MemoryBucket(
            Capabilities(
                atomicUploads: false, atomicPatches: false, atomicDeletions: false,
                lateConditions: false, durable: true))
        let client = try client(driver)
        for (method, status) in [("PUT", 501), ("DELETE", 501), ("GET", 200)] {
            driver.seed("a", [1], own)
            let reply = await client.send(
                "POST", "/b/photos/o/a?sign", text: #"{"method": "\#(method)"}"#)
            #expect(reply.status == status, "\(method)")
        }
    }
}
