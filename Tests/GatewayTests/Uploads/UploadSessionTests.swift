import Buckets
import System
import TestSupport
import Testing
import Wire

@testable import Gateway

/// Upload sessions of a real directory, without connections.
@Suite struct UploadSessionTests {
    private static let pool = BlockingPool(threads: 2)
    private let directory = TemporaryDirectory()
    private let now = Lock<Int64>(1_767_225_600)

    private func driver() throws -> DirectoryBucket {
        let now = now
        return try DirectoryBucket(
            path: directory.path + "/bucket", pool: UploadSessionTests.pool, readers: 1,
            clock: { now.withLock { $0 } * 1_000_000 })
    }

    private func client(_ driver: DirectoryBucket, _ uploads: Uploads) -> Client {
        Client([
            Bucket(
                name: BucketName("photos")!, driver: driver, policy: OpenPolicy(), uploads: uploads)
        ])
    }

    private func begin(_ client: Client) async throws -> String {
        let reply = await client.send(
            "PUT", "/b/photos/o/a", [("upload-complete", "?0")], body: [1])
        #expect(reply.status == 201)
        return String(try #require(reply.fields["location"]).dropFirst("http://localhost".count))
    }

    private func identity(_ path: String, _ uploads: Uploads) throws -> UploadSessionID {
        let token = Array(path.utf8).dropFirst("/b/photos/u/".utf8.count)
        return try #require(uploads.keys.open(token)).id
    }

    @Test func aRecordThatCannotBeReadIsTheGatewaysFailure() async throws {
        let (driver, uploads) = (try driver(), Uploads())
        let client = client(driver, uploads)
        for record in [
            "", "x", "{}", #"{"code":"none","detail":"d"}"#, #"{"code":"unauthorized"}"#,
        ] {
            let path = try await begin(client)
            let session = try await driver.openSession(try identity(path, uploads))
            try await session.close(Array(record.utf8), until: .max)
            let reply = await client.send(
                "PATCH", path, [("upload-offset", "1"), ("upload-complete", "?1")])
            #expect(reply.status == 500 && reply.code == "internal")
            #expect(client.records.last.cause?.contains("record of a refused upload") == true)
        }
        await driver.close()
    }

    @Test func aSessionEndsInTheSecondOfItsExpiry() async throws {
        var settings = UploadSettings()
        settings.lifetime = 100
        let (driver, uploads) = (try driver(), Uploads(settings))
        let client = client(driver, uploads)
        let path = try await begin(client)
        let expires = try identity(path, uploads).expires
        #expect(expires == 1_767_225_700)
        now.withLock { $0 = expires - 1 }
        let last = await client.send("HEAD", path)
        #expect(last.status == 204 && last.fields["upload-offset"] == "1")
        now.withLock { $0 = expires }
        #expect(await client.send("HEAD", path).status == 404)
        #expect(try await driver.removeExpiredSessions(limit: 10) == 1)
        await driver.close()
    }

    @Test func creationsWaitForTheCountButNotForever() async throws {
        let driver = try driver()
        let uploads = Uploads(awaitsSessions: true, waitLimit: 20_000_000)
        let client = client(driver, uploads)
        let late = await client.send(
            "PUT", "/b/photos/o/a", [("upload-complete", "?0")], body: [1])
        #expect(
            late.status == 503 && late.code == "overloaded" && late.fields.contains("retry-after"))
        #expect(await uploads.load([("photos", driver)]).isEmpty)
        _ = try await begin(client)
        await driver.close()
    }

    @Test func expiredEntriesAreTakenOutInSlices() throws {
        let ledger = UploadLedger()
        func entry(_ bucket: String, _ expires: Int64) -> UploadLedger.Entry {
            UploadLedger.Entry(
                bucket: bucket, dialect: .ietf,
                owner: CallerLimits.Key(group: "g", source: "", caller: "c"), creator: nil,
                bytes: 1, expires: expires)
        }
        for number in 0..<1000 {
            let entry = entry(number % 2 == 0 ? "a" : "b", Int64(number * 60))
            #expect(ledger.adopt(UploadSessionID(expires: entry.expires), entry))
        }
        var counts: [Int] = []
        while case let removed = ledger.removeExpired(of: "a", 30_000, limit: 100).count,
            removed > 0
        { counts.append(removed) }
        #expect(counts == [100, 100, 51])
        #expect(ledger.usage(of: "a").sessions == 249 && ledger.usage(of: "b").sessions == 500)
        #expect(ledger.usage(of: "a").bytes == 249)
        #expect(ledger.removeExpired(of: "b", .max, limit: .max).count == 500)
        #expect(ledger.removeExpired(of: "a", .max, limit: .max).count == 249)
        #expect(ledger.usage(of: "a").sessions == 0)
    }
}
