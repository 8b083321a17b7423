import Glibc
import System
import Wire

/// Body bytes received before the reader requested them, in a buffer of the loop's pool.
struct ReadAhead {
    let buffer: UnsafeMutableRawBufferPointer
    /// The bytes not read yet.
    private(set) var unread: Range<Int>

    init(_ buffer: UnsafeMutableRawBufferPointer, count: Int) {
        self.buffer = buffer
        unread = 0..<count
    }

    mutating func read(into target: UnsafeMutableRawBufferPointer) -> Int {
        let taken = unread.prefix(target.count)
        target.copyMemory(from: .init(rebasing: buffer[taken]))
        unread = taken.upperBound..<unread.upperBound
        return taken.count
    }
}

extension HTTP1Exchange {
    /// The maximum number of unwanted body bytes that are read and dropped to keep the connection.
    private static let drainedBytes = 64 * 1024

    /// nil, because a body that arrived with its head is an ``ArrivedBody``.
    var arrivedRest: Int? { nil }

    func read(into buffer: UnsafeMutableRawBufferPointer) throws(ClientError) -> SourceRead {
        transport.loop.assertCurrent()
        if let failure { throw failure }
        guard state.phase == .body, buffer.count > 0 else {
            return state.phase == .body ? .wait : .end
        }
        let result =
            switch state.framing {
            case .none: SourceRead.end
            case .length: readCounted(buffer)
            case .chunked: readChunked(buffer)
            case .untilClose: readUntilClose(buffer)
            }
        if let failure { throw failure }
        if result == .wait {
            readClock.start(transport.loop.now)
            connection?.coalesce(state.remaining)
            connection?.updateTimer()
        }
        return result
    }

    /// Reads bytes received earlier, or receives bytes.
    /// - Parameter more: The number of body bytes beyond `buffer`; nil if unknown.
    private func receive(into buffer: UnsafeMutableRawBufferPointer, more: UInt64? = nil)
        -> SocketConnection.Received
    {
        if !rest.isEmpty {
            let end = min(restRead + buffer.count, rest.count)
            let count = end - restRead
            rest.withUnsafeBytes { buffer.copyMemory(from: .init(rebasing: $0[restRead..<end])) }
            restRead = end
            if end == rest.count { dropRest() }
            return .bytes(count)
        }
        if let count = ahead?.read(into: buffer) {
            if ahead?.unread.isEmpty == true { dropAhead() }
            return .bytes(count)
        }
        guard let connection else { return .wait }
        let received = receive(into: buffer, more: more, from: connection)
        if case .bytes(let count) = received {
            let now = transport.loop.now
            readClock.stop(now)
            let enough = request.waitLimit == nil ? transport.settings.progressBytes : 1
            readClock.moved(count, of: enough, now)
            return .bytes(min(count, buffer.count))
        }
        return received
    }

    /// Receives bytes into `buffer`, and in clear text the following ones with the same system call: with every call the
    /// kernel acknowledges what has arrived, which costs more than a copy. Saves 1 to 5 % of a large download's CPU.
    /// - Returns: The number of bytes of both together.
    private func receive(
        into buffer: UnsafeMutableRawBufferPointer, more: UInt64?, from connection: SocketConnection
    ) -> SocketConnection.Received {
        let pool = transport.loop.readAhead
        guard let more, more > 0, connection.session == nil, let space = pool.take() else {
            return connection.receive(into: buffer, isLast: more == 0)
        }
        let wanted = Int(min(more, UInt64(space.count)))
        let received = connection.receive(
            into: buffer, .init(rebasing: space[..<wanted]), isLast: UInt64(wanted) == more)
        if case .bytes(let count) = received, count > buffer.count {
            ahead = ReadAhead(space, count: count - buffer.count)
        } else {
            pool.giveBack(space)
        }
        return received
    }

    private func readCounted(_ buffer: UnsafeMutableRawBufferPointer) -> SourceRead {
        let limit = Int(min(state.remaining, UInt64(buffer.count)))
        let more = state.remaining - UInt64(limit)
        switch receive(into: .init(rebasing: buffer[..<limit]), more: more) {
        case .bytes(let count):
            complete(state.handle(.bodyRead(count, hasSurplus: !rest.isEmpty)))
            return .bytes(count)
        case .wait: return .wait
        case .end: return connectionLost(nil)
        case .failed(let error): return connectionLost(error)
        }
    }

    /// Decodes in place, because decoded bytes are never longer.
    private func readChunked(_ buffer: UnsafeMutableRawBufferPointer) -> SourceRead {
        while true {
            switch receive(into: buffer) {
            case .bytes(let count):
                do throws(HTTP1SyntaxError) {
                    let (kept, used) = try decode(buffer, count)
                    if let used {
                        let hasSurplus = used < count || !rest.isEmpty
                        complete(state.handle(.lastChunk(hasSurplus: hasSurplus)))
                    }
                    if kept > 0 { return .bytes(kept) }
                    if used != nil { return .end }
                } catch {
                    fail(.malformed, error.reason)
                    return .end
                }
            case .wait: return .wait
            case .end: return connectionLost(nil)
            case .failed(let error): return connectionLost(error)
            }
        }
    }

    /// Moves the body bytes among the first `count` bytes of `buffer` to its start.
    /// - Returns: Their number, and the offset at which the body ends, if it does.
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
        case .end: return connectionLost(nil)
        case .failed(let error): return connectionLost(error)
        }
    }

    /// The connection has ended, or failed with `error`. An orderly end may be the end of the body.
    private func connectionLost(_ error: SocketConnection.Failure?) -> SourceRead {
        let action = state.handle(.connectionLost(isOrderly: error == nil, mayResend: false))
        if action == .reject {
            fail(.connectionLost, "the response broke off: \(error.map { "\($0)" } ?? missing)")
        } else {
            complete(action)
        }
        return .end
    }

    private var missing: String {
        if case .length = state.framing {
            return "\(state.remaining) bytes of the body are missing"
        }
        return "the last chunk is missing"
    }

    private func complete(_ action: HTTP1ExchangeState.Action) {
        guard action != .none else { return }
        end(action)
        ended()
    }

    func whenReadable(_ resume: @escaping () -> Void) {
        transport.loop.assertCurrent()
        waiter = resume
        // If bytes are available already, `resume` is called at the end of the batch.
        guard state.phase == .body, rest.isEmpty, ahead == nil, let connection,
            !connection.canReceive
        else {
            return transport.afterwards { [self] in wake() }
        }
    }

    func close() {
        transport.loop.assertCurrent()
        guard state.phase == .body else { return }
        waiter = nil
        drain()
        guard state.phase == .body else { return }
        failure = ClientError(.cancelled, "the body was closed")
        end(state.handle(.failed))
        ended()
    }

    /// Reads the rest of the body if it is short and already available.
    private func drain() {
        guard state.isPersistent, state.remaining <= UInt64(HTTP1Exchange.drainedBytes) else {
            return
        }
        var left = HTTP1Exchange.drainedBytes
        while state.phase == .body && left > 0 {
            guard case .bytes(let count) = try? read(into: transport.input) else { return }
            left -= count
        }
    }
}
