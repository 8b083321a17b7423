import BucketConformance
import Foundation
import OpenSSL
import System
import TestSupport
import Testing

@testable import Buckets

/// Two gateways that use one session, with every request delayed, lost or late as a random generator says.
///
/// Safety: confined to its loop.
private final class Interleaving: @unchecked Sendable {
    private struct Waiting {
        var client: Int
        var what: String
        var late: () -> Void
        var waiter: CheckedContinuation<S3ModelFault, Never>
    }
    /// An append whose end was acknowledged.
    private struct Acknowledged {
        var offset: Int
        var bytes: [UInt8]
    }
    private static let name = "n"

    let seed: UInt64
    private var random: SeededGenerator
    private let model = S3Model()
    private var gateways: [S3ModelGateway] = []
    private var waiting: [Waiting] = []
    private var late: [() -> Void] = []
    private var active = 0
    private var hasFaults = true
    private var id: UploadSessionID?
    private var acknowledged: [Acknowledged] = []
    /// The highest offset that an operation has reported.
    private var reported = 0
    /// The MD5 digests of the first bytes of the data, by their number.
    private var prefixes: [Int: [UInt8]] = [:]
    private var generation: Int64?
    private var size: UInt64?
    private var appends: UInt64 = 0
    private(set) var failures: [String] = []
    private(set) var log: [String] = []
    private(set) var commits = 0
    private(set) var superseded = 0

    init(_ seed: UInt64) {
        self.seed = seed
        random = SeededGenerator(seed &* 7_919)
    }

    private func fail(_ what: String) { failures.append("seed \(seed): \(what)") }

    private func chance(_ percent: Int) -> Bool {
        Int.random(in: 0..<100, using: &random) < percent
    }

    private func makeGateway(_ client: Int) -> S3ModelGateway {
        model.gateway { [self] what, late in
            if !hasFaults { return .none }
            return await withCheckedContinuation {
                waiting.append(Waiting(client: client, what: what, late: late, waiter: $0))
            }
        }
    }

    /// Lets one request at a time continue, when all clients wait.
    private func schedule() async {
        while active > 0 {
            while waiting.count < active { await Task.yield() }
            if active == 0 { return }
            waiting.sort { $0.client < $1.client }
            if !late.isEmpty, chance(30) {
                late.remove(at: Int.random(in: 0..<late.count, using: &random))()
                log.append("late delivery")
            }
            let next = waiting.remove(at: Int.random(in: 0..<waiting.count, using: &random))
            var fault = S3ModelFault.none
            if chance(12) { fault = S3ModelFault.allCases.randomElement(using: &random)! }
            // A late creation of an upload is tried with single faults: several faults together can hide it.
            if fault == .late, next.what == "create" { fault = .after }
            if fault == .late { late.append(next.late) }
            log.append("\(next.client): \(next.what) \(fault)")
            if chance(3) {
                log.append("\(next.client) is killed")
                gateways[next.client].isDead.withLock { $0 = true }
                gateways[next.client] = makeGateway(next.client)
            }
            next.waiter.resume(returning: fault)
        }
    }

    func run() async throws {
        hasFaults = false
        gateways = (0..<2).map { makeGateway($0) }
        let upload = UploadPlan(ObjectAttributes(contentType: "a/b"))
        let session = try await gateways[0].service.begin(
            Self.name, SessionPlan(upload, expires: 1_003_600))
        id = session.id
        hasFaults = true
        active = 2
        let clients = (0..<2).map { client in
            Task(executorPreference: EventLoop.current) {
                for _ in 0..<8 { await self.step(client) }
                self.active -= 1
            }
        }
        await schedule()
        for client in clients { await client.value }
        hasFaults = false
        try await settle()
    }

    /// One request of a client.
    private func step(_ client: Int) async {
        let floor = reported
        do throws(SessionError) {
            let session = try await gateways[client].service.open(id!)
            switch Int.random(in: 0..<10, using: &random) {
            case 0...2:
                let state = try await session.state()
                report(Int(state.offset), floor, "HEAD of \(client)")
            case 3:
                let facts = try await session.finish()
                prefixes[Int(facts.size)] = facts.md5
                guard chance(40) else { break }
                let result = try await session.commit(facts, Preconditions(), resultUntil: .max)
                committed(result, facts)
            default: try await append(session, client, floor)
            }
        } catch {
            check(error, floor)
        }
    }

