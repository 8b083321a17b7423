import Buckets
import Wire

/// The requested properties of a link: the body of `POST …?sign`.
struct LinkRequest: Equatable {
    /// The maximum size of the body in bytes.
    static let maximumBytes = 16 * 1024
    /// The default lifetime in seconds.
    private static let usualLifetime: Int64 = 900

    var method = SignedLink.Method.get
    var lifetime = LinkRequest.usualLifetime
    var size: UInt64?
    var contentType: String?

    /// - Parameter text: A JSON object with the optional members `method`, `expiresIn` (seconds), `size` and
    ///   `contentType`. An empty text requests a download.
    /// - Throws: ``Problem`` with `invalid-argument`.
    init(json text: [UInt8], maximumLifetime: Int64) throws(Problem) {
        var members: [JSONMember] = []
        if !text.isEmpty {
            guard case .object(let found)? = try? JSONReader.parse(text) else {
                throw Problem(.invalidArgument, "The body is a JSON object, or nothing.")
            }
            members = found
        }
        for member in members { try take(member) }
        guard (1...maximumLifetime).contains(lifetime) else {
            throw Problem(.invalidArgument, "expiresIn is from 1 to \(maximumLifetime) seconds.")
        }
        if method != .put, size != nil || contentType != nil {
            throw Problem(.invalidArgument, "size and contentType are of links for PUT.")
        }
    }

    private mutating func take(_ member: JSONMember) throws(Problem) {
        switch (member.key, member.value) {
        case ("method", .string(let text)):
            guard let known = SignedLink.Method(rawValue: text) else {
                throw Problem(.invalidArgument, "method is GET, PUT or DELETE.")
            }
            method = known
        case ("expiresIn", .number(let text)) where Int64(text) != nil:
            lifetime = Int64(text) ?? 0
        case ("size", .number(let text)) where UInt64(text) != nil: size = UInt64(text)
        case ("contentType", .string(let text)) where !text.isEmpty:
            try ObjectAttributes.checkField(text, member.key)
            contentType = text
        case ("method", _), ("expiresIn", _), ("size", _), ("contentType", _):
            throw Problem(.invalidArgument, "\(member.key) has a value that it can't have.")
        default: throw Problem(.invalidArgument, "\(member.key) is not known here.")
        }
    }
}
