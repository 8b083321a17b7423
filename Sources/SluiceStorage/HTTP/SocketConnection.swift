#if canImport(FoundationNetworking)
    import Foundation
    import Synchronization
    import Wire

    /// A connection in clear text. One thread at a time uses it; every thread may interrupt it.
    ///
    /// Safety: the descriptor does not change, and the other properties belong to the thread that uses the connection.
    final class SocketConnection: @unchecked Sendable {
        /// The maximum size of the head of a response in bytes.
        private static let headLimit = 64 << 10

        private let descriptor: Int32
        /// For how long the peer may be silent, in seconds.
        var silence: TimeInterval
        private var buffer = [UInt8](repeating: 0, count: 256 << 10)
        /// Bytes that were received and not parsed yet.
        private var rest = Data()

        init(_ host: String, _ port: Int, silence: TimeInterval) throws(TransportFailure) {
            var hints = addrinfo()
            hints.ai_socktype = Int32(SOCK_STREAM.rawValue)
            var found: UnsafeMutablePointer<addrinfo>?
            let code = getaddrinfo(host, String(port), &hints, &found)
            guard code == 0, let found else {
                throw .failed("\(host): \(String(cString: gai_strerror(code)))")
            }
            defer { freeaddrinfo(found) }
            self.silence = silence
            var cause = "no address"
            for address in sequence(first: found, next: { $0.pointee.ai_next }) {
                let type = Int32(
                    SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue | SOCK_NONBLOCK.rawValue)
                let socket = socket(address.pointee.ai_family, type, 0)
                guard socket >= 0 else { continue }
                if SocketConnection.connect(socket, address.pointee, silence) {
                    var on: Int32 = 1
                    setsockopt(
                        socket, Int32(IPPROTO_TCP), TCP_NODELAY, &on,
                        socklen_t(MemoryLayout<Int32>.size))
                    descriptor = socket
                    return
                }
                cause = String(cString: strerror(errno))
                close(socket)
            }
            throw .failed("There is no connection to \(host):\(port): \(cause).")
        }

        deinit { close(descriptor) }

        private static func connect(_ socket: Int32, _ address: addrinfo, _ silence: TimeInterval)
            -> Bool
        {
            if Glibc.connect(socket, address.ai_addr, address.ai_addrlen) == 0 { return true }
            guard errno == EINPROGRESS else { return false }
            var request = pollfd(fd: socket, events: Int16(POLLOUT), revents: 0)
            guard poll(&request, 1, Int32(silence * 1000)) == 1 else {
                errno = ETIMEDOUT
                return false
            }
            var code: Int32 = 0
            var size = socklen_t(MemoryLayout<Int32>.size)
            getsockopt(socket, SOL_SOCKET, SO_ERROR, &code, &size)
            errno = code
            return code == 0
        }

        /// Ends what another thread waits for.
        func interrupt() { shutdown(descriptor, Int32(SHUT_RDWR)) }

        /// Whether the connection can be used for another request: it is open, and the peer has sent nothing unasked.
        var isIdle: Bool {
            var request = pollfd(fd: descriptor, events: Int16(POLLIN), revents: 0)
            return rest.isEmpty && poll(&request, 1, 0) == 0
        }

        /// Waits for the connection.
        private func wait(_ events: Int32) throws(TransportFailure) -> Int32 {
            var request = pollfd(fd: descriptor, events: Int16(events), revents: 0)
            let count = poll(&request, 1, Int32(silence * 1000))
            guard count != 0 else {
                throw .failed("The gateway was silent for \(silence) seconds.")
            }
            return count < 0 ? 0 : Int32(request.revents)
        }

        // MARK: Sending

        /// - Returns: Whether everything was sent. The peer may respond before, and need not read the rest then.
        func send(_ bytes: Data) throws(TransportFailure) -> Bool {
            var offset = 0
            while offset < bytes.count {
                let count = bytes.withUnsafeBytes {
                    Glibc.send(
                        descriptor, $0.baseAddress! + offset, $0.count - offset,
                        Int32(MSG_NOSIGNAL))
                }
                if count > 0 {
                    offset += count
                } else if errno == EAGAIN {
                    if try wait(POLLOUT | POLLIN) & POLLIN != 0 { return false }
                } else if errno != EINTR {
                    // A response may have come before the connection was closed.
                    return false
                }
            }
            return true
        }

        // MARK: Receiving

        /// Receives one response.
        func receive(hasBody: Bool, limit: Int) throws(TransportFailure) -> HTTPResponse {
            var head = try receiveHead()
            // Interim responses.
            while head.status < 200 { head = try receiveHead() }
            var body = Data()
            if hasBody, head.status != 204, head.status != 304 {
                if head.isChunked {
                    body = try receiveChunks(limit: limit)
                } else if let length = head.length, length <= limit {
                    body = try receiveBytes(length)
                } else {
                    throw .failed("The response has no length, or is larger than it may be.")
                }
            }
            return HTTPResponse(status: head.status, fields: head.fields, body: body)
        }

        /// Receives more bytes into `rest`.
        private func fill() throws(TransportFailure) {
            while true {
                let count = recv(descriptor, &buffer, buffer.count, 0)
                if count > 0 { return rest.append(contentsOf: buffer[..<count]) }
                if count == 0 { throw .failed("The connection was closed within a response.") }
                if errno == EAGAIN {
                    _ = try wait(POLLIN)
                } else if errno != EINTR {
                    throw .failed("The connection failed: \(String(cString: strerror(errno))).")
                }
            }
        }

        private func receiveHead() throws(TransportFailure) -> ResponseHead {
            let end = Data("\r\n\r\n".utf8)
            while true {
                if let range = rest.range(of: end) {
                    let head = rest[..<range.lowerBound]
                    rest = Data(rest[range.upperBound...])
                    return try ResponseHead(Array(head))
                }
                guard rest.count < SocketConnection.headLimit else {
                    throw .failed("The head of the response is too large.")
                }
                try fill()
            }
        }

        private func receiveBytes(_ count: Int) throws(TransportFailure) -> Data {
            var body = rest.prefix(count)
            rest = Data(rest.dropFirst(count))
            body.reserveCapacity(count)
            while body.count < count {
                try fill()
                let wanted = count - body.count
                body.append(rest.prefix(wanted))
                rest = Data(rest.dropFirst(wanted))
            }
            return Data(body)
        }

        private func receiveChunks(limit: Int) throws(TransportFailure) -> Data {
            var decoder = ChunkedDecoder(lineLimit: SocketConnection.headLimit)
            var body = Data()
            while true {
                let input = Array(rest)
                var offset = 0
                do throws(HTTP1SyntaxError) {
                    while true {
                        let step = try decoder.next(input.span, at: &offset)
                        if case .data(let count) = step {
                            body.append(contentsOf: input[offset..<offset + count])
                            offset += count
                            continue
                        }
                        rest = Data(input[offset...])
                        if step == .end { return body }
                        break
                    }
                } catch {
                    throw .failed("The response is malformed: \(error.reason).")
                }
                guard body.count <= limit else { throw .failed("The response is too large.") }
                try fill()
            }
        }
    }

    /// The head of a response.
    private struct ResponseHead {
        let status: Int
        private(set) var fields: [BytewiseString: String] = [:]

        init(_ bytes: [UInt8]) throws(TransportFailure) {
            let lines = String(decoding: bytes, as: UTF8.self).components(separatedBy: "\r\n")
            let words = lines[0].utf8.split(separator: 0x20, maxSplits: 2)
            guard words.count >= 2, words[0].starts(with: "HTTP/1.".utf8),
                let status = Decimal.parse(Array(words[1])[...]), (100...599).contains(status)
            else { throw .failed("The response is not HTTP.") }
            self.status = Int(status)
            for line in lines.dropFirst() {
                let text = Array(line.utf8)
                do throws(HTTP1SyntaxError) {
                    let field = try HTTP1FieldLine(text.span)
                    let name = String(
                        decoding: text[..<field.nameLength].map(ASCII.lowercased), as: UTF8.self)
                    let value = String(decoding: text[field.value], as: UTF8.self)
                    let known = fields.updateValue(value, forKey: BytewiseString(name))
                    if name == "content-length", let known, known != value {
                        throw HTTP1SyntaxError("two lengths")
                    }
                } catch {
                    throw .failed("The response is malformed: \(error.reason).")
                }
            }
        }

        var isChunked: Bool { fields["transfer-encoding"]?.asciiLowercased() == "chunked" }

        var length: Int? {
            if fields["transfer-encoding"] != nil { return nil }
            return fields["content-length"].flatMap { Decimal.parse(Array($0.utf8)[...]) }
                .flatMap { Int(exactly: $0) }
        }
    }
#endif