    private func append(_ session: CloudSession, _ client: Int, _ floor: Int)
        async throws(SessionError)
    {
        appends += 1
        let count =
            chance(30)
            ? Int.random(in: 0..<90_000, using: &random)
            : appends % 7 == 0
                ? 0 : Int.random(in: 0..<9_000, using: &random)
        let bytes = pattern(count, seed: appends)
        // Sometimes as another client would, which does not know the offset.
        let offset = chance(85) ? reported : Int.random(in: 0...(reported + 5), using: &random)
        log.append("\(client): append \(count) at \(offset)")
        let append = try await session.append(
            AppendPlan(
                at: UInt64(offset), size: chance(60) ? UInt64(count) : nil,
                isAllOrNothing: chance(20)))
        do { try await append.fill(bytes) } catch let error as SessionError { throw error } catch {
            fail("\(error)")
        }
        if chance(10) { return await append.discard() }
        // Dropped as if the client went away.
        if chance(10) { return }
        let end = Int(try await append.end())
        log.append("\(client): acknowledged \(end)")
        if end > offset + count || end < offset { fail("an append ends at \(end)") }
        acknowledged.append(
            Acknowledged(offset: offset, bytes: Array(bytes.prefix(end - offset))))
        report(end, floor, "append of \(client)")
    }

    private func report(_ offset: Int, _ floor: Int, _ what: String) {
        log.append("\(what): offset \(offset)")
        if offset < floor { fail("\(what) reports \(offset) after \(floor)") }
        reported = max(reported, offset)
    }

    private func committed(_ result: CommitResult, _ facts: ContentFacts) {
        log.append("committed \(facts.size)")
        commits += 1
        if result.metadata.generation != generation ?? result.metadata.generation {
            fail("two generations")
        }
        generation = result.metadata.generation
        // Facts from before another client's commit get that commit's result.
        if result.metadata.size != size ?? result.metadata.size { fail("two sizes") }
        size = result.metadata.size
    }

    private func check(_ error: SessionError, _ floor: Int) {
        log.append("error \(error)")
        switch error {
        case .offsetMismatch(let durable): report(Int(durable), floor, "mismatch")
        case .superseded: superseded += 1
        case .store(let error):
            if error.code == .internal { fail("\(error)") }
        case .finished: break
        case .notFound, .lengthMismatch, .lengthExceeded, .otherBytes, .clientGone, .noSuchPart, .partTooSmall:
            fail("\(error)")
        }
    }

    /// Completes the upload without faults, compares everything, and sweeps.
    private func settle() async throws {
        let gateway = makeGateway(0)
        let session = try await gateway.service.open(id!)
        var state = try await session.state()
        report(Int(state.offset), reported, "the last HEAD")
        if state.end == nil {
            let facts = try await session.finish()
            let result = try await session.commit(facts, Preconditions(), resultUntil: .max)
            committed(result, facts)
            state = try await session.state()
        }
        guard case .committed(let result) = state.end else { return fail("it is not committed") }
        // No client may have got the result yet.
        if result.metadata.generation != generation ?? result.metadata.generation {
            fail("another generation is recorded")
        }
        for request in late { request() }
        let object = model.state.withLock { $0.objects[Self.name] }
        guard let object else { return fail("there is no object") }
        if object.generation != result.metadata.generation { fail("the object is another") }
        if object.bytes.count != Int(state.offset) { fail("the object has \(object.bytes.count)") }
        if model.state.withLock({ $0.made.values.max() }) != 1 { fail("it was made twice") }
        for each in acknowledged {
            let end = each.offset + each.bytes.count
            guard end <= object.bytes.count,
                Array(object.bytes[each.offset..<end]) == each.bytes
            else {
                fail("acknowledged bytes \(each.offset)..<\(end) are lost")
                continue
            }
        }
        for (size, md5) in prefixes where md5 != digest(.md5, Array(object.bytes.prefix(size))) {
            fail("the digest of \(size) bytes is wrong")
        }
        for each in gateways + [gateway] { each.service.close() }
        model.now.withLock { $0 = 1_010_000 }
        let sweeper = makeGateway(1)
        _ = try await sweeper.service.removeExpired(limit: 100)
        if !model.leftovers.isEmpty { fail("left: \(model.leftovers)") }
    }
}

/// One upload by a client that asks and tries again, with a fault at one request.
///
/// Safety: confined to its loop.
private final class SingleFault: @unchecked Sendable {
    private let index: Int
    private let fault: S3ModelFault
    private let isKilled: Bool
    private let model = S3Model()
    private var gateway: S3ModelGateway?
    private var count = 0
    private var late: (() -> Void)?
    private var isCreation = false
    private var reported = 0
    private(set) var log: [String] = []
    /// Whether there was a request with this index.
    private(set) var isHit = false

