import COpenSSL
import Foundation
import Glibc
import HTTPClient
import Synchronization
import System
import TestSupport
import Testing

/// How a test reaches its server: our transport in clear text and over TLS, libcurl, and our transport with HTTP/2.
enum Way: String, CaseIterable, Sendable, CustomTestStringConvertible {
    case clear, tls, curl, http2
    /// The ways of a script that speaks HTTP/1.1.
    static let http1: [Way] = [.clear, .tls, .curl]
    /// The ways of our own transport.
    static let own: [Way] = [.clear, .tls]
    /// The ways with TLS.
    static let secure: [Way] = [.tls, .curl]
    var testDescription: String { rawValue }
    var scheme: Origin.Scheme { self == .clear ? .http : .https }
    var secureTransport: UpstreamSettings.SecureTransport { self == .curl ? .libcurl : .own }
}

/// A socket with a port of its own on 127.0.0.1. Until `listen` is called, connections to it are refused.
func boundSocket() -> Int32 {
    let descriptor = socket(AF_INET, Int32(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue), 0)
    var address = sockaddr_in()
    address.sin_family = sa_family_t(AF_INET)
    address.sin_addr.s_addr = UInt32(0x7f00_0001).bigEndian
    let size = socklen_t(MemoryLayout<sockaddr_in>.size)
    let failed = withUnsafePointer(to: &address) {
        $0.withMemoryRebound(to: sockaddr.self, capacity: 1) { bind(descriptor, $0, size) }
    }
    precondition(failed == 0)
    return descriptor
}

/// A server that does with each connection what a script says, on a thread of its own, with plain blocking calls.
///
/// Safety: the listener and the context are set once; the counter is atomic.
final class ScriptedServer: @unchecked Sendable {
    /// What to do with the connection of this number, counted from 0. It is closed afterwards.
    typealias Script = @Sendable (Peer, Int) -> Void

    let way: Way
    let port: UInt16
    private let listener: Int32
    private let context: OpaquePointer?
    private let accepted = Atomic<Int>(0)

    /// Connections so far.
    var connections: Int { accepted.load(ordering: .acquiring) }

    /// - Parameter identity: Its certificate, where the way has TLS.
    convenience init(
        _ way: Way = .clear, _ identity: TestIdentity = .shared, _ script: @escaping Script
    ) {
        self.init(way, context: way == .clear ? nil : identity.context(), script)
    }

    /// - Parameter context: OpenSSL's, which it releases; nil for clear text, whatever the way is.
    init(_ way: Way, context: OpaquePointer?, _ script: @escaping Script) {
        signal(SIGPIPE, SIG_IGN)
        self.way = way
        let listener = boundSocket()
        precondition(listen(listener, 2048) == 0)
        self.listener = listener
        port = Socket.localAddress(listener)!.port
        self.context = context
        _ = startThread { [listener, weak self] in
            while true {
                // Close-on-exec: a program that another test starts must not keep the connection open.
                let descriptor = (try? Socket.accept(listener))??.0 ?? -1
                _ = fcntl(descriptor, F_SETFL, 0)
                guard descriptor >= 0 else { break }
                guard let self else {
                    Glibc.close(descriptor)
                    break
                }
                let number = accepted.add(1, ordering: .acquiringAndReleasing).oldValue
                let peer = Peer(descriptor, self.context)
                _ = startThread {
                    guard peer.accept() else { return }
                    script(peer, number)
                    peer.close()
                }
            }
            Glibc.close(listener)
        }
    }

    deinit {
        shutdown(listener, Int32(SHUT_RDWR))
        SSL_CTX_free(context)
    }

    /// A client of it, with short time-outs where a test wants to see one.
    func upstream(
        _ observer: (any UpstreamObserver)? = nil,
        _ change: (inout UpstreamSettings) -> Void = { _ in }
    ) -> Upstream {
        var settings = UpstreamSettings(
            name: "test",
            origin: Origin(way.scheme, host: "127.0.0.1", port: port))
        // Many tests count connections: on a busy machine they are idle for longer than in production.
        settings.idleTimeout = 3_600_000_000_000
        // The script's thread takes part in the handshake.
        settings.connectTimeout = 100_000_000_000
        settings.queueTimeout = 100_000_000_000
        settings.secureTransport = way.secureTransport
        if way != .clear { settings.certificateAuthorities = TestIdentity.shared.path }
        change(&settings)
        return Upstream(settings, observer: observer)
    }
}

/// One accepted connection.
///
/// Safety: used by the one thread of its script.
final class Peer: @unchecked Sendable {
    struct Request: Sendable {
        var line = ""
        /// Names in lower case.
        var fields: [String: String] = [:]
        /// Names as they came, in order.
        var names: [String] = []
        var body: [UInt8] = []
        var method: String { String(line.split(separator: " ").first ?? "") }
        var target: String { String(line.split(separator: " ").dropFirst().first ?? "") }
    }
    let descriptor: Int32
    private(set) var tls: OpaquePointer?
    private var input: [UInt8] = []
    private var isClosed = false

