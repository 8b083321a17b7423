import System
import Testing

@testable import HTTPServer

@Suite("The body of a request that has none")
struct EmptyBodyTests {
    private func stream() throws -> ServerStream {
        let context = LoopContext(
            loop: try EventLoop(), limits: ServerLimits(), statistics: ServerStatistics())
        return ServerStream(
            id: 1, owner: NoOwner(), context: context, expectsContinue: false,
            hasBody: false)
    }

    private func received(_ stream: ServerStream) -> Result<UInt64, BodyError>? {
        var found: Result<UInt64, BodyError>?
        stream.receive(into: NoSink(), limit: 10) { found = $0 }
        return found
    }

    @Test("It is complete at once, also after it was dropped")
    func complete() throws {
        let stream = try stream()
        #expect(stream.isBodyComplete && !stream.isBodyStarved && stream.waitingBytes == 0)
        stream.discardBody()
        guard case .success(0)? = received(stream) else {
            Issue.record("the body is not complete")
            return
        }
        #expect(stream.isBodyComplete && stream.movedBytes == 0)
    }

    @Test("It fails after the client has gone")
    func gone() throws {
        let stream = try stream()
        stream.abandon()
        guard case .failure(.clientGone)? = received(stream) else {
            Issue.record("the body does not fail")
            return
        }
    }
}

private final class NoSink: ByteSink {
    func write(_ bytes: RawSpan) -> Int { bytes.byteCount }
    func whenWritable(_ resume: @escaping () -> Void) {}
}

/// A connection that does nothing.
final class NoOwner: StreamOwner {
    var isInCallback: Bool { false }
    func sendContinue(_ stream: ServerStream) {}
    func sendInterim(_ head: ResponseHead, _ stream: ServerStream) {}
    func responseReady(_ stream: ServerStream) {}
    func bodyReady(_ stream: ServerStream) {}
    func bodyConsumed(_ stream: ServerStream, _ count: Int) {}
    func handlerEnded(_ stream: ServerStream) {}
}