    init(_ index: Int, _ fault: S3ModelFault, isKilled: Bool) {
        self.index = index
        self.fault = fault
        self.isKilled = isKilled
    }

    private func makeGateway() -> S3ModelGateway {
        model.gateway { [self] what, late in
            defer { count += 1 }
            guard count == index else {
                log.append(what)
                return .none
            }
            isHit = true
            log.append("\(what): \(fault)")
            if fault == .late { self.late = late }
            isCreation = what == "create"
            if isKilled {
                gateway?.isDead.withLock { $0 = true }
                gateway = makeGateway()
            }
            return fault
        }
    }

    /// Repeats an attempt until it is done.
    private func untilDone(_ body: () async throws -> Bool) async throws {
        for _ in 0..<8 {
            do {
                if try await body() { return }
            } catch SessionError.store(let error) {
                #expect(error.code == .unavailable, "\(error), after \(log)")
            } catch SessionError.superseded {
                // Killed, and the next gateway has taken over.
            }
        }
        Issue.record("it does not end: \(log)")
    }

    func run(isCancelled: Bool) async throws {
        gateway = makeGateway()
        let content = pattern(75_000, seed: 3)
        var id: UploadSessionID?
        let upload = UploadPlan(ObjectAttributes(contentType: "a/b"))
        try await untilDone {
            id = try await gateway!.service.begin(
                "n", SessionPlan(upload, expires: 1_003_600)
            ).id
            return true
        }
        for end in [1000, 9000, 18_000, 31_000, 75_000] {
            try await untilDone {
                let session = try await gateway!.service.open(id!)
                let offset = try await session.offset()
                #expect(offset >= reported, "\(log)")
                reported = offset
                if offset == end { return true }
                reported = try await session.append(Array(content[offset..<end]), at: offset)
                return reported == end
            }
        }
        // A creation that is executed after the session's end leaves an upload that nobody knows.
        if isCreation { late.take()?() }
        try await untilDone {
            do throws(SessionError) {
                let session = try await gateway!.service.open(id!)
                if isCancelled {
                    try await session.cancel()
                } else {
                    let facts = try await session.finish()
                    #expect(facts.md5 == digest(.md5, content))
                    _ = try await session.commit(facts, Preconditions(), resultUntil: .max)
                }
            } catch {
                guard isCancelled, case .notFound = error else { throw error }
            }
            return true
        }
        if isCancelled, !isHit { #expect(model.leftovers == []) }
        late?()
        let (made, object) = model.state.withLock { ($0.made.values.reduce(0, +), $0.objects["n"]) }
        #expect(made == (isCancelled ? 0 : 1), "\(log)")
        #expect(object?.bytes == (isCancelled ? nil : content), "\(log)")
        gateway?.service.close()
        model.now.withLock { $0 = 1_010_000 }
        let sweeper = makeGateway()
        for _ in 0..<3 { _ = try? await sweeper.service.removeExpired(limit: 100) }
        #expect(model.leftovers == [], "\(log)")
    }
}

@Suite("Upload sessions on a model of S3", .timeLimit(.minutes(10)))
struct S3SessionModelTests {
    @Test(
        "Two gateways with delayed, lost and late requests: nothing acknowledged is lost or made twice"
    )
    func interleaved() async throws {
        let runs = UInt64(ProcessInfo.runs ?? 1500)
        try await onLoop {
            var (commits, superseded) = (0, 0)
            for seed in 1...runs {
                let run = Interleaving(seed)
                try await run.run()
                commits += run.commits
                superseded += run.superseded
                guard run.failures.isEmpty else {
                    note(run.log.joined(separator: "\n"))
                    Issue.record("\(run.failures)")
                    return
                }
            }
            #expect(commits >= Int(runs))
            #expect(superseded > Int(runs) / 10)
        }
    }

    @Test(
        "A fault at any single request loses nothing, makes nothing twice and leaves nothing",
        arguments: [false, true])
    func singleFaults(isCancelled: Bool) async throws {
        try await onLoop {
            var requests = 0
            for fault in S3ModelFault.allCases where fault != .none {
                for isKilled in [false, true] {
                    for index in 0... {
                        let run = SingleFault(index, fault, isKilled: isKilled)
                        try await run.run(isCancelled: isCancelled)
                        guard run.isHit else { break }
                        requests += 1
                    }
                }
            }
            #expect(requests > 100)
        }
    }
}

extension ProcessInfo {
    /// `SESSION_RUNS`: how many random runs, for a longer search.
    fileprivate static var runs: Int? {
        getenv("SESSION_RUNS").flatMap { Int(String(cString: $0)) }
    }
}
