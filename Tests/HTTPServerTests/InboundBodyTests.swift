import Testing

@testable import HTTPServer

@Suite struct InboundBodyTests {
    @Test func bytesThatComeOneByOneAreJoined() {
        let body = InboundBody()
        for number in 0..<10_000 {
            withUnsafeBytes(of: UInt8(truncatingIfNeeded: number)) { body.push($0.bytes) }
        }
        #expect(body.waiting.count == 3)
        #expect(body.waitingCount == 10_000)
        #expect(Array(body.waiting.joined()) == (0..<10_000).map { UInt8(truncatingIfNeeded: $0) })
    }
}
