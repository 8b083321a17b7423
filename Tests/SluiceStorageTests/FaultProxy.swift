import Foundation
import Synchronization

/// Holds connections back until the test has seen what it waits for.
final class Gate: Sendable {
    private let semaphore = DispatchSemaphore(value: 0)

    /// Waits until the gate is open.
    func pass() {
        semaphore.wait()
        semaphore.signal()
    }

    func open() { semaphore.signal() }
}

/// A TCP proxy that damages connections, each in the way that the test says.
final class FaultProxy: Sendable {
    /// What happens to one connection.
    struct Fault: Sendable {
        /// Cuts the connection after this many bytes from the client.
        var cutsRequest = Int.max
        /// Cuts the connection after this many bytes from the server.
        var cutsResponse = Int.max
        /// The bit of this byte of the client is flipped.
        var flipsRequest = Int.max
        /// The bytes of the server from this one on come twice.
        var repeatsResponse = Int.max
        /// Whether the first bytes of the client come twice: a whole request, if it is short.
        var repeatsRequest = false
        /// Nothing is passed on.
        var isSilent = false
        /// Seconds before each piece of the server.
        var delay = 0.0

        static let none = Fault()
    }

    let port: UInt16
    private let listener: Int32
    private let target: UInt16
    private let plan: @Sendable (Int) -> Fault
    private let counts = Mutex((connections: 0, sent: 0, received: 0))

    /// - Parameter plan: The fault of the connection with this number, from 0. Later connections wait for its return.
    init(_ target: UInt16, _ plan: @escaping @Sendable (Int) -> Fault) {
        let (descriptor, port) = Socket.listen()!
        (listener, self.port, self.target, self.plan) = (descriptor, port, target, plan)
        Thread.detachNewThread { [weak self] in
            while true {
                let client = accept(descriptor, nil, nil)
                guard client >= 0, let self else { return }
                self.serve(client)
            }
        }
    }

    deinit {
        shutdown(listener, Int32(SHUT_RDWR))
        close(listener)
    }

    /// How many connections there were.
    var connections: Int { counts.withLock { $0.connections } }
    /// How many bytes the client has sent, and the server has got.
    var sent: Int { counts.withLock { $0.sent } }

    /// How many bytes the server has sent.
    var received: Int { counts.withLock { $0.received } }

    private func serve(_ client: Int32) {
        let number = counts.withLock { counts in
            counts.connections += 1
            return counts.connections - 1
        }
        let fault = plan(number)
        guard !fault.isSilent, let server = Socket.connect(target) else {
            if !fault.isSilent { close(client) }
            return
        }
        let end = Ending(client, server)
        Thread.detachNewThread { [proxy = self] in
            proxy.pump(client, server, cut: fault.cutsRequest, end) { offset, bytes in
                if bytes.indices.contains(fault.flipsRequest - offset) {
                    bytes[fault.flipsRequest - offset] ^= 4
                }
                proxy.counts.withLock { $0.sent += bytes.count }
                if fault.repeatsRequest, offset == 0 { bytes += bytes }
            }
        }
        Thread.detachNewThread { [proxy = self] in
            proxy.pump(server, client, cut: fault.cutsResponse, end) { offset, bytes in
                proxy.counts.withLock { $0.received += bytes.count }
                if fault.delay > 0 { Thread.sleep(forTimeInterval: fault.delay) }
                if offset >= fault.repeatsResponse { bytes += bytes }
            }
        }
    }

    /// Passes bytes on until one side ends, or the cut.
    private func pump(
        _ from: Int32, _ to: Int32, cut: Int, _ end: Ending,
        _ change: (Int, inout [UInt8]) -> Void
    ) {
        var buffer = [UInt8](repeating: 0, count: 64 << 10)
        var offset = 0
        while true {
            let count = recv(from, &buffer, buffer.count, 0)
            if count <= 0 { break }
            var piece = Array(buffer[..<min(count, cut - offset)])
            change(offset, &piece)
            offset += count
            var written = 0
            while written < piece.count {
                let count = piece.withUnsafeBytes {
                    send(
                        to, $0.baseAddress! + written, $0.count - written,
                        Int32(MSG_NOSIGNAL))
                }
                if count <= 0 { break }
                written += count
            }
            if written < piece.count || offset >= cut { break }
        }
        end.end()
    }

    /// Ends both sides of a connection, and closes them when both directions have ended.
    private final class Ending: Sendable {
        private let sides: [Int32]
        private let ended = Mutex(0)

        init(_ client: Int32, _ server: Int32) { sides = [client, server] }

        func end() {
            for side in sides { shutdown(side, Int32(SHUT_RDWR)) }
            let isLast = ended.withLock { ended in
                ended += 1
                return ended == 2
            }
            if isLast { for side in sides { close(side) } }
        }
    }
}
