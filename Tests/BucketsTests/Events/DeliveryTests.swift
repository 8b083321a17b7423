import BucketConformance
import System
import TestSupport
import Testing
import Wire

@testable import Buckets

@Suite("Directory driver: what subscriptions have settled", .timeLimit(.minutes(2)))
struct DeliveryTests {
    let directory = TemporaryDirectory()
    var path: String { directory.path + "/bucket" }

    private static let all = EventFilter { _, _ in true }

    private static func put(_ bucket: DirectoryBucket, _ names: String...) async throws {
        for name in names { _ = try await bucket.put(name, []) }
    }

    /// Writes a settlement to the directory that is open now.
    private static func settle(_ bucket: DirectoryBucket, _ settlement: EventSettlement) async throws {
        var settlement = settlement
        for name in ["s", "t"] {
            if let progress = try await bucket.subscriptionProgress(name) { settlement.history = progress.history }
        }
        try await bucket.settleEvents(settlement)
    }

    @Test func subscriptionBeginsAtTheNewestEventAndKeepsItsProgress() async throws {
        try await onOpenBucket(path) { bucket in
            try await bucket.recordEvents(DeliveryTests.all)
            try await DeliveryTests.put(bucket, "a", "b")
            #expect(try await bucket.subscriptionProgress("s") == nil)
            // It is written before the next change, although nobody waits for it.
            bucket.beginSubscriptions(["s"], recording: DeliveryTests.all)
            try await DeliveryTests.put(bucket, "c", "d", "e")
            #expect(try await bucket.subscriptionProgress("s")?.cursor == 2)
            let retry = EventRetry(sequence: 3, attempts: 2, due: 77, cause: "status 500")
            let dead = EventRetry(sequence: 5, attempts: 9, due: 5, isDead: true, cause: nil)
            try await DeliveryTests.settle(bucket, EventSettlement(subscription: "s", cursor: 4, kept: [retry, dead]))
            // Again, which changes nothing, and with an older cursor, which is ignored.
            bucket.beginSubscriptions(["s"], recording: DeliveryTests.all)
            try await DeliveryTests.settle(bucket, EventSettlement(subscription: "s", cursor: 1))
        }
        try await onOpenBucket(path) { bucket in
            let progress = try #require(try await bucket.subscriptionProgress("s"))
            #expect(progress.cursor == 4 && progress.dead == 1 && progress.deadAbove == [5])
            #expect(progress.waiting.map(\.retry.sequence) == [3] && progress.waiting[0].name == "c")
            #expect(progress.waiting[0].retry == EventRetry(sequence: 3, attempts: 2, due: 77, cause: "status 500"))
            let found = try await bucket.eventRetries("s", dead: true, limit: 10)
            #expect(found.map(\.1.object.name) == ["e"] && found[0].0.isDead)
            try await DeliveryTests.settle(bucket, EventSettlement(subscription: "s", cursor: 5, settled: [3]))
            #expect(try await bucket.subscriptionProgress("s")?.waiting.isEmpty == true)
        }
    }

    @Test func eventsAreReplayedAndDeadOnesReturn() async throws {
        try await onOpenBucket(path) { bucket in
            bucket.beginSubscriptions(["s", "other"], recording: DeliveryTests.all)
            try await DeliveryTests.put(bucket, "a", "b", "c", "d")
            let kept = (2...4).map { EventRetry(sequence: $0, attempts: 1, due: $0, isDead: true) }
            try await DeliveryTests.settle(bucket, EventSettlement(subscription: "s", cursor: 4, kept: kept))
            #expect(try await bucket.replayEvents("s", .dead(limit: 2)) == 2)
            var progress = try #require(try await bucket.subscriptionProgress("s"))
            #expect(progress.waiting.map(\.retry.sequence) == [2, 3] && progress.dead == 1)
            #expect(progress.waiting.allSatisfy { $0.retry.attempts == 0 })
            // From a number on nothing is kept but the cursor.
            #expect(try await bucket.replayEvents("s", .from(3)) == 2)
            progress = try #require(try await bucket.subscriptionProgress("s"))
            #expect(progress.cursor == 2 && progress.waiting.map(\.retry.sequence) == [2] && progress.dead == 0)
            let second = try await bucket.events(after: 1, limit: 1)[0]
            #expect(try await bucket.replayEvents("s", .since(second.time)) >= 3)
            #expect(try await bucket.replayEvents("s", .since(.max)) == 0)
            // Beyond the end is the end.
            #expect(try await bucket.replayEvents("s", .from(.max)) == 0)
            #expect(try await bucket.subscriptionProgress("other")?.cursor == 0)
        }
    }

