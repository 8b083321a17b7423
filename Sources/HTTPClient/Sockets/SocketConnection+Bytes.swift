import Glibc
import OpenSSL
import System

/// Sending and receiving, in clear text or over TLS.
extension SocketConnection {
    /// The result of a read.
    enum Received {
        case bytes(Int)
        case wait
        case end
        case failed(Failure)
    }

    /// Why the connection can't be used any more.
    struct Failure: Error, CustomStringConvertible {
        let description: String
    }

    var canSend: Bool { isOpen && session?.canWrite ?? isWritable }

    var canReceive: Bool { isOpen && session?.canRead ?? isReadable }

    /// Writes `head`, then `body`: one system call in clear text, shared records of at most 16 KiB over TLS.
    /// - Returns: The number of bytes written, of both together.
    func send(_ head: UnsafeRawBufferPointer, _ body: UnsafeRawBufferPointer) throws(Failure)
        -> Int
    {
        let wanted = head.count + body.count
        guard canSend, wanted > 0 else { return 0 }
        if let session { return try send(head, body, through: session) }
        while true {
            let count = head.isEmpty ? sendOne(body) : body.isEmpty ? sendOne(head) : sendBoth(head, body)
            if count >= 0 {
                if count < wanted { isWritable = false }
                return count
            }
            switch errno {
            case EINTR: continue
            case EAGAIN:
                isWritable = false
                return 0
            default:
                let error = SystemError("send")
                // A response that the upstream sent before it closed may still be readable.
                isReadable = true
                throw Failure(description: "\(error)")
            }
        }
    }

    private func sendOne(_ bytes: UnsafeRawBufferPointer) -> Int {
        Glibc.send(descriptor, bytes.baseAddress, bytes.count, Int32(MSG_NOSIGNAL))
    }

    private func sendBoth(_ head: UnsafeRawBufferPointer, _ body: UnsafeRawBufferPointer) -> Int {
        var parts = (
            iovec(iov_base: .init(mutating: head.baseAddress), iov_len: head.count),
            iovec(iov_base: .init(mutating: body.baseAddress), iov_len: body.count)
        )
        return withUnsafeMutablePointer(to: &parts) { pointer in
            pointer.withMemoryRebound(to: iovec.self, capacity: 2) { vectors in
                var message = msghdr()
                message.msg_iov = vectors
                message.msg_iovlen = 2
                return sendmsg(descriptor, &message, Int32(MSG_NOSIGNAL))
            }
        }
    }

    /// Writes records until nothing is left or the session is full. Only a record with bytes of both is copied.
    private func send(
        _ head: UnsafeRawBufferPointer, _ body: UnsafeRawBufferPointer,
        through session: TLSClientSession
    ) throws(Failure) -> Int {
        var sent = 0
        do throws(TLSError) {
            while sent < head.count + body.count {
                let left = UnsafeRawBufferPointer(rebasing: head[min(sent, head.count)...])
                let rest = UnsafeRawBufferPointer(rebasing: body[max(0, sent - head.count)...])
                let record =
                    left.isEmpty
                    ? rest
                    : left.count >= TLSClientSession.recordBytes || rest.isEmpty
                        ? left : joined(left, rest)
                let isLast = left.count + rest.count <= TLSClientSession.recordBytes
                let count = try session.write(record, isLast: isLast)
                if count == 0 { break }
                sent += count
            }
        } catch {
            throw Failure(description: error.description)
        }
        return sent
    }

    /// Builds one record from `head` and the beginning of `body`.
    private func joined(_ head: UnsafeRawBufferPointer, _ body: UnsafeRawBufferPointer)
        -> UnsafeRawBufferPointer
    {
        let record = transport.record
        let count = min(record.count, head.count + body.count)
        record.copyMemory(from: head)
        UnsafeMutableRawBufferPointer(rebasing: record[head.count...])
            .copyMemory(from: .init(rebasing: body[..<(count - head.count)]))
        return UnsafeRawBufferPointer(rebasing: record[..<count])
    }

    /// Reads available bytes into `buffer`, and in clear text then into `next`.
    /// - Parameter isLast: Whether nothing may follow. Bytes that do are dropped, and the connection is not reused.
    func receive(
        into buffer: UnsafeMutableRawBufferPointer,
        _ next: UnsafeMutableRawBufferPointer = .init(start: nil, count: 0), isLast: Bool = false
    ) -> Received {
        if let session { return receive(into: buffer, isLast: isLast, from: session) }
        let space = buffer.count + next.count
        while canReceive {
            let count =
                isLast || !next.isEmpty
                ? receive(into: buffer, next, surplus: isLast ? 1 : 0)
                : recv(descriptor, buffer.baseAddress, buffer.count, 0)
            if count > 0 {
                if count < space + (isLast ? 1 : 0) && !hasHangup { isReadable = false }
                if count > space { hasGarbage = true }
                coalescing.received(count)
                return .bytes(min(count, space))
            }
            if count == 0 {
                hasHangup = true
                return .end
            }
            switch errno {
            case EINTR: continue
            case EAGAIN: isReadable = false
            default: return .failed(Failure(description: "\(SystemError("recv"))"))
            }
        }
        return .wait
    }

    private func receive(
        into buffer: UnsafeMutableRawBufferPointer, isLast: Bool, from session: TLSClientSession
    ) -> Received {
        guard canReceive else { return .wait }
        do throws(TLSError) {
            switch try session.read(into: buffer) {
            case .bytes(let count):
                if isLast, session.hasContent { hasGarbage = true }
                coalescing.received(count)
                return .bytes(count)
            case .wait: return .wait
            case .closed:
                hasHangup = true
                return .end
            }
        } catch {
            return .failed(Failure(description: error.description))
        }
    }

    /// Reads with one system call. `surplus` (0 or 1) is the number of bytes to read beyond the buffers and drop.
    private func receive(
        into buffer: UnsafeMutableRawBufferPointer, _ next: UnsafeMutableRawBufferPointer, surplus: Int
    ) -> Int {
        var dropped: UInt8 = 0
        return withUnsafeMutablePointer(to: &dropped) { dropped in
            var parts = (
                iovec(iov_base: buffer.baseAddress, iov_len: buffer.count),
                iovec(iov_base: next.baseAddress, iov_len: next.count),
                iovec(iov_base: dropped, iov_len: surplus)
            )
            return withUnsafePointer(to: &parts) { pointer in
                pointer.withMemoryRebound(to: iovec.self, capacity: 3) {
                    readv(descriptor, $0, 3)
                }
            }
        }
    }

    /// Processes messages of TLS itself, then returns whether nothing can be read and the connection is open.
    func isQuiet() -> Bool {
        if let session { return session.isQuiet() }
        var byte: UInt8 = 0
        let flags = Int32(MSG_PEEK | MSG_DONTWAIT)
        isReadable = recv(descriptor, &byte, 1, flags) >= 0 || errno != EAGAIN
        return !isReadable
    }

    /// Lets the next ``receive(into:_:isLast:)`` ask the kernel, regardless of what the loop has reported.
    func lookAgain() {
        isReadable = true
        session?.socketIsReady(readable: true, writable: false, hangup: false)
    }

    /// Waits for more of a body that lacks `missing` bytes.
    func coalesce(_ missing: UInt64) {
        coalescing.wait(descriptor, for: Int(clamping: missing), transport.loop.now)
    }

    /// The number of accepted bytes not yet delivered to the upstream.
    var unacknowledged: Int { Socket.unacknowledged(descriptor) + (session?.unsentCount ?? 0) }
}
