import BucketConformance
import Glibc
import System
import TestSupport
import Testing

@testable import Buckets

@Suite("Uploads in parts of the directory driver", .timeLimit(.minutes(10)))
struct PartsTests {
    let directory = TemporaryDirectory()
    var path: String { directory.path + "/bucket" }

    @Test(arguments: SessionConformance.partsCases)
    func conforms(_ check: SessionConformance.Case) async throws {
        let path = path
        try await check.run { try openBucket(path) }
        try await onOpenBucket(path) { bucket in
            for (id, _) in try await bucket.listSessions(after: nil, limit: 1000) {
                try await bucket.openParts(id, "", key: []).cancel()
            }
        }
        try expectNoLeftovers(path)
    }

    @Test("Parts of equal size are in their final places, in any order")
    func places() async throws {
        for (order, moved) in [([1, 2, 3, 4], 0), ([3, 2, 1, 4], 0), ([4, 3, 2, 1], 2), ([1, 2, 2, 3, 4], 1)] {
            var layout = PartLayout()
            var next: Int64 = 100
            for number in order {
                let size: UInt64 = number == 4 ? 10 : 1000
                let place = layout.reserve(number, size: size)
                if let place { layout.endReservation(place.id) } else { next += 1 }
                layout.keep(row(number, size, blob: place == nil ? next : nil, offset: place?.offset ?? 0), at: 0)
            }
            let (evicted, moves) = layout.moves(layout.sorted)
            #expect(moves.count == moved, "\(order)")
            #expect(evicted.count <= 1, "\(order)")
        }
    }

    private func row(_ number: Int, _ size: UInt64, blob: Int64?, offset: UInt64) -> PartRow {
        PartRow(number: number, size: size, md5: [], crc32c: 0, updated: 0, blob: blob, offset: offset)
    }

    @Test("Changes that are heard of in another order leave the last one")
    func order() {
        var layout = PartLayout()
        layout.keep(row(1, 10, blob: 7, offset: 0), at: 2)
        layout.keep(row(1, 20, blob: 6, offset: 0), at: 1)
        #expect(layout.rows[1]?.blob == 7)
        // What was read before the last change does not undo it, and what has vanished since does vanish.
        layout.keep(row(2, 10, blob: nil, offset: 10), at: 1)
        layout.load([row(1, 20, blob: 6, offset: 0), row(3, 5, blob: 5, offset: 0)], at: 1)
        #expect(layout.sorted.map(\.blob) == [7, 5] && layout.sorted.map(\.number) == [1, 3])
        layout.load([], at: 3)
        #expect(layout.rows.isEmpty)
    }

    @Test("No part in its own or a reserved place is overwritten: 2,000 random layouts")
    func layouts() {
        var random = SeededGenerator(7)
        for _ in 0..<2000 {
            var layout = PartLayout()
            var blob: Int64 = 0
            for _ in 0..<Int.random(in: 1...12, using: &random) {
                let number = Int.random(in: 1...8, using: &random)
                let size: UInt64 = [0, 1, 7, 10, 10, 10, 25].randomElement(using: &random)!
                let place = layout.reserve(number, size: size)
                blob += 1
                if let place, Bool.random(using: &random) { layout.endReservation(place.id) }
                layout.keep(row(number, size, blob: place == nil ? blob : nil, offset: place?.offset ?? 0), at: 0)
            }
            let places = layout.rows.values.compactMap(\.place).filter { !$0.isEmpty }
            for (index, place) in places.enumerated() {
                #expect(!places[..<index].contains { $0.overlaps(place) })
            }
            let selected = layout.sorted.filter { _ in Int.random(in: 0..<4, using: &random) > 0 }
            let (evicted, moves) = layout.moves(selected)
            let targets = moves.map { $0.target..<$0.target + $0.part.size }
            for part in layout.rows.values where !evicted.contains(part) {
                guard let place = part.place, !place.isEmpty else { continue }
                #expect(!targets.contains { $0.overlaps(place) }, "\(part) is overwritten")
            }
            var end: UInt64 = 0
            for part in selected where part.size > 0 {
                let move = moves.first { $0.part.number == part.number }
                #expect(move?.target ?? part.offset == end)
                #expect(move != nil || part.blob == nil)
                end += part.size
            }
        }
    }

