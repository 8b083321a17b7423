import HTTPServer
import Wire

/// What a client says of itself and of its request, for the access log. Nothing of it is verified.
public struct RequestOrigin: Sendable {
    /// The host that was asked for: `:authority`, or `Host`.
    public var host: String?
    /// `User-Agent`.
    public var userAgent: String?
    /// The client's own `X-Request-Id`: 1 to 64 letters, digits, `-`, `_` and `.`. Another one is ignored. The gateway's
    /// ids are its own, so that a client can't make two requests look the same.
    public var requestId: String?

    /// Nothing is known: the header was not read.
    init() {}

    init(_ head: RequestHead) {
        host = head.authority.map(RequestOrigin.short)
        userAgent = head.fields["user-agent"].map(RequestOrigin.short)
        requestId = head.fields["x-request-id"].flatMap {
            RequestOrigin.isWellFormed($0) ? $0 : nil
        }
    }

    /// The first 256 bytes.
    private static func short(_ text: String) -> String {
        text.utf8.count <= 256 ? text : String(decoding: text.utf8.prefix(256), as: UTF8.self)
    }

    private static func isWellFormed(_ id: String) -> Bool {
        (1...64).contains(id.utf8.count)
            && id.utf8.allSatisfy { byte in
                switch byte {
                case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "A")...UInt8(ascii: "Z"),
                    UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "-"), UInt8(ascii: "_"),
                    UInt8(ascii: "."):
                    true
                default: false
                }
            }
    }
}
