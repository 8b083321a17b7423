import BucketConformance
import System
import TestSupport
import Testing

@testable import Buckets

@Suite("The requests of appends to S3")
struct S3AppendCostTests {
    private static let plan = SessionPlan(
        UploadPlan(ObjectAttributes(contentType: "a/b")), expires: 1_003_600)
    private let model = S3Model()
    private let bytes = pattern(200_000, seed: 4)

    /// Records the requests of a gateway.
    private final class Recorder: Sendable {
        private let requests = Lock<[String]>([])
        func note(_ what: String) { requests.withLock { $0.append(what) } }

        /// The requests since the last call.
        func take() -> [String] {
            requests.withLock { requests in
                defer { requests = [] }
                return requests
            }
        }
    }

    private func gateway(_ recorder: Recorder) -> S3ModelGateway {
        model.gateway { what, _ in
            recorder.note(what)
            return .none
        }
    }

    private var tails: [String] { model.state.withLock { $0.objects.keys.filter { $0.contains(".tail.") } } }

    @discardableResult
    private func append(_ session: any UploadSession, _ offset: Int, _ count: Int) async throws -> Int {
        let size = UInt64(count)
        #expect(try await session.state(appending: size, at: UInt64(offset)).offset == UInt64(offset))
        let append = try await session.append(AppendPlan(at: UInt64(offset), size: size))
        try await append.fill(Array(bytes[offset..<offset + count]))
        return Int(try await append.end())
    }

    @Test("A part that the append fills is sent while it arrives, and otherwise when it is complete")
    func streams() async throws {
        let recorder = Recorder()
        let gateway = gateway(recorder)
        try await onLoop {
            let session = try await gateway.service.begin("n", Self.plan)
            try await append(session, 0, 50_000)
            #expect(gateway.streams.map(\.number) == [1, 2])
            // The tail's part is not streamed, nor that of an append of unknown size.
            try await append(session, 50_000, 20_000)
            #expect(gateway.streams.map(\.number) == [1, 2])
            let blind = try await session.append(AppendPlan(at: 70_000, size: nil))
            try await blind.fill(Array(bytes[70_000..<100_000]))
            #expect(try await blind.end() == 100_000)
            #expect(gateway.streams.map(\.number) == [1, 2])
            // An append that ends early keeps what the stream has taken.
            let cut = try await session.append(AppendPlan(at: 100_000, size: 40_000))
            try await cut.fill(Array(bytes[100_000..<133_000]))
            #expect(try await cut.end() == 133_000)
            #expect(gateway.streams.count == 4)
            #expect(gateway.streams.last?.isCancelled == true)
            try await append(session, 133_000, 7_000)
            // A stream fails while it takes bytes.
            gateway.failsStreams = true
            try await append(session, 140_000, 20_000)
            #expect(gateway.streams.count == 5)
            try await session.commitAll()
            let object = model.state.withLock { $0.objects["n"]?.bytes }
            #expect(object == Array(bytes[..<160_000]))
        }
    }

    /// Parts have 20,000 bytes, and the state at most 4,000 bytes of the tail.
    @Test("The owner reads neither its state nor its tail, and writes unused pieces again")
    func owner() async throws {
        let recorder = Recorder()
        let gateway = gateway(recorder)
        try await onLoop {
            let session = try await gateway.service.begin("n", Self.plan)
            var offset = try await append(session, 0, 15_000)
            #expect(recorder.take() == ["create state", "read", "piece", "write"])
            offset = try await append(session, offset, 15_000)
            #expect(recorder.take() == ["read", "create", "write", "part 1", "piece", "write"])
            for number in 2..<10 {
                offset = try await append(session, offset, 19_000)
                let tail = offset % 20_000 > 4_000 ? ["piece"] : []
                let found = recorder.take()
                #expect(found == ["write", "part \(number)"] + tail + ["write"], "at \(offset)")
                #expect(tails.count <= 2)
            }
            try await session.commitAll()
            let object = model.state.withLock { $0.objects["n"]?.bytes }
            #expect(object == Array(bytes[..<offset]))
            #expect(!recorder.take().contains("read piece"))
            #expect(tails == [])
        }
        gateway.service.close()
    }

    @Test("Of two gateways in turn, each reads the state and the other's tail, and replaces no piece of the other")
    func inTurn() async throws {
        let recorder = Recorder()
        let gateways = [gateway(recorder), gateway(recorder)]
        try await onLoop {
            let id = try await gateways[0].service.begin("n", Self.plan).id
            var offset = 0
            for number in 0..<9 {
                let session = try await gateways[number % 2].service.open(id)
                let before = Set(tails)
                offset = try await append(session, offset, 21_000)
                let state = recorder.take().filter { !$0.contains("piece") }
                if number > 0 { #expect(state == ["read", "write", "part \(number + 1)", "write"]) }
                #expect(before.isSubset(of: tails))
            }
            let session = try await gateways[0].service.open(id)
            try await session.commitAll()
            let object = model.state.withLock { $0.objects["n"]?.bytes }
            #expect(object == Array(bytes[..<offset]))
            #expect(tails == [])
        }
        for gateway in gateways { gateway.service.close() }
    }

    @Test("An owner that was overtaken is refused by its first write, before a byte is accepted")
    func overtaken() async throws {
        let recorder = Recorder()
        let (first, second) = (gateway(recorder), gateway(Recorder()))
        try await onLoop {
            let one = try await first.service.begin("n", Self.plan)
            var offset = try await append(one, 0, 20_000)
            let two = try await second.service.open(one.id)
            #expect(try await two.offset() == offset)
            _ = recorder.take()
            // The other gateway has only claimed it.
            offset = try await append(one, offset, 20_000)
            #expect(recorder.take() == ["write", "read", "read", "write", "write", "part 2", "write"])
            try await append(two, offset, 20_000)
            do throws(SessionError) {
                #expect(try await one.state(appending: 20_000, at: UInt64(offset)).offset == UInt64(offset))
                _ = try await one.append(AppendPlan(at: UInt64(offset), size: 20_000))
                Issue.record("it begins")
            } catch {
                guard case .offsetMismatch(let durable) = error else { throw error }
                #expect(durable == UInt64(offset + 20_000))
            }
        }
        for gateway in [first, second] { gateway.service.close() }
    }
}