    fileprivate init(_ descriptor: Int32, _ context: OpaquePointer?) {
        self.descriptor = descriptor
        tls = context.flatMap { SSL_new($0) }
    }

    /// Does the handshake; false where it fails.
    fileprivate func accept() -> Bool {
        var on: Int32 = 1
        setsockopt(descriptor, Int32(IPPROTO_TCP), TCP_NODELAY, &on, 4)
        guard let tls else { return true }
        SSL_set_fd(tls, descriptor)
        if SSL_accept(tls) == 1 { return true }
        close()
        return false
    }

    // MARK: Reading

    /// Reads more; false at the end.
    private func readMore() -> Bool {
        if isClosed { return false }
        var buffer = [UInt8](repeating: 0, count: 65_536)
        let count =
            tls.map { Int(SSL_read($0, &buffer, Int32(buffer.count))) }
            ?? recv(descriptor, &buffer, buffer.count, 0)
        if count > 0 { input += buffer[..<count] }
        return count > 0
    }

    /// The next request's head, without its body; nil where the client closed.
    func head() -> Request? {
        let end: [UInt8] = [13, 10, 13, 10]
        while true {
            if let found = input.indices.dropLast(3).first(where: {
                input[$0] == 13 && input[$0..<$0 + 4].elementsEqual(end)
            }) {
                var request = Request()
                for line in String(decoding: input[..<found], as: UTF8.self).components(
                    separatedBy: "\r\n")
                {
                    if request.line.isEmpty {
                        request.line = line
                        continue
                    }
                    let parts = line.split(separator: ":", maxSplits: 1)
                    request.names.append(String(parts[0]))
                    request.fields[parts[0].lowercased()] =
                        parts.count < 2 ? "" : parts[1].trimmingCharacters(in: .whitespaces)
                }
                input.removeSubrange(..<(found + 4))
                return request
            }
            guard readMore() else { return nil }
        }
    }

    /// So many bytes of a body; nil where the client closed before.
    func body(_ count: Int) -> [UInt8]? {
        while input.count < count {
            guard readMore() else { return nil }
        }
        let body = Array(input[..<count])
        input.removeSubrange(..<count)
        return body
    }

    /// The next request with its body; nil where the client closed.
    func request() -> Request? {
        guard var request = head() else { return nil }
        guard let length = request.fields["content-length"].flatMap({ Int($0) }) else {
            return request
        }
        guard let body = body(length) else { return nil }
        request.body = body
        return request
    }

    /// Reads a few bytes; false at the end.
    func trickle() -> Bool {
        var buffer = [UInt8](repeating: 0, count: 16)
        let count =
            tls.map { Int(SSL_read($0, &buffer, Int32(buffer.count))) }
            ?? recv(descriptor, &buffer, buffer.count, 0)
        return count > 0
    }

    /// Reads until the client closes; returns how many bytes came.
    @discardableResult
    func waitForEnd() -> Int {
        var count = input.count
        input = []
        while readMore() {
            count += input.count
            input = []
        }
        return count
    }

    // MARK: Writing

    @discardableResult
    func send(_ text: String) -> Bool { send(Array(text.utf8)) }

    /// Sends all of it; false where the client is gone.
    @discardableResult
    func send(_ bytes: [UInt8]) -> Bool {
        var place = 0
        while place < bytes.count {
            let count = bytes[place...].withUnsafeBytes { rest in
                tls.map { Int(SSL_write($0, rest.baseAddress, Int32(rest.count))) }
                    ?? Glibc.send(descriptor, rest.baseAddress, rest.count, Int32(MSG_NOSIGNAL))
            }
            guard count > 0 else { return false }
            place += count
        }
        return true
    }

    /// Sends piece after piece, each only when the client's loop has had its turn with the one before.
    func send(pieces: [[UInt8]]) {
        for piece in pieces {
            send(piece)
            for _ in 0..<2 { TestLoop.turn() }
        }
    }

    /// A response with a body of a known length.
    @discardableResult
    func respond(_ status: Int = 200, _ body: String = "", fields: String = "") -> Bool {
        send("HTTP/1.1 \(status) X\r\n\(fields)content-length: \(body.utf8.count)\r\n\r\n\(body)")
    }

    /// Responds to every request until the client closes.
    func respondToAll(_ respond: (Request) -> Bool) {
        while let request = request() { guard respond(request) else { return } }
    }

    /// Ends the connection with a reset.
    func reset() {
        var linger = Glibc.linger(l_onoff: 1, l_linger: 0)
        setsockopt(
            descriptor, SOL_SOCKET, SO_LINGER, &linger, socklen_t(MemoryLayout<linger>.size))
        cut()
    }

    /// Closes the connection in order, with the end of TLS.
    func close() {
        guard !isClosed else { return }
        if let tls { SSL_shutdown(tls) }
        cut()
    }

    /// Closes the socket without the end of TLS.
    func cut() {
        guard !isClosed else { return }
        isClosed = true
        if let tls { SSL_free(tls) }
        Glibc.close(descriptor)
    }
}
