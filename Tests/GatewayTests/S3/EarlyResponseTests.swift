import HTTPServer
import System
import TestSupport
import Testing
import Wire
import XML

@testable import Gateway

@Suite("Responses that begin before their operation has ended") struct EarlyResponseTests {
    private static let declaration = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"

    /// The status and the body of a response.
    /// - Parameters:
    ///   - count: The operation ends when this many bytes of the body have been read; 0 to end at once.
    ///   - result: The result of the operation.
    private func response(
        endingAfter count: Int, _ result: @escaping @Sendable () throws(Problem) -> Response
    ) async throws -> (status: Int, body: String) {
        try await TestLoop.run {
            let gate = AsyncStream<Void>.makeStream()
            if count == 0 { gate.continuation.finish() }
            do throws(Problem) {
                // A minute for an operation that ends in time: it must not be slow by accident.
                let interval: UInt64 = count == 0 ? 60_000_000_000 : 1_000_000
                let response = try await EarlyResponse.response(on: TestLoop.loop, after: interval, HeaderFields()) {
                    () async throws(Problem) -> Response in
                    for await _ in gate.stream {}
                    return try result()
                } render: { problem in
                    var xml = XMLWriter()
                    xml.element("Error", problem.detail)
                    return Response(status: 400, xml: xml)
                }
                let body = await EarlyResponseTests.text(of: response.body) {
                    if $0 >= count { gate.continuation.finish() }
                }
                return (response.head.status, body)
            } catch {
                return (error.code.status, "thrown: \(error.detail)")
            }
        }
    }

    private static func text(of body: ResponseBody, _ progress: (Int) -> Void) async -> String {
        switch body {
        case .none: return ""
        case .bytes(let bytes): return String(decoding: bytes, as: UTF8.self)
        case .source: return "a source"
        case .stream(let source):
            var text: [UInt8] = []
            var buffer = [UInt8](repeating: 0, count: 16)
            while true {
                var span = buffer.mutableSpan
                var bytes = span.mutableBytes
                switch (try? source.read(into: &bytes)) ?? .end {
                case .bytes(let count): text += buffer[..<count]
                case .wait: await withCheckedContinuation { waiter in source.whenReadable { waiter.resume() } }
                case .end:
                    source.close()
                    return String(decoding: text, as: UTF8.self)
                }
                progress(text.count)
            }
        }
    }

    private static func result() -> Response {
        var xml = XMLWriter()
        xml.element("Result", "x")
        return Response(status: 201, xml: xml)
    }

    @Test func inTimeItIsTheOperationsOwn() async throws {
        let whole = try await response(endingAfter: 0) { EarlyResponseTests.result() }
        #expect(whole == (201, EarlyResponseTests.declaration + "<Result>x</Result>"))
        let failed = try await response(endingAfter: 0) { () throws(Problem) in
            throw Problem(.preconditionFailed, "no")
        }
        #expect(failed == (412, "thrown: no"))
    }

    @Test func laterSpacesComeBeforeTheResult() async throws {
        let length = EarlyResponseTests.declaration.utf8.count
        let (status, body) = try await response(endingAfter: length + 3) { EarlyResponseTests.result() }
        #expect(status == 200)
        #expect(body.hasPrefix(EarlyResponseTests.declaration + "   ") && body.hasSuffix(" <Result>x</Result>"))
        #expect(body.split(separator: "<?xml").count == 1)
    }

    @Test func aLateFailureIsInTheBody() async throws {
        let (status, body) = try await response(endingAfter: 1) { () throws(Problem) in
            throw Problem(.preconditionFailed, "no")
        }
        #expect(status == 200 && body.hasSuffix("<Error>no</Error>"))
    }
}
