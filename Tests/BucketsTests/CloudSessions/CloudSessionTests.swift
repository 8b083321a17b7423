import BucketConformance
import Glibc
import System
import TestSupport
import Testing

@testable import Buckets

@Suite("Upload sessions whose state is in a service", .timeLimit(.minutes(2)))
struct CloudSessionTests {
    private static let plan = SessionPlan(
        UploadPlan(ObjectAttributes(contentType: "a/b")), expires: 1_003_600)
    private let model = S3Model()

    /// Safety: only kept.
    private struct Held: @unchecked Sendable {
        let append: any SessionAppend
        init(_ append: any SessionAppend) { self.append = append }
    }

    /// A service that does not respond to the parts that it gets, until it is released.
    private final class Stuck: Sendable {
        private let waiters = Lock<[CheckedContinuation<Void, Never>]?>([])

        func gateway(_ model: S3Model) -> S3ModelGateway {
            model.gateway { [self] what, _ in
                if what.hasPrefix("part") { await hold() }
                return .none
            }
        }

        private func hold() async {
            await withCheckedContinuation { waiter in
                let isFree = waiters.withLock { waiters in
                    waiters?.append(waiter)
                    return waiters == nil
                }
                if isFree { waiter.resume() }
            }
        }

        /// Waits for a part.
        func wait() async {
            while waiters.withLock({ $0?.isEmpty == true }) { await Task.yield() }
        }

        func release() {
            for waiter in waiters.withLock({ $0.take() }) ?? [] { waiter.resume() }
        }
    }

    /// Expects that a session goes on at `offset` with 30,000 bytes and becomes the object.
    private func expectGoesOn(_ session: CloudSession, at offset: Int) async throws {
        #expect(try await session.offset() == offset)
        let bytes = pattern(30_000, seed: 2)
        try await session.append(bytes, at: offset)
        try await session.commitAll()
        let object = model.state.withLock { $0.objects["n"] }
        #expect(object.map { Array($0.bytes.dropFirst(offset)) } == bytes)
        #expect(model.state.withLock { $0.made.values.reduce(0, +) } == 1)
    }

    @Test("A session goes on after the loop of its append has ended")
    func endedLoop() async throws {
        let gateway = model.gateway { _, _ in .none }
        let session = try await onLoop { try await gateway.service.begin("n", Self.plan) }
        let loop = try EventLoop()
        let thread = startThread { loop.run() }
        let append = try await Task(executorPreference: loop) {
            try await session.append(pattern(100, seed: 1), at: 0)
            let append = try await session.append(AppendPlan(at: 100))
            // More than a part, so that numbers are claimed.
            try await append.fill(pattern(65_000, seed: 1))
            return Held(append)
        }.value
        loop.stop()
        pthread_join(thread, nil)
        try await onLoop { try await expectGoesOn(session, at: 100) }
        withExtendedLifetime(append) {}
        gateway.service.close()
    }

    @Test("A session goes on if the requests of its append don't end, which change nothing later")
    func stuckRequests() async throws {
        let stuck = Stuck()
        let gateway = stuck.gateway(model)
        gateway.stopLimit = 50_000_000
        try await onLoop {
            let session = try await gateway.service.begin("n", Self.plan)
            try await session.append(pattern(100, seed: 1), at: 0)
            let append = try await session.append(AppendPlan(at: 100))
            try await append.fill(pattern(65_000, seed: 1))
            await stuck.wait()
            #expect(try await session.offset() == 100)
            stuck.release()
            do throws(SessionError) {
                _ = try await append.end()
                Issue.record("the append has not lost")
            } catch {
                guard case .superseded = error else { throw error }
            }
            try await expectGoesOn(session, at: 100)
        }
        gateway.service.close()
    }

    @Test("A call whose client goes away does not wait for its turn")
    func cancelledWaiters() async throws {
        let stuck = Stuck()
        let gateway = stuck.gateway(model)
        try await onLoop {
            let session = try await gateway.service.begin("n", Self.plan)
            let append = try await session.append(AppendPlan(at: 0))
            try await append.fill(pattern(65_000, seed: 1))
            await stuck.wait()
            let loop = EventLoop.current
            // The first one waits for the append. The others wait for the first one.
            let first = Task(executorPreference: loop) { try await session.offset() }
            let others = (0..<100).map { number in
                Task(executorPreference: loop) {
                    if number % 3 == 0 { try await session.open() }
                    _ = try await session.offset()
                }
            }
            for other in others {
                await Task.yield()
                other.cancel()
            }
            for other in others {
                let result = await other.result
                let error = #expect(throws: SessionError.self) { try result.get() }
                // Not a failure of the store.
                let isGone = if case .clientGone? = error { true } else { false }
                #expect(isGone)
            }
            stuck.release()
            let offset = try await first.value
            #expect(offset == 65_000)
            withExtendedLifetime(append) {}
        }
        gateway.service.close()
    }

