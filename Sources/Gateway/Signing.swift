import Buckets
import HTTPServer
import Wire

/// What a link is asked to allow: the body of `POST …?sign`.
struct LinkRequest: Equatable {
    /// Bytes of the body at most.
    static let maximumBytes = 16 * 1024
    /// Seconds where nothing is asked.
    private static let usualLifetime: Int64 = 900

    var method = SignedLink.Method.get
    var lifetime = LinkRequest.usualLifetime
    var size: UInt64?
    var contentType: String?

    /// - Parameter text: A JSON object with `method`, `expiresIn` (seconds), `size` and `contentType`, each of which
    ///   may be left out; nothing at all asks for a download.
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

extension Call {
    /// `POST …?sign`: makes a link where the caller may do now what the link is for.
    func sign(_ name: ObjectName, _ bucket: GatewayBucket, _ callers: Callers)
        async throws(Problem) -> Answer
    {
        guard let keys = callers.links else {
            throw Problem(.notImplemented, "No keys that sign links are configured.")
        }
        let text: [UInt8]
        do throws(BodyError) {
            text = try await exchange.collect(limit: LinkRequest.maximumBytes)
        } catch {
            throw Problem(error, limit: UInt64(LinkRequest.maximumBytes))
        }
        record.bytesIn = UInt64(text.count)
        let request = try LinkRequest(json: text, maximumLifetime: callers.maximumLifetime)
        if let size = request.size, size > bucket.maximumObjectSize {
            throw Problem(BodyError.tooLarge, limit: bucket.maximumObjectSize)
        }
        proposal.size = request.size
        proposal.contentType = request.contentType
        operation?.kind = request.method.kind
        record.operation = request.method.kind
        var existing = Existing.unknown
        if try await ask(&existing, name, bucket) != .nothing {
            throw Problem(
                .unauthorized, "The rules read more than the link says: bind its size and type.",
                cause: "the decision depends on facts of a body that is not there yet")
        }
        let link = SignedLink(
            request.method, bucket: bucket.name, name: name.value, expires: now + request.lifetime,
            size: request.size, contentType: request.contentType)
        var json = JSONWriter(reserving: 512)
        json.beginObject()
        json.member("method", request.method.rawValue)
        json.member("path", link.target(keys))
        json.member("expires", HTTPDate.rfc3339(milliseconds: link.expires * 1000))
        json.endObject()
        return Answer(status: 200, json: json.bytes)
    }
}

extension SignedLink.Method {
    /// What rules are asked for it.
    fileprivate var kind: Operation.Kind {
        switch self {
        case .get: .get
        case .put: .create
        case .delete: .delete
        }
    }
}
