import BucketConformance
import System
import TestSupport
import Testing

@testable import Buckets

/// What becomes of sessions on S3 whose gateway was killed, or whose upload or state the service has lost.
@Suite("Upload sessions on S3 after a kill or a loss", .timeLimit(.minutes(1)))
struct S3SettlingTests {
    /// The request of a killed gateway that completes the multipart upload.
    ///
    /// Safety: confined to the test's loop.
    private final class Completion: @unchecked Sendable {
        var execute: (() -> Void)?
    }

    private let model = S3Model()
    private let bytes = pattern(50_000, seed: 1)
    private let expires: Int64 = 1_003_600

    private func gateway(
        _ before: @escaping @Sendable (String) -> Void = { _ in }
    ) -> S3ModelGateway {
        model.gateway { what, _ in
            before(what)
            return .none
        }
    }

    private func begin(_ gateway: S3ModelGateway) async throws -> CloudSession {
        let upload = UploadPlan(ObjectAttributes(contentType: "a/b"))
        return try await gateway.service.begin("n", SessionPlan(upload, expires: expires))
    }

    private func put(_ name: String, _ bytes: [UInt8]) {
        model.state.withLock {
            $0.objects[name] = S3Model.Object(bytes: bytes, etag: "other", generation: 7)
        }
    }

    private var object: [UInt8]? { model.state.withLock { $0.objects["n"]?.bytes } }

    /// A session with all bytes, whose gateway is killed while it completes the multipart upload.
    private func killed(_ preconditions: Preconditions = Preconditions()) async throws
        -> (id: UploadSessionID, completion: Completion)
    {
        let completion = Completion()
        let gateway = model.gateway { what, late in
            if what == "complete" { completion.execute = completion.execute ?? late }
            return completion.execute == nil ? .none : .before
        }
        let session = try await begin(gateway)
        try await session.append(bytes, at: 0)
        _ = try? await session.commitAll(preconditions)
        #expect(completion.execute != nil)
        gateway.service.close()
        return (session.id, completion)
    }

    private func isCommitted(_ id: UploadSessionID) async throws -> Bool {
        let state = try await gateway().service.open(id).state()
        if case .committed(let result)? = state.end {
            return result.metadata.size == UInt64(bytes.count)
        }
        return false
    }

    private func expectPreconditionFailed(_ session: CloudSession) async {
        do {
            _ = try await session.commitAll()
            Issue.record("a commit after the object was stored")
        } catch SessionError.store(let error) {
            #expect(error.code == .preconditionFailed)
        } catch {
            Issue.record(error)
        }
    }

    @Test("A commit whose result was not written is found when the state is read")
    func result() async throws {
        try await onLoop {
            let (id, completion) = try await killed()
            #expect(try await !isCommitted(id))
            completion.execute?()
            #expect(try await isCommitted(id))
            // From the state, whatever becomes of the object.
            put("n", [1])
            #expect(try await isCommitted(id))
        }
    }

