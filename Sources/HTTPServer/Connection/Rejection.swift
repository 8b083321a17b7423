import CNghttp2
import Glibc

/// A request rejected before any handler, and its response.
public struct RejectedRequest: Sendable {
    /// The value of `X-Request-Id` in the response.
    public var requestId: String
    /// Empty if unknown.
    public var method: String
    /// Empty if unknown.
    public var target: String
    /// 400, 408, 414, 417, 431, 501 or 505.
    public var status: Int
    /// The problem code in the response.
    public var code: String
    /// The problem detail in the response.
    public var reason: String
    /// The size of the response's body in bytes.
    public var bodyBytes: Int
    public var version: HTTPVersion
    /// Whether the connection is encrypted.
    public var isSecure: Bool
    /// The client's address, `host:port`.
    public var peer: String
}

/// A response to bytes that reach no handler, as problem details (RFC 9457).
struct Rejection {
    let status: Int
    let detail: String
    let instance = RequestIDs.shared.next()

    init(_ status: Int, _ detail: String) {
        self.status = status
        self.detail = detail
    }

    var head: ResponseHead {
        var head = ResponseHead(status: status)
        head.fields.append("content-type", "application/problem+json")
        head.fields.append("x-content-type-options", "nosniff")
        head.fields.append("x-request-id", instance)
        return head
    }

    var code: String {
        switch status {
        case 408: "request-timeout"
        case 501: "not-implemented"
        default: "invalid-argument"
        }
    }

    var body: [UInt8] {
        Array(
            """
            {"status":\(status),"code":"\(code)","title":"\(reasonPhrase(status))",\
            "detail":"\(detail)","instance":"\(instance)"}

            """.utf8)
    }
}

/// The first bytes of a connection to a TLS listener.
enum FirstBytes {
    /// Clear text, with the reason for the rejection.
    case clear(HTTPVersion, detail: String)
    /// Perhaps TLS, whose first byte begins no method (RFC 8446, section 5.1), or the end of the stream.
    case other

    /// Peeks at the first bytes; nil if nothing has arrived.
    init?(_ descriptor: Int32) {
        var bytes: InlineArray<16, UInt8> = .init(repeating: 0)
        var storage = bytes.mutableSpan
        let count = storage.withUnsafeMutableBytes { bytes in
            var count: Int
            repeat {
                count = recv(descriptor, bytes.baseAddress, bytes.count, Int32(MSG_PEEK))
            } while count < 0 && errno == EINTR
            return count
        }
        if count < 0 && errno == EAGAIN { return nil }
        self.init(bytes.span.extracting(first: max(0, count)))
    }

    init(_ bytes: Span<UInt8>) {
        guard bytes.count > 0, bytes[0] != 0x16 else {
            self = .other
            return
        }
        if let error = HTTP1Error(notHTTP: bytes) {
            self = .clear(.http1_1, detail: error.reason)
        } else if (UInt8(ascii: "A")...UInt8(ascii: "Z")).contains(bytes[0]) {
            // Only the HTTP/2 preface begins so (RFC 9113, section 3.4).
            let isHTTP2 =
                bytes.count > 2 && bytes[0] == UInt8(ascii: "P") && bytes[1] == UInt8(ascii: "R")
                && bytes[2] == UInt8(ascii: "I")
            self = .clear(isHTTP2 ? .http2 : .http1_1, detail: "This port needs TLS: use https.")
        } else {
            self = .other
        }
    }
}

extension RejectedRequest {
    init(
        _ rejection: Rejection, of head: RequestHead? = nil, _ version: HTTPVersion,
        bodyBytes: Int = 0, isSecure: Bool, _ peer: Peer
    ) {
        self.init(
            requestId: rejection.instance, method: head?.method ?? "", target: head?.target ?? "",
            status: rejection.status, code: rejection.code, reason: rejection.detail,
            bodyBytes: bodyBytes, version: version, isSecure: isSecure, peer: peer.description)
    }
}

extension Connection {
    /// The response to clear text on a TLS listener, after which the connection ends.
    func clearTextRejection(_ version: HTTPVersion, detail: String) -> [UInt8] {
        context.statistics.handshakeFailed()
        let rejection = Rejection(400, detail)
        let body = rejection.body
        rejected(rejection, body, of: nil, version, isSecure: false)
        if version == .http2 { return Connection.http2Response(body) }
        let head = """
            HTTP/1.1 400 Bad Request\r
            content-type: application/problem+json\r
            content-length: \(body.count)\r
            x-request-id: \(rejection.instance)\r
            connection: close\r
            \r

            """
        return Array(head.utf8) + body
    }

    /// A response with status 400 on the first stream, after our settings and before GOAWAY (RFC 9113, section 6). A
    /// client that sends only its preface and waits may get it before it opens that stream; in either case its
    /// clear-text request to a TLS port is lost. The fields are the static table's `:status: 400` and a literal
    /// `content-type` (RFC 7541, section 6).
    private static func http2Response(_ body: [UInt8]) -> [UInt8] {
        func frame(
            _ type: nghttp2_frame_type, _ flags: nghttp2_flag, _ stream: UInt8, _ payload: [UInt8]
        )
            -> [UInt8]
        {
            let length = [UInt8(0), UInt8(payload.count >> 8), UInt8(payload.count & 0xff)]
            return length + [UInt8(type.rawValue), UInt8(flags.rawValue), 0, 0, 0, stream] + payload
        }
        let type = Array("application/problem+json".utf8)
        let fields = [0x8c, 0x0f, 0x10, UInt8(type.count)] + type
        let lastStreamAndNoError: [UInt8] = [0, 0, 0, 1, 0, 0, 0, 0]
        return frame(NGHTTP2_SETTINGS, NGHTTP2_FLAG_NONE, 0, [])
            + frame(NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, 1, fields)
            + frame(NGHTTP2_DATA, NGHTTP2_FLAG_END_STREAM, 1, body)
            + frame(NGHTTP2_GOAWAY, NGHTTP2_FLAG_NONE, 0, lastStreamAndNoError)
    }

    /// Reports a rejected request; `head` is nil if unknown.
    func rejected(
        _ rejection: Rejection, _ body: [UInt8], of head: RequestHead?, _ version: HTTPVersion, isSecure: Bool? = nil
    ) {
        listener.onRejection(
            RejectedRequest(
                rejection, of: head, version, bodyBytes: body.count, isSecure: isSecure ?? self.isSecure, peer))
    }
}
