import BucketConformance
import Glibc
import System
import TestSupport
import Testing
import Wire

@testable import Buckets

/// A change as the test expects it: what its caller was told, or what the log has.
struct Change: Hashable, CustomStringConvertible {
    var kind: BucketEvent.Kind
    var name: String
    /// nil if the caller is not told: of a deletion.
    var generation: Int64?
    var metageneration: Int64?

    init(_ kind: BucketEvent.Kind, _ name: String, _ object: ObjectMetadata? = nil) {
        self.kind = kind
        self.name = name
        generation = object?.generation
        metageneration = object?.metageneration
    }

    init(_ event: BucketEvent) {
        self.init(event.kind, event.object.name, event.kind == .deleted ? nil : event.object)
    }

    var description: String { "\(kind) \(name) \(generation ?? 0) \(metageneration ?? 0)" }
}

/// The names of the objects of a bucket, or of a reader that follows its events, with their versions.
typealias Versions = [String: [Int64]]

extension Versions {
    mutating func apply(_ event: BucketEvent) {
        let object = event.object
        switch event.kind {
        case .finalized, .metadataUpdated: self[object.name] = [object.generation, object.metageneration]
        case .deleted: self[object.name] = nil
        case .replaced: break
        }
    }
}

extension DirectoryBucket {
    func allEvents(after sequence: Int64 = 0) async throws -> [BucketEvent] {
        var all: [BucketEvent] = []
        while case let found = try await events(after: all.last?.sequence ?? sequence, limit: 7), !found.isEmpty {
            all += found
        }
        return all
    }

    // Without the type of the error, which the macros of the tests do not pass on.
    func bounds() async throws -> EventBounds { try await eventBounds() }

    func trimmed(before time: Int64, keeping maximum: Int, limit: Int) async throws -> Int {
        try await trimEvents(before: time, keeping: maximum, limit: limit)
    }

    func versions() async throws -> Versions {
        var versions: Versions = [:]
        for name in try await list(ListQuery(prefix: "", delimited: false, limit: 1000), after: nil).items {
            let object = try await stat(name)
            versions[name] = [object.generation, object.metageneration]
        }
        return versions
    }
}

@Suite("Events of the directory driver: a model", .timeLimit(.minutes(5)))
struct EventModelTests {
    let directory = TemporaryDirectory()
    var path: String { directory.path + "/bucket" }

    private static let names = ["a", "b", "c/d", "c/ö", "poison"]

    /// One random operation, and the changes that its caller was told of.
    private static func perform(_ bucket: DirectoryBucket, _ seed: UInt64) async throws -> [Change] {
        var random = SeededGenerator(seed)
        let name = names.randomElement(using: &random)!
        var conditions = Preconditions()
        if Int.random(in: 0..<5, using: &random) == 0 { conditions.generation = 0 }
        switch Int.random(in: 0..<10, using: &random) {
        case 0..<4:
            let bytes = pattern([0, 10, 5000, 40_000].randomElement(using: &random)!, seed: 1)
            return [
                Change(.finalized, name, try await bucket.put(name, bytes, ObjectAttributes(), conditions).metadata)
            ]
        case 4, 5:
            var patch = AttributePatch()
            patch.contentType = .set("text/plain")
            return [Change(.metadataUpdated, name, try await bucket.patch(name, patch, conditions))]
        case 6:
            try await bucket.delete(name, conditions)
            return [Change(.deleted, name)]
        case 7, 8:
            let isMove = Bool.random(using: &random)
            let source = try await bucket.stat(names.randomElement(using: &random)!)
            var plan = CopyPlan(source, source.attributes, preconditions: conditions)
            plan.removesSource = isMove
            let made = Change(.finalized, name, try await bucket.copy(to: name, plan).metadata)
            return isMove && source.name != name ? [made, Change(.deleted, source.name)] : [made]
        default:
            let session = try await bucket.beginSession(
                name, SessionPlan(UploadPlan(ObjectAttributes()), expires: 4_000_000_000))
            try await session.append(pattern(100, seed: 2), at: 0)
            return [Change(.finalized, name, try await session.commitAll(conditions).metadata)]
        }
    }

