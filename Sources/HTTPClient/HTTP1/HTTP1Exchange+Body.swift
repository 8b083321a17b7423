import Glibc
import System
import Wire

/// Reading a response's body.
extension HTTP1Exchange {
    /// The number of bytes of an unwanted body that are read and dropped to keep the connection.
    private static let drainedBytes = 64 * 1024

    /// Reads the body's next bytes.
    func read(into buffer: UnsafeMutableRawBufferPointer) throws(ClientError) -> SourceRead {
        transport.loop.assertCurrent()
        if let failure { throw failure }
        guard state == .body, buffer.count > 0 else { return state == .body ? .wait : .end }
        let result =
            switch framing {
            case .none: SourceRead.end
            case .length: readCounted(buffer)
            case .chunked: readChunked(buffer)
            case .untilClose: readUntilClose(buffer)
            }
        if let failure { throw failure }
        if result == .wait {
            readClock.start(transport.loop.now)
            connection?.updateTimer()
        }
        return result
    }

    /// Reads from the socket, or from the bytes that came with the head, into `buffer`; nil if the body is incomplete.
    private func receive(into buffer: UnsafeMutableRawBufferPointer, isLast: Bool = false)
        -> HTTP1Connection.Received
    {
        if !rest.isEmpty {
            let end = min(restRead + buffer.count, rest.count)
            let count = end - restRead
            rest.withUnsafeBytes { buffer.copyMemory(from: .init(rebasing: $0[restRead..<end])) }
            restRead = end
            if end == rest.count { dropRest() }
            return .bytes(count)
        }
        guard let connection else { return .wait }
        let received = connection.receive(into: buffer, isLast: isLast)
        if case .bytes(let count) = received {
            let now = transport.loop.now
            readClock.stop(now)
            let enough = request.waitLimit == nil ? transport.settings.progressBytes : 1
            readClock.moved(count, of: enough, now)
        }
        return received
    }

    private func readCounted(_ buffer: UnsafeMutableRawBufferPointer) -> SourceRead {
        let room = Int(min(remaining, UInt64(buffer.count)))
        let isLast = UInt64(room) == remaining
        switch receive(into: .init(rebasing: buffer[..<room]), isLast: isLast) {
        case .bytes(let count):
            remaining -= UInt64(count)
            if remaining == 0 { complete(clean: rest.isEmpty) }
            return .bytes(count)
        case .wait: return .wait
        case .end: return brokenOff("\(remaining) bytes of the body are missing")
        case .failed(let error): return brokenOff("\(error)")
        }
    }

    /// Decodes in place, because the decoded bytes are never longer.
    private func readChunked(_ buffer: UnsafeMutableRawBufferPointer) -> SourceRead {
        while true {
            switch receive(into: buffer) {
            case .bytes(let count):
                do throws(HTTP1SyntaxError) {
                    let (kept, used) = try decode(buffer, count)
                    if let used { complete(clean: used == count && rest.isEmpty) }
                    if kept > 0 { return .bytes(kept) }
                    if used != nil { return .end }
                } catch {
                    fail(.malformed, error.reason)
                    return .end
                }
            case .wait: return .wait
            case .end: return brokenOff("the last chunk is missing")
            case .failed(let error): return brokenOff("\(error)")
            }
        }
    }

    /// Moves the body's bytes among the first `count` bytes of `buffer` to its start.
    /// - Returns: Their number, and whether the body ends here and where.
    private func decode(_ buffer: UnsafeMutableRawBufferPointer, _ count: Int)
        throws(HTTP1SyntaxError) -> (kept: Int, end: Int?)
    {
        guard let start = buffer.baseAddress else { return (0, nil) }
        let input = UnsafeRawBufferPointer(start: start, count: count).bindMemory(to: UInt8.self)
        var offset = 0
        var kept = 0
        while true {
            switch try chunks.next(input.span, at: &offset) {
            case .data(let length):
                if offset != kept { memmove(start + kept, start + offset, length) }
                offset += length
                kept += length
            case .incomplete: return (kept, nil)
            case .end: return (kept, offset)
            }
        }
    }

    private func readUntilClose(_ buffer: UnsafeMutableRawBufferPointer) -> SourceRead {
        switch receive(into: buffer) {
        case .bytes(let count): return .bytes(count)
        case .wait: return .wait
        case .end:
            complete(clean: false)
            return .end
        case .failed(let error): return brokenOff("\(error)")
        }
    }

    private func brokenOff(_ how: String) -> SourceRead {
        fail(.connectionLost, "the response broke off: \(how)")
        return .end
    }

    private func complete(clean: Bool) {
        end(reusable: keepAlive && clean)
        ended()
    }

    func whenReadable(_ resume: @escaping () -> Void) {
        transport.loop.assertCurrent()
        waiter = resume
        // If bytes are available already, `resume` is called at the end of the batch.
        guard state == .body, rest.isEmpty, let connection, !connection.canReceive else {
            return transport.afterwards { [self] in wake() }
        }
    }

    func wake() {
        guard let resume = waiter else { return }
        waiter = nil
        resume()
    }

    /// The reader has dropped the body, perhaps on another thread.
    func dropped() {
        let loop = transport.loop
        if loop.isCurrent { close() } else { loop.execute { self.close() } }
    }

    func close() {
        transport.loop.assertCurrent()
        guard state == .body else { return }
        waiter = nil
        drain()
        guard state == .body else { return }
        failure = ClientError(.cancelled, "the body was closed")
        end(reusable: false)
        ended()
    }

    /// Reads the rest of the body if it is available already and short.
    private func drain() {
        guard keepAlive, remaining <= UInt64(HTTP1Exchange.drainedBytes) else { return }
        var left = HTTP1Exchange.drainedBytes
        while state == .body && left > 0 {
            guard case .bytes(let count) = try? read(into: transport.input) else { return }
            left -= count
        }
    }
}