    @Test("An upload that was stored is not closed")
    func closing() async throws {
        try await onLoop {
            let (id, completion) = try await killed()
            completion.execute?()
            let session = try await gateway().service.open(id)
            await #expect(throws: SessionError.self) {
                try await session.close([1], until: expires)
            }
            #expect(object == bytes)
            #expect(try await isCommitted(id))
        }
    }

    @Test("The last request of a killed gateway stores nothing after the upload was closed")
    func closed() async throws {
        try await onLoop {
            let (id, completion) = try await killed()
            try await gateway().service.open(id).close([1], until: expires)
            completion.execute?()
            #expect(object == nil)
        }
    }

    @Test("A commit after the object was replaced or deleted fails for good")
    func replaced() async throws {
        try await onLoop {
            for other: [UInt8]? in [nil, [1]] {
                let (id, completion) = try await killed()
                completion.execute?()
                model.state.withLock { $0.objects["n"] = nil }
                if let other { put("n", other) }
                let session = try await gateway().service.open(id)
                await expectPreconditionFailed(session)
                #expect(object == other)
            }
        }
    }

    @Test("A late request of a killed gateway makes the preconditions false, and is the result")
    func lateRequest() async throws {
        try await onLoop {
            put("n", [1])
            var preconditions = Preconditions()
            preconditions.generation = 7
            let (id, completion) = try await killed(preconditions)
            let other = gateway { if $0 == "condition" { completion.execute?() } }
            let result = try await other.service.open(id).commitAll(preconditions)
            #expect(result.metadata.size == UInt64(bytes.count))
            #expect(object == bytes)
        }
    }

    @Test("A session whose multipart upload was removed by others ends", arguments: [true, false])
    func removedUpload(_ appends: Bool) async throws {
        try await onLoop {
            let gateway = gateway()
            let session = try await begin(gateway)
            try await session.append(bytes, at: 0)
            model.state.withLock { $0.uploads = [:] }
            do {
                if appends { try await session.append(bytes, at: bytes.count) }
                try await session.commitAll()
                Issue.record("stored")
            } catch SessionError.notFound {
                // As it should be.
            } catch {
                Issue.record(error)
            }
            await #expect(throws: SessionError.self) {
                try await self.gateway().service.open(session.id)
            }
            model.now.withLock { $0 = expires + 1 }
            _ = try await gateway.service.removeExpired(limit: 10)
            #expect(model.leftovers == [])
            gateway.service.close()
        }
    }

    @Test("A session whose state is damaged does not exist, and is removed", arguments: [0, 20])
    func damagedState(_ kept: Int) async throws {
        try await onLoop {
            let first = gateway()
            let session = try await begin(first)
            first.service.close()
            let name = HiddenName.state(session.id).text
            model.state.withLock { state in
                let bytes = state.objects[name]?.bytes ?? []
                state.objects[name]?.bytes = Array(bytes.prefix(kept))
            }
            let other = gateway().service
            do {
                _ = try await other.open(session.id)
                Issue.record("opened")
            } catch SessionError.notFound {
                // As it should be.
            }
            model.now.withLock { $0 = expires + 3599 }
            #expect(try await other.removeExpired(limit: 10) == 0)
            #expect(model.leftovers == [name])
            model.now.withLock { $0 = expires + 3600 }
            // It is reported once.
            await #expect(throws: BucketError.self) { try await other.removeExpired(limit: 10) }
            #expect(model.leftovers == [])
            #expect(try await other.removeExpired(limit: 10) == 0)
        }
    }

    @Test("Lost multipart uploads are aborted later if they can't be told from those of others")
    func lostUploads() async throws {
        try await onLoop {
            let session = try await begin(gateway())
            model.state.withLock {
                $0.uploads["lost"] = S3Model.Upload(name: "n", mark: 1, generation: 1)
            }
            let other = gateway()
            other.leavesLost = true
            try await other.service.open(session.id).cancel()
            await #expect(throws: SessionError.self) { try await other.service.open(session.id) }
            #expect(model.leftovers.count == 3)
            model.now.withLock { $0 += CloudSessions.settlingTime - 1 }
            #expect(try await other.service.removeExpired(limit: 10) == 0)
            // They still can't be told, for example because others upload to the same name all the time.
            model.now.withLock { $0 += CloudSessions.settlingTime }
            #expect(try await other.service.removeExpired(limit: 10) == 0)
            #expect(model.leftovers.count == 3)
            other.leavesLost = false
            #expect(try await other.service.removeExpired(limit: 10) == 1)
            #expect(model.leftovers == [])
        }
    }

    @Test("The bytes of an append whose client has gone are durable before the bucket closes")
    func closingBucket() async throws {
        try await onLoop {
            let gateway = gateway()
            let session = try await begin(gateway)
            var append: (any SessionAppend)? = try await session.append(AppendPlan(at: 0))
            try await append?.fill(bytes)
            append = nil
            await gateway.service.work.finish()
            let state = try await self.gateway().service.open(session.id).state()
            #expect(state.offset == UInt64(bytes.count))
            gateway.service.close()
        }
    }
}
