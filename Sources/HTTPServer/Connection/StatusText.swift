/// The reason phrase of a status code (RFC 9110, section 15), or an empty text.
func reasonPhrase(_ status: Int) -> StaticString {
    switch status {
    case 104: "Upload Resumption Supported"
    case 200: "OK"
    case 201: "Created"
    case 204: "No Content"
    case 206: "Partial Content"
    case 304: "Not Modified"
    case 400: "Bad Request"
    case 401: "Unauthorized"
    case 403: "Forbidden"
    case 404: "Not Found"
    case 405: "Method Not Allowed"
    case 408: "Request Timeout"
    case 409: "Conflict"
    case 412: "Precondition Failed"
    case 413: "Content Too Large"
    case 414: "URI Too Long"
    case 415: "Unsupported Media Type"
    case 416: "Range Not Satisfiable"
    case 417: "Expectation Failed"
    case 421: "Misdirected Request"
    case 429: "Too Many Requests"
    case 431: "Request Header Fields Too Large"
    case 460: "Checksum Mismatch"
    case 500: "Internal Server Error"
    case 501: "Not Implemented"
    case 502: "Bad Gateway"
    case 503: "Service Unavailable"
    case 504: "Gateway Timeout"
    case 505: "HTTP Version Not Supported"
    case 507: "Insufficient Storage"
    default: ""
    }
}

extension Array where Element == UInt8 {
    mutating func append(contentsOf text: StaticString) {
        text.withUTF8Buffer { append(contentsOf: $0) }
    }
}

/// A request that was rejected before any handler, and its response.
public struct RefusedRequest: Sendable {
    /// The value of `X-Request-Id` in the response.
    public var requestId: String
    /// Empty where it was not read.
    public var method: String
    /// Empty where it was not read.
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
struct Refusal {
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
