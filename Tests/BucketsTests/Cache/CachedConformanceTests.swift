import BucketConformance
import System
import TestSupport
import Testing

@testable import Buckets

/// A driver whose reads go through a cache of their own, as those of a gateway's bucket do.
final class CachedDriver: CopyingDriver {
    private let driver: any CopyingDriver
    private let cache: ReadCache
    private let bucket: CachedBucket
    private let directory = TemporaryDirectory(below: "/dev/shm")
    /// Counts the reads that the cache had a part in.
    private let served: Lock<Int>

    /// - Parameter served: Counts the opened objects whose bytes the cache keeps or has.
    init(_ driver: any CopyingDriver, _ freshness: ReadCache.Freshness, served: Lock<Int>) async throws {
        self.driver = driver
        self.served = served
        let cache = ReadCache(
            .init(directory: directory.path + "/cache", size: 64 << 20, reserve: 0), pool: sharedPool,
            onChange: { _, _ in })
        self.cache = cache
        // Small objects are kept too if they may be served while the service does not respond.
        bucket = try #require(cache.bucket("b", driver, freshness, staleIfError: 1))
        await eventually { cache.report.state == .open }
    }

    func capabilities() async throws(BucketError) -> Capabilities { try await driver.capabilities() }

    func stat(_ name: String) async throws(BucketError) -> ObjectMetadata {
        try await bucket.stat(name, mustAsk: false).0
    }

    func open(_ name: String, _ plan: ReadPlan) async throws(BucketError) -> any ObjectReader {
        let read = try await bucket.open(name, plan, mustAsk: false)
        if read.outcome.result != .bypass { served.withLock { $0 += 1 } }
        return read.reader
    }

    func beginUpload(_ name: String, _ plan: UploadPlan) async throws(BucketError) -> any Upload {
        CachedUpload(name, try await driver.beginUpload(name, plan), bucket)
    }

    func patch(_ name: String, _ patch: AttributePatch, _ preconditions: Preconditions)
        async throws(BucketError) -> ObjectMetadata
    {
        try await bucket.change(name) { () async throws(BucketError) in
            try await driver.patch(name, patch, preconditions)
        }
    }

    func delete(_ name: String, _ preconditions: Preconditions) async throws(BucketError) {
        try await bucket.change(name) { () async throws(BucketError) in
            try await driver.delete(name, preconditions)
        }
    }

    func copy(to name: String, _ plan: CopyPlan) async throws(BucketError) -> CommitResult {
        try await bucket.change(name) { () async throws(BucketError) in try await driver.copy(to: name, plan) }
    }

    func list(_ query: ListQuery, after: String?) async throws(BucketError) -> ListPage {
        try await driver.list(query, after: after)
    }

    func checkHealth() async throws(BucketError) { try await driver.checkHealth() }

    /// Also waits until no read of the case is left in the cache.
    func close() async {
        await eventually { [cache] in cache.report.fills == 0 && cache.liveSources.load(ordering: .relaxed) == 0 }
        await driver.close()
    }
}

/// An upload whose commit is a change that the cache knows of.
private final class CachedUpload: Upload {
    private let name: String
    private let upload: any Upload
    private let bucket: CachedBucket

    init(_ name: String, _ upload: any Upload, _ bucket: CachedBucket) {
        self.name = name
        self.upload = upload
        self.bucket = bucket
    }

    var isOpen: Bool { upload.isOpen }
    func write(_ bytes: RawSpan) throws -> Int { try upload.write(bytes) }
    func whenWritable(_ resume: @escaping () -> Void) { upload.whenWritable(resume) }
    func finish() async throws(BucketError) -> ContentFacts { try await upload.finish() }
    func abort() { upload.abort() }
    func keep(_ checksum: S3Properties.Checksum) -> Bool { upload.keep(checksum) }

    func commit(_ preconditions: Preconditions) async throws(BucketError) -> CommitResult {
        try await bucket.change(name) { () async throws(BucketError) in try await upload.commit(preconditions) }
    }
}

/// The cases that a server fails without a cache it may fail here too.
@Suite(
    "Both cloud drivers conform through the read cache", .enabled(if: UpstreamProcess.environment != nil),
    .timeLimit(.minutes(10)))
struct CachedConformanceTests {
    @Test(arguments: S3Server.allCases)
    func s3(_ server: S3Server) async throws {
        let running = try RunningServer(server)
        let known = S3ConformanceTests.known[server] ?? [:]
        try await conforms("\(server)", Set(known.keys)) {
            try await running.makeBucket()
        }
    }

    @Test(arguments: GCSServer.allCases)
    func gcs(_ server: GCSServer) async throws {
        let running = RunningGCSServer(server)
        try await conforms(server.rawValue, Set(server.known.keys)) { try await running.makeBucket() }
    }

    /// Runs all cases. Every other one asks at each read; the rest never do.
    private func conforms(
        _ server: String, _ known: Set<String>,
        _ make: @escaping @Sendable () async throws -> any CopyingDriver
    ) async throws {
        let served = Lock(0)
        let capabilities = try await onLoop {
            let bucket = try await make()
            let found = try await bucket.capabilities()
            await bucket.close()
            return found
        }
        let cases = BucketConformance.cases(for: capabilities).filter { !known.contains($0.name) }
        for (number, check) in cases.enumerated() {
            let freshness = number % 2 == 0 ? ReadCache.Freshness.validate : .forever
            do {
                try await check.run { try await CachedDriver(make(), freshness, served: served) }
            } catch {
                Issue.record("\(server): \(check): \(error)")
            }
        }
        #expect(served.withLock { $0 } > cases.count)
    }
}