    @Test("A service whose list does not end keeps neither a list nor the sweep busy")
    func repeatedLists() async throws {
        let gateway = model.gateway { _, _ in .none }
        gateway.repeatsLists = true
        try await onLoop {
            _ = try await gateway.service.begin("n", Self.plan)
            let found = try await gateway.service.list(after: nil, limit: 1)
            #expect(found.count == 1)
            await #expect(throws: BucketError.self) {
                _ = try await gateway.service.list(after: nil, limit: 2)
            }
            model.now.withLock { $0 = 1_003_600 - 1 }
            await #expect(throws: BucketError.self) {
                _ = try await gateway.service.removeExpired(limit: 10)
            }
        }
        gateway.service.close()
    }

    @Test("A list that goes on and on in order ends", arguments: [false, true])
    func endlessLists(isCancelled: Bool) async throws {
        let gateway = model.gateway { _, _ in .none }
        gateway.listsForever = true
        try await onLoop {
            let loop = EventLoop.current
            let sweep = Task(executorPreference: loop) {
                try await gateway.service.removeExpired(limit: 10)
            }
            let list = Task(executorPreference: loop) {
                try await gateway.service.list(after: nil, limit: 10)
            }
            if isCancelled {
                sweep.cancel()
                list.cancel()
            }
            await #expect(throws: BucketError.self) { try await sweep.value }
            await #expect(throws: BucketError.self) { try await list.value }
        }
        gateway.service.close()
    }

    @Test("A session that can't be removed does not keep the sweep from the others")
    func stuckSweep() async throws {
        let stays = Lock(true)
        let gateway = model.gateway { what, _ in
            what == "abort" && stays.withLock { $0 } ? .before : .none
        }
        try await onLoop {
            for (name, bytes) in [("a", 10), ("b", 30_000), ("c", 10), ("d", 30_000), ("e", 10)] {
                let session = try await gateway.service.begin(name, Self.plan)
                try await session.append(pattern(bytes, seed: 1), at: 0)
            }
            model.now.withLock { $0 = 1_003_600 }
            await #expect(throws: BucketError.self) {
                _ = try await gateway.service.removeExpired(limit: 10)
            }
            #expect(model.state.withLock { $0.objects.count } == 2)
            stays.withLock { $0 = false }
            let removed = try await gateway.service.removeExpired(limit: 10)
            #expect(removed == 2)
            #expect(model.state.withLock { $0.objects.isEmpty && $0.uploads.isEmpty })
        }
        gateway.service.close()
    }

    @Test("Of two gateways that commit on S3, one has made the object, which the other repeats")
    func twoCommitters() async throws {
        for isAtOnce in [false, true] {
            let model = S3Model()
            try await onLoop {
                let gateways = (0..<2).map { _ in
                    model.gateway { _, _ in
                        // Another turn for the other one.
                        await Task.yield()
                        return .none
                    }
                }
                let first = try await gateways[0].service.begin("n", Self.plan)
                try await first.append(pattern(30_000, seed: 1), at: 0)
                let facts = try await first.finish()
                let id = first.id
                let loop = EventLoop.current
                var results: [CommitResult] = []
                var tasks: [Task<CommitResult, any Error>] = []
                for gateway in gateways {
                    let task = Task(executorPreference: loop) {
                        let session = try await gateway.service.open(id)
                        return try await session.commit(facts, Preconditions(), resultUntil: .max)
                    }
                    tasks.append(task)
                    if !isAtOnce { _ = try await task.value }
                }
                for task in tasks { results.append(try await task.value) }
                #expect(results[0].metadata.generation == results[1].metadata.generation)
                #expect(results.count { !$0.isRepeated } == 1)
                #expect(model.state.withLock { $0.made.values.reduce(0, +) } == 1)
                for gateway in gateways { gateway.service.close() }
            }
        }
    }
}