    /// Makes every transaction with this name fail, at the object or at its event.
    private static func poison(_ path: String, _ table: String) throws {
        let connection = try SQLiteConnection(path + "/index.sqlite", cacheKiB: 64)
        try connection.execute(
            """
            DROP TRIGGER IF EXISTS poison;
            CREATE TRIGGER poison BEFORE INSERT ON \(table) WHEN NEW.name = 'poison'
            BEGIN SELECT RAISE(ABORT, 'poison'); END
            """)
    }

    @Test("Committed changes are the recorded ones, whatever fails, across restarts", arguments: 0..<6)
    func committedIsRecorded(_ seed: Int) async throws {
        let path = path
        try await onLoop {
            var expected: [Change: Int] = [:]
            var last: Int64 = 0
            for round in 0..<6 {
                let bucket = try DirectoryBucket(
                    path: path, pool: sharedPool, readers: 2, recording: .complete(wantsReplaced: { _ in true }))
                if round == 1 || round == 3 { try Self.poison(path, round == 1 ? "objects" : "events") }
                for step in 0..<12 {
                    // Together, so that they share batches.
                    let told = await withTaskGroup(of: [Change].self) { group in
                        for index in 0..<Int.random(in: 1...12) {
                            let number = UInt64(((seed * 100 + round) * 100 + step) * 100 + index)
                            group.addTask { (try? await Self.perform(bucket, number)) ?? [] }
                        }
                        return await group.reduce(into: []) { $0 += $1 }
                    }
                    for change in told { expected[change, default: 0] += 1 }
                }
                let events = try await bucket.allEvents()
                var found: [Change: Int] = [:]
                var versions: Versions = [:]
                for (index, event) in events.enumerated() {
                    if event.kind == .replaced {
                        let next = events[index + 1]
                        #expect(next.kind == .finalized && next.otherGeneration == event.object.generation)
                        #expect(event.otherGeneration == next.object.generation)
                        #expect(versions[event.object.name] == [event.object.generation, event.object.metageneration])
                    } else {
                        found[Change(event), default: 0] += 1
                    }
                    versions.apply(event)
                    #expect(event.sequence == Int64(index + 1))
                    #expect(event.object.attributes.system.pairs.isEmpty)
                }
                #expect(found == expected)
                #expect(try await bucket.versions() == versions)
                let bounds = try await bucket.bounds()
                #expect(bounds == EventBounds(start: 0, newest: events.last?.sequence ?? 0))
                #expect(bounds.newest >= last)
                last = bounds.newest
                await bucket.close()
            }
            #expect(last > 50)
        }
    }

    @Test("List, then events: the state, for every interleaving of pages and writes", arguments: 0..<4)
    func listAndEvents(_ seed: Int) async throws {
        let path = path
        try await onLoop {
            let bucket = try DirectoryBucket(path: path, pool: sharedPool, readers: 2, recording: .complete())
            for round in 0..<20 {
                let writes = Task(executorPreference: EventLoop.current!) {
                    for step in 0..<10 {
                        _ = try? await Self.perform(bucket, UInt64((seed * 100 + round) * 100 + step))
                    }
                }
                // Pages of one name, with writes between them.
                let newest = try await bucket.bounds().newest
                var versions: Versions = [:]
                var after: String?
                repeat {
                    let page = try await bucket.list(ListQuery(prefix: "", delimited: false, limit: 1), after: after)
                    for name in page.items {
                        guard let object = try? await bucket.stat(name) else { continue }
                        versions[name] = [object.generation, object.metageneration]
                    }
                    after = page.end
                } while after != nil
                await writes.value
                for event in try await bucket.allEvents(after: newest) { versions.apply(event) }
                #expect(try await bucket.versions() == versions)
            }
            await bucket.close()
        }
    }
}
