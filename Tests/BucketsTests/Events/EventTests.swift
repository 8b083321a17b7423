import BucketConformance
import Glibc
import System
import TestSupport
import Testing
import Wire

@testable import Buckets

@Suite("Events of the directory driver", .timeLimit(.minutes(5)))
struct EventTests {
    let directory = TemporaryDirectory()
    var path: String { directory.path + "/bucket" }

    /// Opens the bucket on a loop, and closes it.
    private func withBucket<Result: Sendable>(
        _ filter: EventFilter? = .complete(), _ body: @escaping @Sendable (DirectoryBucket) async throws -> Result
    ) async throws -> Result {
        let path = path
        return try await onLoop {
            let bucket = try DirectoryBucket(path: path, pool: sharedPool, readers: 2, recording: filter)
            let result = try await body(bucket)
            await bucket.close()
            return result
        }
    }

    private func execute(_ sql: String) throws -> Int64 {
        try SQLiteConnection(path + "/index.sqlite", cacheKiB: 64).integer(sql)
    }

    private final class Observer: EventObserver {
        let calls = Lock<[RecordedEvents]>([])
        func recorded(_ events: RecordedEvents) { calls.withLock { $0.append(events) } }
        var names: [String] { calls.withLock { $0.flatMap { $0.events.map(\.name) } } }
    }

    @Test("Nothing is recorded without a filter, and only what it wants with one")
    func filter() async throws {
        try await withBucket(nil) { bucket async throws in
            try await bucket.put("a", [1])
            #expect(try await bucket.allEvents().isEmpty)
            // No statement is even prepared.
            #expect(try await bucket.openDirectory().writer?.events == nil)
            try await bucket.recordEvents(EventFilter { kind, name in kind == .deleted && name == "a" })
            try await bucket.put("b", [1])
            try await bucket.delete("b", Preconditions())
            try await bucket.delete("a", Preconditions())
            #expect(try await bucket.allEvents().map(Change.init) == [Change(.deleted, "a")])
            try await bucket.recordEvents(nil)
            try await bucket.put("a", [1])
            #expect(try await bucket.bounds().newest == 1)
        }
    }

    @Test("An event has the object's properties, but no download tokens and no bytes")
    func properties() async throws {
        try await withBucket { bucket async throws in
            var attributes = ObjectAttributes(contentType: "image/png", cacheControl: "no-cache")
            attributes.customMetadata = ["k": "v"]
            attributes.system.downloadTokens = ["secret-token"]
            let object = try await bucket.put("a", pattern(9000, seed: 1), attributes).metadata
            let event = try #require(try await bucket.allEvents().first)
            #expect(event.object.attributes.system.downloadTokens.isEmpty)
            attributes.system = SystemMetadata()
            #expect(event.object.attributes == attributes)
            #expect(event.object.md5 == object.md5 && event.object.size == 9000)
            #expect(event.time / 1000 == object.created && event.otherGeneration == nil)
        }
    }

    @Test("Observers are called once for each batch, when the events can be read")
    func observers() async throws {
        try await withBucket { bucket async throws in
            let observer = Observer()
            bucket.addEventObserver(observer)
            await withTaskGroup(of: Void.self) { group in
                for index in 0..<100 { group.addTask { _ = try? await bucket.put("n\(index)", [1]) } }
            }
            #expect(Set(observer.names).count == 100)
            let calls = observer.calls.withLock { $0 }
            #expect(calls.count < 100)
            var newest: Int64 = 0
            for call in calls {
                newest += Int64(call.events.count)
                #expect(call.last == newest)
            }
            bucket.removeEventObserver(observer)
            try await bucket.put("later", [1])
            #expect(observer.names.count == 100)
        }
    }

    @Test("Old events are trimmed in pieces, but not before cursors and retries")
    func trimming() async throws {
        try await withBucket { bucket async throws in
            for index in 0..<20 { try await bucket.put("n\(index)", [1]) }
        }
        _ = try execute("INSERT INTO event_cursors(subscription, settled) VALUES ('s', 15)")
        _ = try execute("INSERT INTO event_retries VALUES ('s', 3, 1, 0, NULL, NULL)")
        try await withBucket { bucket async throws in
            #expect(try await bucket.trimmed(before: 1, keeping: .max, limit: 4) == 0)
            #expect(try await bucket.trimmed(before: .max, keeping: .max, limit: 4) == 4)
            #expect(try await bucket.bounds() == EventBounds(start: 4, newest: 20))
            #expect(try await bucket.allEvents().map(\.sequence) == [3] + Array(5...20))
            #expect(try await bucket.trimmed(before: 1, keeping: 12, limit: 100) == 4)
            #expect(try await bucket.bounds().start == 8)
            #expect(try await bucket.trimmed(before: .max, keeping: .max, limit: 100) == 7)
            #expect(try await bucket.allEvents().map(\.sequence) == [3] + Array(16...20))
        }
        _ = try execute("DELETE FROM event_retries")
        _ = try execute("UPDATE event_cursors SET settled = 20")
        try await withBucket { bucket async throws in
            #expect(try await bucket.bounds() == EventBounds(start: 15, newest: 20))
            #expect(try await bucket.trimmed(before: .max, keeping: .max, limit: 100) == 6)
            #expect(try await bucket.bounds() == EventBounds(start: 20, newest: 20))
            // The numbers go on.
            try await bucket.put("n", [1])
            #expect(try await bucket.allEvents().map(\.sequence) == [21])
        }
    }

