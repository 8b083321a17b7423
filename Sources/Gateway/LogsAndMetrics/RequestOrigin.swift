import HTTPServer
import Wire

/// The client's own statements about itself and its request, for the access log. None is verified.
public struct RequestOrigin: Sendable {
    /// The requested host: `:authority`, or `Host`.
    public var host: String?
    /// `User-Agent`.
    public var userAgent: String?
    /// A field of a proxy's request that names another client, and was ignored.
    public var ignoredForwarding: String?
    /// The client's own `X-Request-Id`: 1 to 64 letters, digits, `-`, `_` and `.`. Another one is ignored. The gateway's
    /// ids are its own, so that a client can't make two requests look the same.
    public var requestId: String?

    /// The caller's position in a trace, from a well-formed `traceparent`.
    public var trace: TraceContext?
    /// The caller's `tracestate`, if there is a ``trace``.
    public var traceState: String?

    /// Nothing is known: the header was not read.
    init() {}

    /// Reads the fields in one pass.
    /// - Parameter isComplete: Whether not only the trace is read.
    init(_ head: RequestHead, isComplete: Bool) {
        if isComplete { host = head.authority.map { RequestOrigin.short($0.utf8) } }
        var traces = 0
        head.fields.read { fields in
            while let (name, value) = fields.next() {
                switch name.count {
                case 10 where isComplete && userAgent == nil && name.matches("user-agent"):
                    userAgent = RequestOrigin.short(value)
                case 11 where name.matches("traceparent"):
                    traces += 1
                    trace = TraceContext(value)
                case 12 where isComplete && requestId == nil && name.matches("x-request-id"):
                    if RequestOrigin.isWellFormed(value) {
                        requestId = String(decoding: value, as: UTF8.self)
                    }
                default: break
                }
            }
        }
        if traces > 1 { trace = nil }
        if trace != nil { traceState = TraceState.joined(head.fields.values("tracestate")) }
    }

    /// The first 256 bytes.
    static func short(_ text: some Collection<UInt8>) -> String {
        String(decoding: text.prefix(256), as: UTF8.self)
    }

    private static func isWellFormed(_ id: UnsafeBufferPointer<UInt8>) -> Bool {
        (1...64).contains(id.count)
            && id.allSatisfy { byte in
                switch byte {
                case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "A")...UInt8(ascii: "Z"),
                    UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "-"), UInt8(ascii: "_"), UInt8(ascii: "."):
                    true
                default: false
                }
            }
    }
}