    @Test("Sessions and uploads in parts are no substitutes for each other")
    func otherKind() async throws {
        try await onOpenBucket(path) { bucket in
            let session = try await bucket.begin("a")
            let upload = try await bucket.beginUpload("b")
            await #expect(throws: SessionError.self) { try await bucket.openParts(session.id, "a", key: []) }
            await #expect(throws: SessionError.self) { try await bucket.openSession(upload.id) }
            try await session.cancel()
            try await upload.cancel()
        }
        try expectNoLeftovers(path)
    }

    @Test("Concurrent writers of the same numbers, and commits, agree with a model: 30 rounds")
    func model() async throws {
        let path = path
        for round in 0..<30 {
            try await onOpenBucket(path) { bucket in
                var random = SeededGenerator(UInt64(round))
                let upload = try await bucket.beginUpload("n")
                let kept = Lock<[Int: [String: [UInt8]]]>([:])
                try await withThrowingTaskGroup(of: Void.self) { group in
                    for writer in 0..<8 {
                        let number = Int.random(in: 1...4, using: &random)
                        let size = [1, 40_000, 40_000, 90_000].randomElement(using: &random)!
                        group.addTask(executorPreference: EventLoop.current) {
                            let bytes = pattern(size, seed: UInt64(round * 100 + writer))
                            let part = try await upload.send(number, bytes)
                            kept.withLock { $0[number, default: [:]][part.etag] = bytes }
                        }
                    }
                    try await group.waitForAll()
                }
                let parts = try await upload.parts(after: 0, limit: 10)
                #expect(parts.map(\.number) == kept.withLock { $0.keys.sorted() })
                let wanted = parts.flatMap { part in kept.withLock { $0[part.number]?[part.etag] ?? [] } }
                let result = try await upload.commitAll(parts.map(\.number))
                #expect(result.metadata.size == UInt64(wanted.count))
                #expect(try await bucket.get("n") == wanted)
            }
            try expectNoLeftovers(path)
        }
    }

    @Test("An index with parts or copies is not opened by a program that does not know them")
    func version() async throws {
        let path = path
        try await onOpenBucket(path) { bucket in _ = try await bucket.put("n", [1]) }
        #expect(try SQLiteConnection(path + "/index.sqlite", cacheKiB: 64).integer("PRAGMA user_version") == 1)
        try await onOpenBucket(path) { bucket in try await bucket.beginUpload("n").cancel() }
        #expect(try SQLiteConnection(path + "/index.sqlite", cacheKiB: 64).integer("PRAGMA user_version") == 2)
    }
}

extension PartsTests {
    @Test("A table of parts without checksums gets the column, and keeps its parts")
    func olderTable() async throws {
        let path = path
        let (id, key) = try await onOpenBucket(path) { bucket in
            let upload = try await bucket.beginUpload("n")
            try await upload.send(1, pattern(100_000, seed: 1))
            return (upload.id, upload.key)
        }
        let index = try SQLiteConnection(path + "/index.sqlite", cacheKiB: 64)
        try index.execute("ALTER TABLE parts DROP COLUMN checksum")
        try await onOpenBucket(path) { bucket in
            let upload = try await bucket.openParts(id, "n", key: key)
            let part = try await upload.beginPart(2, PartPlan(size: 10, checksum: .crc64nvme))
            try await part.fill(pattern(10, seed: 2))
            _ = try await part.finish()
            let kept = try await part.keep()
            #expect(kept.checksum?.value.count == 8)
            #expect(try await upload.parts(after: 0, limit: 9).map(\.checksum) == [nil, kept.checksum])
            try await upload.commitAll([1, 2])
            #expect(try await bucket.stat("n").s3Tag.hasSuffix("-2"))
        }
    }
}

/// What a killed process had been told of one upload.
private struct KnownUpload: Sendable {
    let id: UploadSessionID
    let name: String
    /// For each number the contents that it may have: the acknowledged one, and those that were being sent.
    var contents: [Int: [[UInt8]]] = [:]
    var acknowledged: Set<Int> = []
    var step = ""
    var generation: Int64?
}

