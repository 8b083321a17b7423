import Wire

/// What follows a request's head.
public enum RequestBody {
    case none
    /// Bytes that are there already, and can be sent again.
    case bytes([UInt8])
    /// Bytes that are written while they are sent, once.
    case pipe(RequestBodyPipe)
}

/// A request to an ``Upstream``. Made and used on one loop.
public struct ClientRequest {
    /// A token, in capitals.
    public var method: StaticString
    /// The path and query, percent-encoded; begins with `/`.
    public var target: String
    /// Without `host`, `content-length`, `connection`, `transfer-encoding` and `expect`: those are the transport's.
    public var fields: HeaderFields
    public var body: RequestBody
    /// Whether it may be sent again although it may have been acted on: it has the same effect then.
    public var isRepeatable: Bool
    /// Whether it is safe to send it again although it may have been acted on: asked each time, with the response if one
    /// came. nil where ``isRepeatable`` says it once and for all.
    public var confirmsRepetition: ((CollectedResponse?) async -> Bool)?
    /// How often it is sent at most, where that is less than ``UpstreamSettings/attempts``: once by a caller that repeats
    /// by other requests, lest the attempts multiply.
    public var attempts = Int.max
    /// Whether a body may be long, either way. Over TLS it goes by HTTP/1.1 on a connection of its own then: libcurl
    /// would let one slow reader of a shared HTTP/2 connection hold up, and buffer for, all the others.
    public var isBulk = false
    /// Nanoseconds to wait for the response, and then for each of its next bytes, if the upstream is known to need long. nil
    /// means the time-outs of ``UpstreamSettings``, which are also the minimum. A request that takes longer is not sent again:
    /// the upstream may still work on it.
    public var waitLimit: UInt64?
    /// Adds credentials or a signature; called before each attempt on a copy.
    public var authorize: ((inout ClientRequest) async throws(ClientError) -> Void)?

    /// - Parameter isRepeatable: By default for `GET` and `HEAD`.
    public init(
        _ method: StaticString, _ target: String, fields: HeaderFields = HeaderFields(),
        body: RequestBody = .none, isRepeatable: Bool? = nil
    ) {
        self.method = method
        self.target = target
        self.fields = fields
        self.body = body
        if case .pipe = body { isBulk = true }
        self.isRepeatable = isRepeatable ?? ClientRequest.isRead(method)
    }

    /// What makes it no request that can be sent; nil where nothing does. A line break in a value would be smuggling.
    var fault: String? {
        let bytes = target.utf8.span
        let isTarget = bytes.indices.allSatisfy { ASCII.isVisible(bytes[$0]) }
        if bytes.isEmpty || bytes[0] != UInt8(ascii: "/") || !isTarget {
            return "the target has other than visible ASCII characters"
        }
        return fields.areWellFormed ? nil : "a field has a line break or another control character"
    }

    var isHead: Bool { method.utf8CodeUnitCount == 4 && method.utf8Start[0] == UInt8(ascii: "H") }

    /// Whether it is a `GET` or `HEAD`.
    var isRead: Bool { ClientRequest.isRead(method) }

    // Of the methods that are in use these alone begin so.
    private static func isRead(_ method: StaticString) -> Bool {
        method.utf8Start[0] == UInt8(ascii: "G") || method.utf8Start[0] == UInt8(ascii: "H")
    }
}
