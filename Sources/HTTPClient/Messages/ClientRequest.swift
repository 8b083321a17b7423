import Wire

/// The body of a request.
public enum RequestBody {
    case none
    /// Bytes in memory, which can be sent again.
    case bytes([UInt8])
    /// Bytes that are written while they are sent, only once.
    case pipe(RequestBodyPipe)
}

/// A request to an ``Upstream``, used on one loop and not changed once sent. A class, because several objects hold it.
public final class ClientRequest {
    /// A token in upper case.
    public let method: StaticString
    /// The path and query, percent-encoded, beginning with `/`.
    public var target: String
    /// The fields, without those the transport adds: `host`, `content-length`, `connection`, `expect` and so on.
    public var fields: HeaderFields
    public var body: RequestBody
    /// Whether the request is idempotent, so that it may be repeated after the upstream may have executed it.
    public var isRepeatable: Bool
    /// Decides, with any response, whether to repeat a request that may have been executed. nil: ``isRepeatable``.
    public var confirmsRepetition: ((CollectedResponse?) async -> Bool)?
    /// The maximum number of attempts, if less than ``UpstreamSettings/attempts``. A caller with its own repetitions
    /// sets 1, so that attempts do not multiply.
    public var attempts = Int.max
    /// Whether a body may be long, in either direction. libcurl sends such a request by HTTP/1.1 on its own connection:
    /// on a shared HTTP/2 connection, one slow reader would delay all others, and libcurl would buffer for them.
    public var isBulk: Bool
    /// Whether the request uses a new HTTP/1.1 connection that is closed afterwards, so that a late or repeated
    /// response to another request can't be mistaken for its own. libcurl ignores this.
    public var isAlone = false
    /// The timeout in nanoseconds for the response and each further part, for an upstream known to be slow. nil: the
    /// timeouts of ``UpstreamSettings``, which are also the minimum. A request that exceeds it is not repeated, because
    /// the upstream may still be processing it.
    public var waitLimit: UInt64?
    /// Adds credentials or a signature. Called before each attempt, on a copy.
    public var authorize: ((ClientRequest) async throws(ClientError) -> Void)?

    /// - Parameter isRepeatable: By default for `GET` and `HEAD`.
    public init(
        _ method: StaticString, _ target: String, fields: HeaderFields = HeaderFields(),
        body: RequestBody = .none, isRepeatable: Bool? = nil, isBulk: Bool = false
    ) {
        self.method = method
        self.target = target
        self.fields = fields
        self.body = body
        self.isBulk = isBulk
        if case .pipe = body { self.isBulk = true }
        self.isRepeatable = isRepeatable ?? ClientRequest.isRead(method)
    }

    /// A copy that can be changed. The body is shared.
    public func copy() -> ClientRequest {
        let copy = ClientRequest(method, target, fields: fields, body: body, isRepeatable: isRepeatable, isBulk: isBulk)
        copy.confirmsRepetition = confirmsRepetition
        copy.attempts = attempts
        copy.isAlone = isAlone
        copy.waitLimit = waitLimit
        copy.authorize = authorize
        return copy
    }

    /// Why the request can't be sent; nil if it can. A line break in a value would be request smuggling.
    var fault: String? {
        let bytes = target.utf8.span
        let isTarget = bytes.indices.allSatisfy { ASCII.isVisible(bytes[$0]) }
        if bytes.isEmpty || bytes[0] != UInt8(ascii: "/") || !isTarget {
            return "the target has other than visible ASCII characters"
        }
        return fields.areWellFormed ? nil : "a field has a line break or another control character"
    }

    /// The `Content-Length`: for every body, and for methods that usually have one (RFC 9110, section 8.6).
    var declaredLength: String? {
        switch body {
        case .none:
            switch method.utf8Start[0] {
            case UInt8(ascii: "P"): "0"
            default: nil
            }
        case .bytes(let bytes): String(bytes.count)
        case .pipe(let pipe): String(pipe.length)
        }
    }

    var isHead: Bool { method.utf8CodeUnitCount == 4 && method.utf8Start[0] == UInt8(ascii: "H") }

    var isRead: Bool { ClientRequest.isRead(method) }

    // Only these methods begin with these letters.
    private static func isRead(_ method: StaticString) -> Bool {
        method.utf8Start[0] == UInt8(ascii: "G") || method.utf8Start[0] == UInt8(ascii: "H")
    }
}
