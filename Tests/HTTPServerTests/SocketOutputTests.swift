import Glibc
import Testing

@testable import HTTPServer

@Suite("Bytes that the kernel does not accept")
struct SocketOutputTests {
    /// The largest batch over TLS 1.2, whose records of 16 KiB are 29 bytes longer.
    private static let largest = OutputBuffer.batch + (OutputBuffer.batch / 16_384 + 1) * 29

    @Test("A full batch is queued by a full socket, counted while it is held, and sent in order")
    func fullBatch() throws {
        var pair: (Int32, Int32) = (-1, -1)
        let result = withUnsafeMutablePointer(to: &pair) {
            $0.withMemoryRebound(to: Int32.self, capacity: 2) {
                socketpair(AF_UNIX, Int32(SOCK_STREAM.rawValue | SOCK_NONBLOCK.rawValue), 0, $0)
            }
        }
        try #require(result == 0)
        defer {
            close(pair.0)
            close(pair.1)
        }
        let queue = QueuedBytes()
        var output = SocketOutput(pair.0, queue)
        let filler = [UInt8](repeating: 1, count: 1000)
        var sent = 0
        while case let count = send(pair.0, filler, filler.count, 0), count > 0 { sent += count }
        let batch = (0..<Self.largest).map { UInt8(truncatingIfNeeded: $0 &* 7) }
        #expect(batch.withUnsafeBytes { output.write($0) } == .blocked)
        #expect(queue.count == batch.count)
        // What is held counts until all of it is sent.
        var received: [UInt8] = []
        var buffer = [UInt8](repeating: 0, count: 10_000)
        while received.count < sent + batch.count {
            let count = recv(pair.1, &buffer, buffer.count, 0)
            try #require(count > 0)
            received += buffer[..<count]
            output.isWritable = true
            let isSent = output.flush() == .sent
            #expect(queue.count == (isSent ? 0 : batch.count))
        }
        #expect(received[sent...].elementsEqual(batch))
        #expect(batch.withUnsafeBytes { output.write($0) } != .overflow)
        output.discard()
        #expect(queue.count == 0)
    }
}
