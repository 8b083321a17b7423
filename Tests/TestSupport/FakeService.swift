import Glibc
import HTTPClient
import System

/// A service that responds to each request as a test defines, on its own threads, with blocking calls.
///
/// Safety: the listener is set once; everything else is behind the lock.
public final class FakeService: @unchecked Sendable {
    public struct Request: Sendable {
        public var method = ""
        public var target = ""
        /// Names in lower case.
        public var fields: [String: String] = [:]
        public var body: [UInt8] = []

        public var path: String { String(target.prefix { $0 != "?" }) }
        public var text: String { String(decoding: body, as: UTF8.self) }

        /// The members of a form or a query, decoded.
        public static func members(_ text: String) -> [String: String] {
            var members: [String: String] = [:]
            for pair in text.split(separator: "&") {
                let parts = pair.split(
                    separator: "=", maxSplits: 1, omittingEmptySubsequences: false)
                members[String(parts[0])] = parts.count < 2 ? "" : decode(parts[1])
            }
            return members
        }

        private static func decode(_ text: Substring) -> String {
            var bytes: [UInt8] = []
            var rest = Array(text.utf8)[...]
            while let byte = rest.popFirst() {
                if byte == UInt8(ascii: "%"), rest.count >= 2 {
                    bytes.append(UInt8(String(decoding: rest.prefix(2), as: UTF8.self), radix: 16)!)
                    rest = rest.dropFirst(2)
                } else {
                    bytes.append(byte)
                }
            }
            return String(decoding: bytes, as: UTF8.self)
        }

        public var query: [String: String] {
            Request.members(String(target.drop { $0 != "?" }.dropFirst()))
        }
    }
    public struct Response: Sendable {
        public var status = 200
        public var fields: [(String, String)] = []
        public var body: [UInt8] = []
        /// Bytes of the body that are announced, where they are others than those that are sent.
        public var announced: Int?
        /// Ends the connection without a response.
        public var isCut = false

        public init(
            status: Int = 200, fields: [(String, String)] = [], body: [UInt8] = [],
            announced: Int? = nil, isCut: Bool = false
        ) {
            self.status = status
            self.fields = fields
            self.body = body
            self.announced = announced
            self.isCut = isCut
        }

        public static let cut = Response(isCut: true)

        public static func json(
            _ text: String, _ status: Int = 200, _ fields: [(String, String)] = []
        )
            -> Response
        {
            Response(
                status: status, fields: fields + [("content-type", "application/json")],
                body: Array(text.utf8))
        }
    }
    /// Responds to a request, on the thread of its connection.
    public typealias Handler = @Sendable (Request) -> Response

    public let port: UInt16
    private let listener: Int32
    private let state = Lock<(log: [Request], handler: Handler)>(
        ([], { _ in Response(status: 500) }))

    public var origin: Origin { Origin(.http, host: "127.0.0.1", port: port) }
    /// What was asked so far.
    public var log: [Request] { state.withLock { $0.log } }

    public init(_ handler: @escaping Handler) {
        signal(SIGPIPE, SIG_IGN)
        listener = socket(AF_INET, Int32(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue), 0)
        var address = sockaddr_in()
        address.sin_family = sa_family_t(AF_INET)
        address.sin_addr.s_addr = UInt32(0x7f00_0001).bigEndian
        var size = socklen_t(MemoryLayout<sockaddr_in>.size)
        let listener = listener
        port = withUnsafeMutablePointer(to: &address) {
            $0.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                precondition(bind(listener, $0, size) == 0 && listen(listener, 128) == 0)
                getsockname(listener, $0, &size)
            }
            return UInt16(bigEndian: $0.pointee.sin_port)
        }
        state.withLock { $0.handler = handler }
        _ = startThread { [weak self] in
            while true {
                // Close-on-exec: a program that another test starts must not keep the connection open.
                let descriptor = (try? Socket.accept(listener))??.0 ?? -1
                _ = fcntl(descriptor, F_SETFL, 0)
                guard descriptor >= 0, let self else {
                    if descriptor >= 0 { close(descriptor) }
                    break
                }
                _ = startThread {
                    self.serve(descriptor)
                    close(descriptor)
                }
            }
            close(listener)
        }
    }

    deinit { shutdown(listener, Int32(SHUT_RDWR)) }

    private func serve(_ descriptor: Int32) {
        var input: [UInt8] = []
        func more() -> Bool {
            var chunk = [UInt8](repeating: 0, count: 65_536)
            let count = recv(descriptor, &chunk, chunk.count, 0)
            if count > 0 { input += chunk[..<count] }
            return count > 0
        }
        while true {
            var end: Int?
            var searched = 0
            while end == nil {
                let limit = max(0, input.count - 3)
                end = (searched..<max(searched, limit)).first {
                    input[$0] == 13 && input[$0 + 1] == 10 && input[$0 + 2] == 13
                        && input[$0 + 3] == 10
                }
                searched = limit
                if end == nil, !more() { return }
            }
            var request = Request()
            let lines = String(decoding: input[..<end!], as: UTF8.self).split { $0 == "\r\n" }
            let words = lines[0].split(separator: " ")
            (request.method, request.target) = (String(words[0]), String(words[1]))
            for line in lines.dropFirst() {
                let parts = line.split(separator: ":", maxSplits: 1)
                let value = parts.count < 2 ? "" : String(parts[1].drop { $0 == " " })
                request.fields[parts[0].lowercased()] = value
            }
            input.removeSubrange(..<(end! + 4))
            let length = request.fields["content-length"].flatMap { Int($0) } ?? 0
            while input.count < length { if !more() { return } }
            request.body = Array(input[..<length])
            input.removeSubrange(..<length)
            let asked = request
            let handler = state.withLock { state in
                state.log.append(asked)
                return state.handler
            }
            let response = handler(asked)
            if response.isCut { return }
            var head = "HTTP/1.1 \(response.status) X\r\n"
            for (name, value) in response.fields { head += "\(name): \(value)\r\n" }
            if response.status != 204 {
                head += "content-length: \(response.announced ?? response.body.count)\r\n"
            }
            let isHead = asked.method == "HEAD"
            guard send(descriptor, Array((head + "\r\n").utf8) + (isHead ? [] : response.body)),
                response.announced == nil
            else { return }
        }
    }

    private func send(_ descriptor: Int32, _ bytes: [UInt8]) -> Bool {
        var place = 0
        while place < bytes.count {
            let count = bytes[place...].withUnsafeBytes {
                Glibc.send(descriptor, $0.baseAddress, $0.count, Int32(MSG_NOSIGNAL))
            }
            guard count > 0 else { return false }
            place += count
        }
        return true
    }
}
