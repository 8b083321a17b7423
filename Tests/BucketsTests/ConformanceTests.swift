import BucketConformance
import Buckets
import TestSupport
import Testing

@Suite("The directory driver conforms", .timeLimit(.minutes(5)))
struct ConformanceTests {
    static let capabilities = {
        var all = Capabilities.all
        all.uploadSessions = true
        all.parts = true
        all.copies = true
        all.atomicCopies = true
        all.atomicMoves = true
        return all
    }()

    @Test(arguments: BucketConformance.cases(for: capabilities))
    func conforms(_ check: BucketConformance.Case) async throws {
        let directory = TemporaryDirectory()
        let path = directory.path + "/bucket"
        try await check.run { try openBucket(path) }
        await eventually { files(of: path).staged == [] }
    }

    @Test func nothingIsLeftOut() throws {
        let directory = TemporaryDirectory()
        let bucket = try openBucket(directory.path)
        #expect(bucket.capabilities() == Self.capabilities)
        #expect(BucketConformance.leftOut(for: Self.capabilities) == [])
    }

    /// The suite itself can fail: weak capabilities leave out cases, and those are named.
    @Test func whatIsLeftOutIsNamed() {
        let weak = Capabilities(
            atomicUploads: false, atomicPatches: false, atomicDeletions: false,
            lateConditions: true, durable: true)
        #expect(BucketConformance.leftOut(for: weak).count == 12)
        #expect(
            BucketConformance.cases(for: weak).count + 12 == BucketConformance.all.count)
    }
}
