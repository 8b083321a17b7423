import CNghttp2
import COpenSSL
import Glibc

/// The server's side of HTTP/2 on a connection that a script has accepted, frame by frame, so that a script can also send
/// what no library would. It acknowledges SETTINGS and PING, and opens windows unless it is stingy.
final class HTTP2Peer {
    struct Request: Sendable {
        let id: UInt32
        /// In order.
        var fields: [(name: String, value: String)] = []
        var body: [UInt8] = []
        subscript(name: String) -> String? { fields.first { $0.name == name }?.value }
        var method: String { self[":method"] ?? "" }
        var target: String { self[":path"] ?? "" }
    }
    enum Kind: UInt8 {
        case data, headers, priority, reset, settings, push, ping, goaway, windowUpdate,
            continuation
    }
    static let endStream: UInt8 = 1
    static let endHeaders: UInt8 = 4

    private let peer: Peer
    /// Whether no windows are opened.
    var isStingy = false
    private var inflater: OpaquePointer?
    /// Requests whose body may still arrive.
    private var open: [UInt32: Request] = [:]
    private var heads: [UInt32] = []
    private var ended: Set<UInt32> = []
    /// The codes of the client's RST_STREAM.
    private(set) var resets: [UInt32: UInt32] = [:]
    private(set) var acknowledgedPings = 0
    /// How many bytes the client accepts: on the connection (0), and on streams.
    private var windows: [UInt32: Int] = [0: 65_535]
    private var initialWindow = 65_535
    private(set) var goaway: UInt32?

    /// Reads the preface and sends SETTINGS.
    init?(_ peer: Peer, settings: [(UInt16, UInt32)] = []) {
        self.peer = peer
        guard peer.body(24)?.starts(with: Array("PRI * HTTP/2.0".utf8)) == true else { return nil }
        nghttp2_hd_inflate_new(&inflater)
        send(
            .settings, 0, 0,
            settings.flatMap { id, value in
                [UInt8(id >> 8), UInt8(id & 255)] + HTTP2Peer.bytes(value)
            })
    }

    deinit { nghttp2_hd_inflate_del(inflater) }

    static func bytes(_ value: UInt32) -> [UInt8] {
        (0..<4).map { UInt8(truncatingIfNeeded: value >> (24 - 8 * UInt32($0))) }
    }

    // MARK: Reading

    /// Reads one frame; false where the client closed.
    func pump() -> Bool {
        guard let header = peer.body(9),
            let payload = peer.body(Int(header[0]) << 16 | Int(header[1]) << 8 | Int(header[2]))
        else { return false }
        let id = header[5...8].reduce(0) { $0 << 8 | UInt32($1) }
        let flags = header[4]
        switch Kind(rawValue: header[3]) {
        case .headers:
            open[id] = Request(id: id, fields: inflate(payload))
            windows[id] = windows[id] ?? initialWindow
            heads.append(id)
            if flags & HTTP2Peer.endStream != 0 { ended.insert(id) }
        case .data:
            open[id]?.body += payload
            if flags & HTTP2Peer.endStream != 0 { ended.insert(id) }
            if !payload.isEmpty, !isStingy {
                for target in [0, id] {
                    send(.windowUpdate, 0, target, HTTP2Peer.bytes(UInt32(payload.count)))
                }
            }
        case .reset: resets[id] = payload.reduce(0) { $0 << 8 | UInt32($1) }
        case .settings:
            for start in stride(from: 0, to: payload.count, by: 6) where payload[start + 1] == 4 {
                initialWindow = payload[start + 2..<start + 6].reduce(0) { $0 << 8 | Int($1) }
            }
            if flags & 1 == 0 { send(.settings, 1, 0, []) }
        case .ping: if flags & 1 == 0 { send(.ping, 1, 0, payload) } else { acknowledgedPings += 1 }
        case .goaway: goaway = payload[4..<8].reduce(0) { $0 << 8 | UInt32($1) }
        case .windowUpdate:
            windows[id, default: 65_535] += Int(payload.reduce(0) { $0 << 8 | UInt32($1) })
        default: break
        }
        return true
    }

    private func inflate(_ block: [UInt8]) -> [(name: String, value: String)] {
        var fields: [(String, String)] = []
        var place = 0
        while true {
            var field = nghttp2_nv()
            var flags: Int32 = 0
            let count = block.withUnsafeBufferPointer {
                nghttp2_hd_inflate_hd2(
                    inflater, &field, &flags, $0.baseAddress! + place, block.count - place, 1)
            }
            precondition(count >= 0, "the client's header block is malformed")
            place += count
            if flags & Int32(NGHTTP2_HD_INFLATE_EMIT.rawValue) != 0 {
                fields.append(
                    (
                        String(
                            decoding: UnsafeBufferPointer(
                                start: field.name, count: field.namelen), as: UTF8.self),
                        String(
                            decoding: UnsafeBufferPointer(
                                start: field.value, count: field.valuelen), as: UTF8.self)
                    ))
            }
            if flags & Int32(NGHTTP2_HD_INFLATE_FINAL.rawValue) != 0 {
                nghttp2_hd_inflate_end_headers(inflater)
                return fields
            }
        }
    }

    /// The next request's head; nil where the client closed.
    func head() -> Request? {
        while heads.isEmpty { guard pump() else { return nil } }
        return open[heads.removeFirst()]
    }