    @Test("A time without records begins a new history")
    func interruption() async throws {
        let first = try await withBucket { bucket async throws in
            try await bucket.put("a", [1])
            return try await bucket.bounds()
        }
        #expect(first == EventBounds(start: 0, newest: 1))
        // A restart does not.
        try await withBucket { bucket async throws in
            #expect(try await bucket.bounds() == first)
            try await bucket.delete("a", Preconditions())
        }
        // Not even without records, if nothing is changed.
        try await withBucket(nil) { bucket async throws in
            _ = try await bucket.list(ListQuery(prefix: "", delimited: false, limit: 1), after: nil)
        }
        try await withBucket { bucket async throws in
            #expect(try await bucket.bounds() == EventBounds(start: 0, newest: 2))
        }
        try await withBucket(nil) { bucket async throws in _ = try await bucket.put("b", [1]) }
        try await withBucket { bucket async throws in
            let bounds = try await bucket.bounds()
            #expect(bounds == EventBounds(start: 3, newest: 3) && !bounds.contains(2))
            try await bucket.put("c", [1])
            #expect(try await bucket.allEvents(after: 3).map(\.object.name) == ["c"])
        }
        // Only a patch, which changes no counter.
        try await withBucket(nil) { bucket async throws in
            var patch = AttributePatch()
            patch.contentType = .set("text/plain")
            _ = try await bucket.patch("c", patch, Preconditions())
        }
        try await withBucket { bucket async throws in
            #expect(try await bucket.bounds() == EventBounds(start: 5, newest: 5))
        }
    }

    @Test("Changes of an older program, which knows no events, begin a new history")
    func olderProgram() async throws {
        try await withBucket { bucket async throws in
            try await bucket.put("a", [1])
            try await bucket.put("b", [1])
        }
        // As it deletes an object.
        _ = try execute("DELETE FROM objects WHERE name = 'a'")
        _ = try execute("UPDATE state SET objects = objects - 1, bytes = bytes - 1")
        _ = try execute(
            "CREATE TRIGGER poison BEFORE INSERT ON objects WHEN NEW.name = 'poison' BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
        try await withBucket { bucket async throws in
            // A transaction that fails does not hide it.
            #expect((try? await bucket.put("poison", [1])) == nil)
            #expect(try await bucket.bounds() == EventBounds(start: 3, newest: 3))
        }
        // The tables are added to a file without them, and numbers begin where nobody can have one.
        for table in ["events", "event_cursors", "event_retries", "event_state"] {
            _ = try execute("DROP TABLE \(table)")
        }
        try await withBucket { bucket async throws in
            #expect(try await bucket.bounds() == EventBounds(start: 0, newest: 0))
            try await bucket.put("c", [1])
            #expect(try await bucket.allEvents().map(\.object.name) == ["c"])
        }
    }

    @Test("A restored backup is shorter than what a reader has seen")
    func backup() async throws {
        try await withBucket { bucket async throws in _ = try await bucket.put("a", [1]) }
        let copy = directory.path + "/copy"
        #expect(run("cp", "-a", path, copy) == 0)
        try await withBucket { bucket async throws in
            for _ in 0..<5 { try await bucket.put("a", [1]) }
            #expect(try await bucket.bounds().newest == 6)
        }
        #expect(run("rm", "-r", path) == 0)
        #expect(run("mv", copy, path) == 0)
        try await withBucket { bucket async throws in #expect(try await !bucket.bounds().contains(6)) }
    }

    @Test(
        "A full disk: no event of an upload that failed, and a deletion with its event still works",
        .enabled(if: SmallDisk.isPossible, "needs root and the right to mount a tmpfs"))
    func fullDisk() async throws {
        let disk = try #require(SmallDisk())
        let path = disk.path + "/bucket"
        try await onLoop {
            let bucket = try DirectoryBucket(path: path, pool: sharedPool, readers: 2, recording: .complete())
            for index in 0..<20 { try await bucket.put("n\(index)", pattern(10_000, seed: 1)) }
            var puts = 20
            while (try? await bucket.put("more\(puts)", pattern(100_000, seed: 2))) != nil { puts += 1 }
            // The reserve is all that is left.
            for index in 0..<20 { try await bucket.delete("n\(index)", Preconditions()) }
            let events = try await bucket.allEvents()
            #expect(events.count == puts + 20)
            #expect(events.suffix(20).map(Change.init) == (0..<20).map { Change(.deleted, "n\($0)") })
            await bucket.close()
        }
    }
}
