import System
import Wire

/// Writes a request to the socket: the head, and the body without a copy.
struct HTTP1RequestWriter {
    let request: ClientRequest
    /// Whether the kernel has accepted the head, or its rest is buffered here.
    private(set) var isHeadWritten = false
    var isHeadSent: Bool { isHeadWritten && unsent.isEmpty }
    private(set) var isComplete = false
    /// Whether any byte was accepted, on any connection.
    private(set) var mayHaveReached = false
    private var unsent: ArraySlice<UInt8> = []
    /// The number of bytes sent of an in-memory body.
    private var bodySent = 0

    init(_ request: ClientRequest) { self.request = request }

    mutating func startOver() {
        isHeadWritten = false
        isComplete = false
        unsent = []
        bodySent = 0
    }

    /// Writes as much as the kernel accepts, head and body in one system call if possible. Returns the number of bytes.
    /// - Throws: ``SocketConnection/Failure`` if the connection has failed.
    mutating func write(to connection: SocketConnection, _ transport: SocketTransport)
        throws(SocketConnection.Failure) -> Int
    {
        var total = 0
        if !isHeadWritten {
            let head = encodeHead(transport)
            isHeadWritten = true
            let count = try writeBody(after: head, to: connection, &total)
            if count < head.count { unsent = Array(head[count...])[...] }
        }
        while connection.canSend && (!unsent.isEmpty || hasBody) {
            let head = unsent
            let count = try head.withUnsafeBufferPointer {
                (bytes) throws(SocketConnection.Failure) in
                try writeBody(after: UnsafeRawBufferPointer(bytes), to: connection, &total)
            }
            unsent = unsent.dropFirst(count)
        }
        let isBodyComplete =
            switch request.body {
            case .none: true
            case .bytes(let bytes): bodySent == bytes.count
            case .pipe(let pipe): pipe.isExhausted
            }
        isComplete = unsent.isEmpty && isBodyComplete
        return total
    }

    private var hasBody: Bool {
        switch request.body {
        case .none: false
        case .bytes(let bytes): bodySent < bytes.count
        case .pipe(let pipe): pipe.waitingCount > 0
        }
    }

    /// Sends `head` and the available body, and adds to `total`. Returns the number of accepted bytes of the head.
    private mutating func writeBody(
        after head: UnsafeRawBufferPointer, to connection: SocketConnection, _ total: inout Int
    ) throws(SocketConnection.Failure) -> Int {
        var taken = 0
        switch request.body {
        case .bytes(let bytes):
            let start = bodySent
            taken = try bytes.withUnsafeBufferPointer { (body) throws(SocketConnection.Failure) in
                try connection.send(head, .init(UnsafeBufferPointer(rebasing: body[start...])))
            }
            bodySent += max(0, taken - head.count)
        case .pipe(let pipe) where pipe.waitingCount > 0:
            try pipe.take { (body) throws(SocketConnection.Failure) in
                taken = try connection.send(head, body)
                return max(0, taken - head.count)
            }
        case .none, .pipe: taken = try connection.send(head, .init(start: nil, count: 0))
        }
        if taken > 0 { mayHaveReached = true }
        total += taken
        return min(taken, head.count)
    }

    private func encodeHead(_ transport: SocketTransport) -> UnsafeRawBufferPointer {
        let method = request.method
        var target = request.target
        let (host, fields) = (transport.hostLine, request.fields)
        let lines = fields.lineBytes
        let capacity =
            method.utf8CodeUnitCount + target.utf8.count + host.count + lines + 128
        let start = transport.outputBuffer(capacity)
        var output = Output(end: start)
        output.put(method)
        output.put(" ")
        target.withUTF8 { output.put(UnsafeRawBufferPointer($0)) }
        output.put(" HTTP/1.1\r\n")
        host.withUnsafeBytes { output.put($0) }
        if !fields.contains("user-agent") { output.put("user-agent: sluice\r\n") }
        if request.isAlone { output.put("connection: close\r\n") }
        fields.writeLines(to: output.end)
        output.end += lines
        if var length = request.declaredLength {
            output.put("content-length: ")
            length.withUTF8 { output.put(UnsafeRawBufferPointer($0)) }
            output.put("\r\n")
        }
        output.put("\r\n")
        return UnsafeRawBufferPointer(start: start, count: output.end - start)
    }

    /// Writes into memory that the caller has reserved.
    private struct Output {
        var end: UnsafeMutableRawPointer

        mutating func put(_ bytes: UnsafeRawBufferPointer) {
            guard let base = bytes.baseAddress else { return }
            end.copyMemory(from: base, byteCount: bytes.count)
            end += bytes.count
        }

        mutating func put(_ text: StaticString) {
            put(UnsafeRawBufferPointer(start: text.utf8Start, count: text.utf8CodeUnitCount))
        }
    }
}