    /// The next complete request; nil where the client closed.
    func request() -> Request? {
        while true {
            if let index = heads.firstIndex(where: ended.contains) {
                return open.removeValue(forKey: heads.remove(at: index))
            }
            guard pump() else { return nil }
        }
    }

    /// The whole body of a request whose head was read; nil where the client closed.
    func body(of id: UInt32) -> [UInt8]? {
        while !ended.contains(id) { guard pump() else { return nil } }
        return open[id]?.body
    }

    /// The code of the client's RST_STREAM of a stream; nil where it closed before.
    func reset(of id: UInt32) -> UInt32? {
        while resets[id] == nil { guard pump() else { return nil } }
        return resets[id]
    }

    func waitForEnd() { while pump() {} }

    // MARK: Writing

    @discardableResult
    func send(_ kind: Kind, _ flags: UInt8, _ id: UInt32, _ payload: [UInt8]) -> Bool {
        send(type: kind.rawValue, flags, id, payload)
    }

    @discardableResult
    func send(type: UInt8, _ flags: UInt8, _ id: UInt32, _ payload: [UInt8]) -> Bool {
        peer.send(
            Array(HTTP2Peer.bytes(UInt32(payload.count))[1...]) + [type, flags]
                + HTTP2Peer.bytes(id) + payload)
    }

    /// A header block of literals (RFC 7541, section 6.2.2).
    static func block(_ fields: [(String, String)]) -> [UInt8] {
        func text(_ text: String) -> [UInt8] {
            var rest = text.utf8.count
            var length: [UInt8] = [UInt8(min(rest, 127))]
            if rest >= 127 {
                rest -= 127
                while rest >= 128 {
                    length.append(UInt8(rest & 127 | 128))
                    rest >>= 7
                }
                length.append(UInt8(rest))
            }
            return length + Array(text.utf8)
        }
        return fields.flatMap { [0] + text($0.0) + text($0.1) }
    }

    @discardableResult
    func headers(_ id: UInt32, _ fields: [(String, String)], ends: Bool = false) -> Bool {
        send(
            .headers, HTTP2Peer.endHeaders | (ends ? HTTP2Peer.endStream : 0), id,
            HTTP2Peer.block(fields))
    }

    /// Sends a body as far as the windows allow, and reads for them to open; false where the client closed or has reset the
    /// stream.
    @discardableResult
    func data(_ id: UInt32, _ bytes: [UInt8], ends: Bool = true) -> Bool {
        var place = 0
        repeat {
            let room = min(16_384, windows[0]!, windows[id, default: 65_535], bytes.count - place)
            if room == 0, place < bytes.count {
                guard pump(), resets[id] == nil else { return false }
                continue
            }
            let isLast = place + room == bytes.count
            guard
                send(
                    .data, isLast && ends ? HTTP2Peer.endStream : 0, id,
                    Array(bytes[place..<place + room]))
            else { return false }
            windows[0]! -= room
            windows[id, default: 65_535] -= room
            place += room
        } while place < bytes.count
        return true
    }

    /// How many bytes the client accepts of a stream now.
    func window(of id: UInt32) -> Int { windows[id, default: 65_535] }

    @discardableResult
    func respond(
        _ id: UInt32, _ status: Int = 200, _ body: [UInt8] = [], fields: [(String, String)] = []
    ) -> Bool {
        let head = [(":status", "\(status)")] + fields + [("content-length", "\(body.count)")]
        return headers(id, head, ends: body.isEmpty) && (body.isEmpty || data(id, body))
    }

    @discardableResult
    func respond(_ id: UInt32, _ status: Int = 200, _ text: String) -> Bool {
        respond(id, status, Array(text.utf8))
    }

    func reset(_ id: UInt32, _ code: UInt32) { send(.reset, 0, id, HTTP2Peer.bytes(code)) }

    func goAway(last: UInt32, _ code: UInt32 = 0) {
        send(.goaway, 0, 0, HTTP2Peer.bytes(last) + HTTP2Peer.bytes(code))
    }
}

extension Peer {
    /// Whether ALPN chose HTTP/2.
    var isHTTP2: Bool {
        var name: UnsafePointer<UInt8>?
        var length: UInt32 = 0
        SSL_get0_alpn_selected(tls, &name, &length)
        return length == 2
    }
}

/// Chooses HTTP/2 where the client offers it.
func chooseHTTP2(_ context: OpaquePointer) {
    SSL_CTX_set_alpn_select_cb(
        context,
        { _, out, length, offered, count, _ in
            // `h2` is the first of two, or `http/1.1` alone is offered.
            guard let offered, count > 3 else { return SSL_TLSEXT_ERR_NOACK }
            out?.pointee = offered + 1
            length?.pointee = offered[0]
            return SSL_TLSEXT_ERR_OK
        }, nil)
}

extension ScriptedServer {
    /// A server that speaks HTTP/2 where it is offered.
    /// - Parameter http1: What to do with connections where it is not.
    static func http2(
        settings: [(UInt16, UInt32)] = [],
        http1: @escaping @Sendable (Peer) -> Void = { $0.waitForEnd() },
        script: @escaping @Sendable (HTTP2Peer, Peer, Int) -> Void
    ) -> ScriptedServer {
        ScriptedServer(.http2, context: TestIdentity.shared.context(chooseHTTP2)) { peer, number in
            guard peer.isHTTP2 else { return http1(peer) }
            guard let http2 = HTTP2Peer(peer, settings: settings) else { return }
            script(http2, peer, number)
        }
    }
}
