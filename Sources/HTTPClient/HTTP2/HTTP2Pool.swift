import System
import Wire

/// The HTTP/2 sessions of one upstream on one loop. Confined to its loop.
///
/// A request goes to the first session that can take it, so that few connections are used and the others become idle. A
/// connection has one TCP window and delivers in order, so large bodies would delay small ones:
/// - An upload of more than ``largeBody`` uses HTTP/1.1. It then does not depend on the upstream's windows either,
///   which are often as small as 64 KiB.
/// - A download uses HTTP/1.1, a fifth cheaper, if the last response to that request exceeded ``largeBody``.
/// - A session that receives a body of more than ``largeBody`` takes no further requests until that body is complete.
/// - A session carries at most ``maximumStreams`` concurrent requests.
///
/// The first connection shows whether the upstream speaks HTTP/2. Until then other requests wait for it.
final class HTTP2Pool {
    /// In bytes.
    static let largeBody: UInt64 = 256 * 1024
    static let maximumStreams = 32
    /// How long HTTP/2 is not offered again to an upstream that chose HTTP/1.1, in nanoseconds.
    private static let memory: UInt64 = 600_000_000_000

    /// The pool's owner.
    unowned let transport: SocketTransport
    /// The value of `:authority`: byte for byte the `host` of HTTP/1.1, which signatures cover.
    let authority: [UInt8]
    private(set) lazy var callbacks = HTTP2Callbacks()
    private var buffer: UnsafeMutableRawBufferPointer?
    private var sessions: [HTTP2Session] = []
    private var largeDownloads = LargeDownloads()
    /// Until this time the upstream is assumed to speak only HTTP/1.1; 0 if it never chose that.
    private var http1Until: UInt64 = 0
    /// The number of requests per session before the upstream announces its limit: the last announced limit.
    var expectedStreams = HTTP2Pool.maximumStreams

    init(_ transport: SocketTransport) {
        self.transport = transport
        authority = Array(transport.settings.origin.authority.utf8)
    }

    deinit { buffer?.deallocate() }

    /// Whether to send a request by HTTP/2 if the upstream speaks it.
    func takes(_ request: ClientRequest) -> Bool {
        if request.isAlone || request.bodyLength > HTTP2Pool.largeBody { return false }
        if largeDownloads.contains(request) { return false }
        if http1Until == 0 { return true }
        return transport.loop.now >= http1Until && !transport.hasIdle
    }

    /// Notes whether a response has a large body. Other statuses than 200 and 206 say nothing about the object.
    func noteDownload(_ request: ClientRequest, status: Int, isLarge: Bool) {
        if status == 200 || status == 206 { largeDownloads.note(request, isLarge: isLarge) }
    }

    /// Forgets a large response. The request got none over HTTP/1.1, which the upstream may not speak.
    func forgetDownload(_ request: ClientRequest) { largeDownloads.note(request, isLarge: false) }

    func start(_ request: ClientRequest, _ delegate: any TransferDelegate) -> any Transfer {
        let exchange = HTTP2Exchange(transport, request, delegate)
        if transport.isClosed {
            transport.afterwards {
                exchange.fail(.cancelled, "the client was closed", isUntrusted: false)
            }
        } else {
            assign(exchange)
        }
        return exchange
    }

    /// Assigns a request to a session.
    func assign(_ exchange: HTTP2Exchange) {
        transport.loop.assertCurrent()
        if let session = sessions.first(where: \.canTake) { return session.add(exchange) }
        connect(exchange)
    }

    /// Gives a request to another session; after a loss, to one that can't have been closed while idle.
    /// - Parameter previous: The session that could not send it; nil if it was lost.
    func reassign(_ exchange: HTTP2Exchange, from previous: HTTP2Session?) {
        let session = sessions.first {
            $0.canTake && $0 !== previous && (previous != nil || !$0.hasServed)
        }
        if let session { session.add(exchange) } else { connect(exchange) }
    }

    private func connect(_ exchange: HTTP2Exchange) {
        let session = HTTP2Session(self)
        sessions.append(session)
        session.add(exchange)
    }

    /// Sends a new session's requests by HTTP/1.1, which its connection speaks.
    func fallBack(_ session: HTTP2Session, _ connection: SocketConnection) {
        http1Until = transport.loop.now &+ HTTP2Pool.memory
        let requests = session.giveUp()
        connection.release(isUsed: false)
        for exchange in requests { exchange.continueOverHTTP1() }
    }

    /// Removes a session, which takes no more requests.
    func forget(_ session: HTTP2Session) { sessions.removeAll { $0 === session } }

    /// Closes idle sessions, and the others after their last request.
    func close() {
        for session in sessions { session.closeIfIdle() }
    }

    /// The buffer for frames; lent for the duration of a call.
    var output: UnsafeMutableRawBufferPointer {
        if let buffer { return buffer }
        let new = UnsafeMutableRawBufferPointer.allocate(byteCount: 64 * 1024, alignment: 64)
        buffer = new
        return new
    }
}

/// Requests whose last responses were large. Requests that share a slot evict each other.
private struct LargeDownloads {
    private static let slotCount = 512
    /// Hashes; 0 in a free slot. Empty until the first note.
    private var slots: [Int] = []

    /// Whether the next response is probably large too. To a conditional request it probably is not.
    func contains(_ request: ClientRequest) -> Bool {
        if slots.isEmpty || !request.isBulk || !request.isRead { return false }
        if request.fields.contains("if-none-match") { return false }
        let (slot, hash) = LargeDownloads.place(of: request)
        return slots[slot] == hash
    }

    mutating func note(_ request: ClientRequest, isLarge: Bool) {
        guard request.isBulk, request.isRead else { return }
        if slots.isEmpty {
            guard isLarge else { return }
            slots = Array(repeating: 0, count: LargeDownloads.slotCount)
        }
        let (slot, hash) = LargeDownloads.place(of: request)
        if isLarge { slots[slot] = hash } else if slots[slot] == hash { slots[slot] = 0 }
    }

    private static func place(of request: ClientRequest) -> (slot: Int, hash: Int) {
        var hasher = Hasher()
        hasher.combine(BytewiseString(request.target))
        hasher.combine(BytewiseString(request.fields["range"] ?? ""))
        let hash = hasher.finalize() | 1
        return (Int((UInt(bitPattern: hash) >> 1) % UInt(slotCount)), hash)
    }
}

extension ClientRequest {
    /// The length of the body in bytes.
    var bodyLength: UInt64 {
        switch body {
        case .none: 0
        case .bytes(let bytes): UInt64(bytes.count)
        case .pipe(let pipe): pipe.length
        }
    }
}
