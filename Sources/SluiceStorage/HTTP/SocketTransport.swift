#if canImport(FoundationNetworking)
    import FoundationNetworking
    import Foundation
    import Synchronization
    import Wire

    /// HTTP/1.1 in clear text over sockets: a thread of a queue for each request in progress. Connections are kept for the
    /// next request to the same host and port.
    enum SocketTransport {
        /// The maximum number of idle connections to one host and port.
        private static let maximumIdle = 16
        private static let queue = DispatchQueue(
            label: "SluiceStorage.sockets", attributes: .concurrent)
        private static let idle = Mutex<[BytewiseString: [SocketConnection]]>([:])

        /// Starts a request, which ends `exchange`.
        static func start(_ request: URLRequest, _ exchange: Exchange) {
            queue.async {
                if exchange.isFinished { return }
                do throws(TransportFailure) {
                    exchange.finish(.success(try perform(request, exchange)))
                } catch {
                    exchange.finish(.failure(error))
                }
            }
        }

        private static func perform(_ request: URLRequest, _ exchange: Exchange)
            throws(TransportFailure) -> HTTPResponse
        {
            guard let url = request.url, let host = url.host else { throw .impossible("No host.") }
            let port = url.port ?? 80
            let origin = BytewiseString("\(host) \(port)")
            let head = try RequestHead.text(request, url, host: host)
            let connection: SocketConnection
            if let idle = take(origin) {
                connection = idle
            } else {
                connection = try SocketConnection(host, port, silence: request.timeoutInterval)
            }
            connection.silence = request.timeoutInterval
            exchange.onEnd { connection.interrupt() }
            let isWhole = try connection.send(head + (request.httpBody ?? Data()))
            let response = try connection.receive(
                hasBody: request.httpMethod != "HEAD", limit: exchange.limit)
            exchange.released()
            // What was interrupted, or says that it closes, is not used again.
            if isWhole, response["Connection"]?.asciiLowercased() != "close" {
                keep(connection, origin)
            }
            return response
        }

        private static func take(_ origin: BytewiseString) -> SocketConnection? {
            while let connection = idle.withLock({ $0[origin]?.popLast() }) {
                if connection.isIdle { return connection }
            }
            return nil
        }

        private static func keep(_ connection: SocketConnection, _ origin: BytewiseString) {
            idle.withLock { idle in
                if idle[origin, default: []].count < maximumIdle {
                    idle[origin]?.append(connection)
                }
            }
        }
    }

    private enum RequestHead {
        static func text(_ request: URLRequest, _ url: URL, host: String) throws(TransportFailure)
            -> Data
        {
            let parts = URLComponents(url: url, resolvingAgainstBaseURL: false)
            let query = parts?.percentEncodedQuery.map { "?\($0)" } ?? ""
            let method = request.httpMethod ?? "GET"
            let name = host.utf8.contains(UInt8(ascii: ":")) ? "[\(host)]" : host
            var fields = [("Host", url.port.map { "\(name):\($0)" } ?? name)]
            if method != "GET", method != "HEAD" {
                fields.append(("Content-Length", String(request.httpBody?.count ?? 0)))
            }
            for (name, value) in request.allHTTPHeaderFields ?? [:] { fields.append((name, value)) }
            for (name, value) in fields where value.utf8.contains(where: ASCII.isControl) {
                throw .impossible("The field \(name) has a control character.")
            }
            let lines = fields.map { "\($0.0): \($0.1)\r\n" }.joined()
            let path = parts?.percentEncodedPath ?? "/"
            return Data("\(method) \(path)\(query) HTTP/1.1\r\n\(lines)\r\n".utf8)
        }
    }
#endif
