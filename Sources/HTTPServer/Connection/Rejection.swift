/// A request that was rejected before any handler, and its response.
public struct RejectedRequest: Sendable {
    /// The value of `X-Request-Id` in the response.
    public var requestId: String
    /// Empty if it was not read.
    public var method: String
    /// Empty if it was not read.
    public var target: String
    /// 400, 408, 414, 417, 431, 501 or 505.
    public var status: Int
    /// The problem's code in the response.
    public var code: String
    /// The problem's detail in the response.
    public var reason: String
    /// The size of the response's body in bytes.
    public var bodyBytes: Int
    public var version: HTTPVersion
    /// Whether the connection is encrypted.
    public var isSecure: Bool
    /// The client's address, `host:port`.
    public var peer: String
}

/// A response to bytes that never reach a handler, as problem details (RFC 9457).
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

extension Connection {
    /// The response to HTTP in clear text on a TLS listener, after which the connection ends.
    func plainHTTPRejection() -> [UInt8] {
        context.statistics.handshakeFailed()
        let rejection = Rejection(400, "This port needs TLS: use https.")
        let body = rejection.body
        rejected(rejection, body, of: nil, .http1_1)
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

    /// Reports a request that was rejected before any handler. `head` is nil if it was not read.
    func rejected(
        _ rejection: Rejection, _ body: [UInt8], of head: RequestHead?, _ version: HTTPVersion
    ) {
        listener.onRejection(
            RejectedRequest(
                requestId: rejection.instance, method: head?.method ?? "",
                target: head?.target ?? "", status: rejection.status, code: rejection.code,
                reason: rejection.detail,
                bodyBytes: body.count, version: version, isSecure: isSecure,
                peer: peer.description))
    }
}