@Suite("Uploads in parts of a process killed at any time", .timeLimit(.minutes(10)))
struct PartsCrashTests {
    @Test("No acknowledged part is lost, and every object is exact: 40 times")
    func killedFortyTimes() async throws {
        let directory = TemporaryDirectory()
        let path = directory.path + "/bucket"
        var (lines, continued, made) = (0, 0, 0)
        for round in 0..<40 {
            let printed = try await killedStorm(
                [path, String(round), "parts"], after: round % 4 == 0 ? round / 4 : round * 17 % 400)
            lines += printed.count
            let found = try await verify(path, read(printed))
            continued += found.continued
            made += found.made
            try expectNoLeftovers(path)
        }
        #expect(lines > 1000)
        #expect(continued > 50)
        #expect(made > 50)
    }

    private func read(_ lines: [String]) -> [KnownUpload] {
        var uploads: [String: KnownUpload] = [:]
        for line in lines {
            let words = line.split(separator: " ").map(String.init)
            guard words.count >= 2 else { continue }
            let id = words[1]
            switch words[0] {
            case "begun": uploads[id] = KnownUpload(id: UploadSessionID(text: id)!, name: words[2])
            case "try":
                let bytes = pattern(Int(words[3])!, seed: UInt64(words[4])!)
                uploads[id]?.contents[Int(words[2])!, default: []].append(bytes)
            case "part":
                let number = Int(words[2])!
                uploads[id]?.acknowledged.insert(number)
                if let last = uploads[id]?.contents[number]?.last { uploads[id]?.contents[number] = [last] }
            case "commit", "cancel", "cancelled": uploads[id]?.step = words[0]
            case "committed":
                uploads[id]?.step = words[0]
                uploads[id]?.generation = Int64(words[2])
            default: break
            }
        }
        return Array(uploads.values)
    }

    private func verify(_ path: String, _ uploads: [KnownUpload]) async throws -> (continued: Int, made: Int) {
        try await onLoop {
            let bucket = try openBucket(path)
            var (continued, made) = (0, 0)
            for known in uploads {
                let upload: any PartsUpload
                let state: SessionState
                do throws(SessionError) {
                    upload = try await bucket.openParts(known.id, known.name, key: [])
                    state = try await upload.state()
                } catch {
                    guard case .notFound = error else { throw error }
                    #expect(known.step == "cancel" || known.step == "cancelled", "\(known.id)")
                    continue
                }
                #expect(known.step != "cancelled", "a cancelled upload is there")
                if case .committed(let result) = state.end {
                    #expect(known.step == "commit" || known.step == "committed")
                    #expect(result.metadata.generation == known.generation ?? result.metadata.generation)
                    made += 1
                } else {
                    #expect(known.step != "committed", "a commit that was acknowledged is not there")
                    let parts = try await upload.parts(after: 0, limit: 100)
                    #expect(known.acknowledged.isSubset(of: parts.map(\.number)), "an acknowledged part is lost")
                    if parts.isEmpty { continue }
                    try await upload.commitAll(parts.map(\.number))
                    continued += 1
                }
                let bytes = try await bucket.get(known.name)
                #expect(isMade(of: known, bytes), "\(known.name) is not what was sent")
            }
            for (id, _) in try await bucket.listSessions(after: nil, limit: 10_000) {
                try await bucket.openParts(id, "", key: []).cancel()
            }
            await bucket.close()
            return (continued, made)
        }
    }

    /// Whether the bytes are one of the possible contents of each part, one after another. Parts that were never
    /// acknowledged may be missing.
    private func isMade(of known: KnownUpload, _ bytes: [UInt8]) -> Bool {
        var rests: Set<Int> = [0]
        for (number, contents) in known.contents.sorted(by: { $0.key < $1.key }) {
            var next: Set<Int> = known.acknowledged.contains(number) ? [] : rests
            for offset in rests {
                for content in contents where bytes[offset...].starts(with: content) {
                    next.insert(offset + content.count)
                }
            }
            rests = next
        }
        return rests.contains(bytes.count)
    }
}
