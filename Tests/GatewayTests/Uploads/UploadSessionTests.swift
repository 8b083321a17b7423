import Buckets
import Glibc
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

    private func driver(_ pool: BlockingPool = UploadSessionTests.pool) throws -> DirectoryBucket {
        let now = now
        return try DirectoryBucket(
            path: directory.path + "/bucket", pool: pool, readers: 1,
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

    @Test func aSessionThatTheStoreHasLostDoesNotCount() async throws {
        let (driver, uploads) = (try driver(), Uploads())
        let client = client(driver, uploads)
        let path = try await begin(client)
        #expect(uploads.ledger.usage(of: "photos").sessions == 1)
        try await driver.openSession(try identity(path, uploads)).cancel()
        #expect(await client.send("HEAD", path).status == 404)
        #expect(uploads.ledger.usage(of: "photos").sessions == 0)
        await driver.close()
    }

    /// A session whose turn an append holds, because its disk hangs.
    private struct Busy {
        let driver: DirectoryBucket
        let client: Client
        let path: String
        let slow: Client.Pending
        /// Ends the wait.
        let release: Int32
    }

    /// The append of a byte to a session of one byte hangs.
    private func busy() async throws -> Busy {
        let pool = BlockingPool(threads: 1)
        let driver = try driver(pool)
        let client = client(driver, Uploads())
        let path = try await begin(client)
        var ends: [Int32] = [-1, -1]
        #expect(pipe(&ends) == 0)
        let blocked = ends[0]
        pool.submit {
            var byte: UInt8 = 0
            _ = read(blocked, &byte, 1)
            close(blocked)
        }
        let slow = await client.begin(
            "PATCH", path, part(at: 1, isLast: false) + [("upload-length", "2")], body: [2])
        // The length is stored when it has the turn.
        while try await driver.listSessions(after: nil, limit: 1).first?.state.length == nil {
            await Task.yield()
        }
        return Busy(driver: driver, client: client, path: path, slow: slow, release: ends[1])
    }

    private func part(at offset: Int, isLast: Bool) -> [(String, String)] {
        [
            ("content-type", "application/partial-upload"), ("upload-offset", "\(offset)"),
            ("upload-complete", isLast ? "?1" : "?0"),
        ]
    }

    @Test(arguments: ["DELETE", "PATCH"])
    func theEndOfAnUploadOutlivesItsClient(method: String) async throws {
        let busy = try await busy()
        let fields = method == "PATCH" ? part(at: 2, isLast: true) : []
        let end = await busy.client.begin(method, busy.path, fields)
        await end.leave()
        close(busy.release)
        #expect(await busy.slow.reply.status == 204)
        _ = await end.reply
        #expect(busy.client.records.last.status == 499)
        let state = await busy.client.send("HEAD", busy.path)
        let object = await busy.client.send("GET", "/b/photos/o/a")
        if method == "PATCH" {
            #expect(state.fields["upload-complete"] == "?1" && object.body == [1, 2])
        } else {
            #expect(state.status == 404 && object.status == 404)
        }
        await busy.driver.close()
    }

    @Test func clientsThatComeAndGoLeaveOneEndWaiting() async throws {
        let busy = try await busy()
        let before = busy.client.records.count
        let first = await busy.client.begin("DELETE", busy.path)
        await first.leave()
        for _ in 0..<100 {
            let other = await busy.client.begin("DELETE", busy.path)
            await other.leave()
            _ = await other.reply
        }
        let report = await busy.client.begin("HEAD", busy.path)
        await report.leave()
        _ = await report.reply
        #expect(busy.client.records.count == before + 101)
        #expect(busy.client.records.last.status == 499)
        #expect(busy.client.records.last.cause == "the client went away")
        close(busy.release)
        _ = await first.reply
        #expect(await busy.client.send("HEAD", busy.path).status == 404)
        _ = await busy.slow.reply
        await busy.driver.close()
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

    private static func entry(
        _ caller: String, _ bytes: UInt64, received: UInt64 = 0, bucket: String = "a"
    ) -> UploadLedger.Entry {
        UploadLedger.Entry(
            bucket: bucket, dialect: .ietf,
            owner: CallerLimits.Key(group: "g", source: "", caller: caller), creator: nil,
            bytes: bytes, expires: 86_400, received: received, movedAt: 1000)
    }

    @Test func aCallerHasHalfOfABucketsStagedBytes() throws {
        let ledger = UploadLedger()
        let limits = UploadLedger.Limits(sessions: 0, bytes: 1 << 40, bucketBytes: 1001)
        try ledger.reserve(Self.entry("one", 501), limits, now: 1000)
        #expect(throws: UploadLedger.LimitExceeded.callerShare) {
            try ledger.reserve(Self.entry("one", 1), limits, now: 1000)
        }
        #expect(throws: UploadLedger.LimitExceeded.bucketBytes) {
            try ledger.reserve(Self.entry("two", 501), limits, now: 1000)
        }
        try ledger.reserve(Self.entry("two", 500), limits, now: 1000)
        // It has as much in another bucket, and again when the session has ended.
        try ledger.reserve(Self.entry("one", 501, bucket: "b"), limits, now: 1000)
        ledger.giveBack(Self.entry("one", 501))
        try ledger.reserve(Self.entry("one", 501), limits, now: 1000)
        // Unless callers have no limit.
        let open = UploadLedger.Limits(sessions: 0, bytes: 0, bucketBytes: 1001)
        try ledger.reserve(Self.entry("three", 1001, bucket: "c"), open, now: 1000)
    }

    @Test func reservationsLapseWithoutAppends() throws {
        let ledger = UploadLedger()
        let limits = UploadLedger.Limits(sessions: 0, bytes: 1 << 40, bucketBytes: 1000)
        let (id, other) = (UploadSessionID(expires: 86_400), UploadSessionID(expires: 86_400))
        let end = 1000 + UploadLedger.reservationTime
        #expect(ledger.adopt(id, Self.entry("one", 500, received: 100)))
        #expect(ledger.adopt(other, Self.entry("two", 500)))
        ledger.appends(other)
        func more(_ bytes: UInt64, at now: Int64) throws {
            try ledger.reserve(Self.entry("three", bytes), limits, now: now)
        }
        #expect(throws: UploadLedger.LimitExceeded.bucketBytes) { try more(1, at: end - 1) }
        #expect(throws: UploadLedger.LimitExceeded.bucketBytes) { try more(401, at: end) }
        try more(400, at: end + 1)
        #expect(ledger.usage(of: "a").bytes == 1000)
        // What arrives again needs its reservation, which the others have.
        #expect(throws: UploadLedger.LimitExceeded.bucketBytes) {
            try ledger.set(id, bytes: 500, limits, now: end + 2)
        }
        // The time begins at the end of an append.
        ledger.appended(other, received: 200, now: end)
        ledger.lapse(end + UploadLedger.reservationTime - 1)
        #expect(ledger.usage(of: "a").bytes == 1000)
        ledger.lapse(end + UploadLedger.reservationTime)
        #expect(ledger.usage(of: "a").bytes == 700)
        // The end of an append that began before the session was found again.
        ledger.appended(other, received: 200, now: end)
        try ledger.set(other, bytes: 500, limits, now: end + 400)
        ledger.lapse(end + 400)
        #expect(ledger.usage(of: "a").bytes == 700)
        try ledger.set(id, bytes: 400, limits, now: end + 500)
        #expect(ledger.remove(id)?.bytes == 400 && ledger.remove(other)?.bytes == 200)
        #expect(ledger.usage(of: "a").bytes == 400)
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