    @Test func waitingAndDeadEventsAreNotTrimmed() async throws {
        try await onOpenBucket(path) { bucket in
            bucket.beginSubscriptions(["s"], recording: DeliveryTests.all)
            try await DeliveryTests.put(bucket, "a", "b", "c")
            _ = try await bucket.trimEvents(before: .max, keeping: 0, limit: 100)
            #expect(try await bucket.events(after: 0, limit: 10).count == 3)
            let dead = EventRetry(sequence: 2, attempts: 1, due: 50, isDead: true)
            try await DeliveryTests.settle(bucket, EventSettlement(subscription: "s", cursor: 3, kept: [dead]))
            _ = try await bucket.trimEvents(before: .max, keeping: 0, limit: 100)
            #expect(try await bucket.events(after: 0, limit: 10).map(\.sequence) == [2])
            #expect(try await bucket.removeDeadEvents("s", before: 50) == 0)
            #expect(try await bucket.removeDeadEvents("s", before: 51) == 1)
            _ = try await bucket.trimEvents(before: .max, keeping: 0, limit: 100)
            #expect(try await bucket.events(after: 0, limit: 10).isEmpty)
        }
    }

    /// Its numbers are those of other events.
    @Test func settlementsOfAnotherDirectoryAreNotWritten() async throws {
        try await onOpenBucket(path) { bucket in
            bucket.beginSubscriptions(["s"], recording: DeliveryTests.all)
            try await DeliveryTests.put(bucket, "a", "b")
            let history = try #require(try await bucket.subscriptionProgress("s")?.history)
            try await bucket.settleEvents(EventSettlement(subscription: "s", cursor: 2, history: history + 1))
            #expect(try await bucket.subscriptionProgress("s")?.cursor == 0)
            try await bucket.settleEvents(EventSettlement(subscription: "s", cursor: 2, history: history))
            #expect(try await bucket.subscriptionProgress("s")?.cursor == 2)
        }
    }

    /// What a replay sends again is not trimmed before it was sent.
    @Test func replayedEventsAreKept() async throws {
        try await onOpenBucket(path) { bucket in
            bucket.beginSubscriptions(["s"], recording: DeliveryTests.all)
            try await DeliveryTests.put(bucket, "a", "b", "c")
            let waiting = (1...3).map { EventRetry(sequence: $0, attempts: 1, due: 1) }
            try await DeliveryTests.settle(bucket, EventSettlement(subscription: "s", cursor: 3, kept: waiting))
            _ = try await bucket.trimEvents(before: .max, keeping: 0, limit: 100)
            #expect(try await bucket.replayEvents("s", .from(1)) == 3)
            _ = try await bucket.trimEvents(before: .max, keeping: 0, limit: 100)
            #expect(try await bucket.events(after: 0, limit: 10).map(\.sequence) == [1, 2, 3])
            try await DeliveryTests.settle(bucket, EventSettlement(subscription: "s", cursor: 2))
            _ = try await bucket.trimEvents(before: .max, keeping: 0, limit: 100)
            #expect(try await bucket.events(after: 0, limit: 10).map(\.sequence) == [3])
        }
    }

    @Test func removedSubscriptionsKeepNothing() async throws {
        try await onOpenBucket(path) { bucket in
            bucket.beginSubscriptions(["s", "t"], recording: DeliveryTests.all)
            try await DeliveryTests.put(bucket, "a")
            // Noted first, removed when it has been absent for long enough.
            try await bucket.removeSubscriptions(except: ["t"], since: 0)
            #expect(try await bucket.subscriptionProgress("s") != nil)
            try await bucket.removeSubscriptions(except: ["t"], since: .max)
            // A settlement that comes late does not bring it back.
            let retry = EventRetry(sequence: 1, attempts: 1, due: 1)
            try await DeliveryTests.settle(bucket, EventSettlement(subscription: "s", cursor: 1, kept: [retry]))
            #expect(try await bucket.subscriptionProgress("s") == nil)
            #expect(try await bucket.eventRetries("s", dead: false, limit: 1).isEmpty)
            #expect(try await bucket.subscriptionProgress("t")?.cursor == 0)
            try await bucket.removeSubscriptions(except: [], since: .max)
            #expect(try await bucket.subscriptionProgress("t") == nil)
        }
    }
}
