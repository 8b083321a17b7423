import BucketConformance
import Glibc
import TestSupport
import Testing

@testable import Buckets

/// What a killed process had been told of one session.
private struct KnownSession: Sendable {
    enum Step: Sendable {
        case open, committing, committed, cancelling, cancelled
    }
    let id: UploadSessionID
    let name: String
    let bytes: [UInt8]
    var durable = 0
    var step = Step.open
    var generation: Int64?
}

/// All sessions of a killed process, by the text of their ids.
private struct SessionLedger {
    var sessions: [String: KnownSession] = [:]
    var lines = 0

    mutating func read(_ line: String) {
        let words = line.split(separator: " ").map(String.init)
        guard words.count >= 2 else { return }
        lines += 1
        let id = words[1]
        switch words[0] {
        case "begun":
            sessions[id] = KnownSession(
                id: UploadSessionID(text: id)!, name: words[2],
                bytes: pattern(Int(words[3])!, seed: UInt64(words[4])!))
        case "durable": sessions[id]?.durable = Int(words[2])!
        case "commit": sessions[id]?.step = .committing
        case "committed":
            sessions[id]?.step = .committed
            sessions[id]?.generation = Int64(words[2])
        case "cancel": sessions[id]?.step = .cancelling
        case "cancelled": sessions[id]?.step = .cancelled
        default: break
        }
    }
}

@Suite("Upload sessions of a process killed at any time", .timeLimit(.minutes(10)))
struct SessionCrashTests {
    @Test("No acknowledged byte is lost, and every object is exact: 40 times")
    func killedFortyTimes() async throws {
        let directory = TemporaryDirectory()
        let path = directory.path + "/bucket"
        var (lines, continued, made) = (0, 0, 0)
        for round in 0..<40 {
            var ledger = SessionLedger()
            let length = round % 4 == 0 ? round / 4 : round * 7 % 150
            for line in try await killedStorm([path, String(round), "sessions"], after: length) {
                ledger.read(line)
            }
            lines += ledger.lines
            let found = try await verify(path, ledger)
            continued += found.continued
            made += found.made
            try expectNoLeftovers(path)
        }
        // The storm was one, and left something to continue.
        #expect(lines > 1000)
        #expect(continued > 50)
        #expect(made > 50)
    }

    /// Opens the bucket, compares every session with what was acknowledged, and ends it.
    private func verify(_ path: String, _ ledger: SessionLedger) async throws
        -> (continued: Int, made: Int)
    {
        try await onLoop {
            let bucket = try openBucket(path)
            var (continued, made) = (0, 0)
            for known in ledger.sessions.values {
                let session: any UploadSession
                do throws(SessionError) {
                    session = try await bucket.openSession(known.id)
                } catch {
                    guard case .notFound = error else { throw error }
                    #expect(known.step == .cancelling || known.step == .cancelled, "\(known.id)")
                    await #expect(throws: BucketError.self) { try await bucket.stat(known.name) }
                    continue
                }
                #expect(known.step != .cancelled, "a cancelled session is there")
                if try await isCommitted(session, known) {
                    made += 1
                } else {
                    try await complete(session, known, bucket)
                    continued += 1
                }
                let bytes = try await bucket.get(known.name)
                #expect(bytes == known.bytes, "\(known.name) is not what was sent")
            }
            // Sessions that began without anybody hearing of it, and those that have ended.
            for (id, _) in try await bucket.listSessions(after: nil, limit: 10_000) {
                try await bucket.openSession(id).cancel()
            }
            await bucket.close()
            return (continued, made)
        }
    }

    private func isCommitted(_ session: any UploadSession, _ known: KnownSession) async throws
        -> Bool
    {
        guard case .committed(let result) = try await session.state().end else {
            #expect(known.step != .committed, "a commit that was acknowledged is not there")
            return false
        }
        #expect(known.step == .committing || known.step == .committed)
        let generation = result.metadata.generation
        #expect(generation == known.generation ?? generation)
        let again = try await session.commitAll()
        #expect(again.metadata == result.metadata)
        return true
    }

    /// Goes on where the killed process stopped.
    private func complete(
        _ session: any UploadSession, _ known: KnownSession, _ bucket: DirectoryBucket
    ) async throws {
        let offset = try await session.offset()
        #expect(offset >= known.durable, "acknowledged bytes are lost")
        let facts = try await session.finish()
        #expect(facts.md5 == digest(.md5, Array(known.bytes[..<offset])))
        await #expect(throws: BucketError.self) { try await bucket.stat(known.name) }
        try await session.append(Array(known.bytes[offset...]), at: offset)
        let result = try await session.commitAll()
        #expect(result.metadata.md5 == digest(.md5, known.bytes))
        #expect(!result.replaced)
    }
}
