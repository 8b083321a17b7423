import BucketConformance
import Glibc
import TestSupport
import Testing

@testable import Buckets

/// The acknowledged and the pending operations of the killed process.
private struct Ledger {
    struct Object: Equatable {
        var size: Int
        var seed: UInt64
        var contentType: String
    }
    /// nil: the object is acknowledged to be absent.
    var acknowledged: [String: Object?] = [:]
    var pending: [String: Object?] = [:]
    /// The sources of pending moves, by their targets.
    var moves: [String: String] = [:]
    var count = 0

    mutating func read(_ line: String) {
        let words = line.split(separator: " ").map(String.init)
        guard words.count >= 2 else { return }
        let name = words[1]
        let now = acknowledged[name] ?? nil
        switch (words[0], words.dropFirst(2).first) {
        case ("try", "put"):
            pending[name] = .some(
                Object(size: Int(words[3])!, seed: UInt64(words[4])!, contentType: words[5]))
        case ("try", "delete"): pending[name] = .some(nil)
        case ("try", "patch"):
            var object = now
            object?.contentType = words[3]
            pending[name] = .some(object)
        case ("try", "copy"), ("try", "move"):
            let source = words[3]
            var object = acknowledged[source] ?? nil
            object?.contentType = words[4]
            pending[name] = .some(object)
            if words[2] == "move" {
                moves[name] = source
                pending[source] = .some(nil)
            }
        case ("ack", _):
            let names = [name] + (moves.removeValue(forKey: name).map { [$0] } ?? [])
            for name in names {
                if let object = pending.removeValue(forKey: name) { acknowledged[name] = .some(object) }
            }
            count += 1
        default: break
        }
    }
}

@Suite("A process killed at any time", .timeLimit(.minutes(10)))
struct CrashTests {
    @Test("Every acknowledged write is complete, and nothing is left over: 60 times")
    func killedSixtyTimes() async throws {
        let directory = TemporaryDirectory()
        let path = directory.path + "/bucket"
        var ledger = Ledger()
        var present = 0
        for round in 0..<60 {
            // From the first moments, when files are created and leftovers removed, to long storms.
            let length = round % 3 == 0 ? round / 3 : round * 7 % 200
            for line in try await killedStorm([path, String(round)], after: length) {
                ledger.read(line)
            }
            present = try await verify(path, &ledger)
        }
        // There was a storm, and it left objects to verify.
        #expect(ledger.count > 1000)
        #expect(present > 20)
    }

    /// Opens the bucket and compares all objects with the acknowledged ones.
    /// - Returns: The number of objects.
    private func verify(_ path: String, _ ledger: inout Ledger) async throws -> Int {
        let known = ledger
        let found = try await onLoop { () -> [String: Ledger.Object] in
            let bucket = try openBucket(path)
            var objects: [String: Ledger.Object] = [:]
            let names = try await bucket.list(
                ListQuery(prefix: "", delimited: false, limit: 1000), after: nil
            ).items
            for name in names {
                let reader = try await bucket.open(name, ReadPlan())
                let metadata = reader.metadata
                let bytes = try await readAll(reader, 0..<metadata.size)
                #expect(digest(.md5, bytes) == metadata.md5)
                let candidates = [known.acknowledged[name] ?? nil, known.pending[name] ?? nil]
                let object = candidates.compactMap { $0 }.first {
                    $0.contentType == metadata.attributes.contentType
                        && bytes == pattern($0.size, seed: $0.seed)
                }
                let known: Ledger.Object = try #require(
                    object, "\(name) is neither the old nor the new object")
                objects[name] = known
            }
            await bucket.close()
            return objects
        }
        for (name, object) in ledger.acknowledged where ledger.pending[name] == nil {
            #expect(found[name] == object, "\(name) is not as it was acknowledged")
        }
        for (name, source) in ledger.moves {
            let isMoved = found[name] == ledger.pending[name]
            #expect((found[source] == nil) == isMoved, "\(source) is half moved to \(name)")
        }
        ledger.moves = [:]
        for (name, object) in ledger.pending {
            let now = found[name]
            #expect(
                now == object || now == (ledger.acknowledged[name] ?? nil),
                "\(name) is something else")
            ledger.acknowledged[name] = .some(now)
        }
        ledger.pending = [:]
        try expectNoLeftovers(path)
        return found.count
    }
}

/// Checks that the files of a closed bucket are exactly those in its index.
func expectNoLeftovers(_ path: String, sourceLocation: SourceLocation = #_sourceLocation) throws {
    let connection = try SQLiteConnection(path + "/index.sqlite", cacheKiB: 512)
    let statement = try SQLiteStatement(
        connection, "SELECT DISTINCT blob FROM objects WHERE blob IS NOT NULL ORDER BY CAST(blob AS TEXT)")
    var named: [String] = []
    while try statement.step() { named.append(String(statement.int64(0))) }
    let found = files(of: path)
    #expect(found.blobs == named, "files and index differ", sourceLocation: sourceLocation)
    #expect(found.staged == [], "staged files are left", sourceLocation: sourceLocation)
    let orphans = try connection.integer(
        "SELECT count(*) FROM contents WHERE generation NOT IN (SELECT generation FROM objects)")
    #expect(orphans == 0, "contents without an object", sourceLocation: sourceLocation)
    let missing = try connection.integer(
        """
        SELECT count(*) FROM objects WHERE blob IS NULL AND size > 0
        AND generation NOT IN (SELECT generation FROM contents)
        """)
    #expect(missing == 0, "objects without contents", sourceLocation: sourceLocation)
    let miscounted = try connection.integer(
        """
        SELECT count(*) FROM state
        WHERE (objects, bytes) <> (SELECT count(*), ifnull(sum(size), 0) FROM objects)
        """)
    #expect(miscounted == 0, "objects are miscounted", sourceLocation: sourceLocation)
    if try connection.integer("PRAGMA user_version") == ExtendedIndex.version {
        let parts = try connection.integer("SELECT count(*) FROM parts")
        #expect(parts == 0, "parts without an upload", sourceLocation: sourceLocation)
        let counted =
            "SELECT blob, count(*) - 1 FROM objects WHERE blob IS NOT NULL GROUP BY blob HAVING count(*) > 1"
        let stored = "SELECT blob, copies FROM shared_blobs"
        for (one, other) in [(counted, stored), (stored, counted)] {
            let differences = try connection.integer("SELECT count(*) FROM (\(one) EXCEPT \(other))")
            #expect(differences == 0, "owners of blobs are miscounted", sourceLocation: sourceLocation)
        }
    }
}
