import Buckets
import OpenSSL
import Wire

/// A key that signs links.
struct LinkKey: Sendable, Equatable {
    /// The key's id. It is part of the links that the key signs.
    var id: String
    /// At least 32 bytes.
    var secret: [UInt8]

    /// Distinguishes keys with the same id. The secret can't be derived from it.
    var fingerprint: String {
        let hash = HMAC.sha256(key: secret, Array("sluice link key 1".utf8).span.bytes)
        return Hexadecimal.encode(Array(hash.prefix(8)))
    }
}

/// The keys for signed links. The first key signs; each key verifies its own links.
public struct LinkKeys: Sendable, Equatable {
    /// Why a key file is invalid. Never contains a part of a key.
    public struct Malformed: Error, CustomStringConvertible, Equatable {
        public var description: String
    }
    private static let maximum = 100
    private static let secretBytes = 32
    private let keys: [LinkKey]

    /// Parses lines of an id, white space and base64url of at least 32 bytes. A `#` begins a comment.
    /// - Throws: ``Malformed`` with the number of the line.
    public init(text: String) throws(Malformed) {
        var keys: [LinkKey] = []
        for (index, line) in text.split(separator: "\n", omittingEmptySubsequences: false)
            .enumerated()
        {
            let words = line.prefix { $0 != "#" }.split { " \t\r".contains($0) }
            if words.isEmpty { continue }
            func fault(_ what: String) -> Malformed {
                Malformed(description: "line \(index + 1): \(what)")
            }
            guard words.count == 2 else { throw fault("expected an id and a key") }
            let id = String(words[0])
            if let fault = CallerGroup.fault(ofName: id) {
                throw Malformed(description: "line \(index + 1): \(fault)")
            }
            guard let secret = Base64.decodeForURL(Array(words[1].utf8)[...]),
                secret.count >= LinkKeys.secretBytes
            else { throw fault("expected base64url of at least \(LinkKeys.secretBytes) bytes") }
            guard !keys.contains(where: { $0.id == id }) else {
                throw fault("a second key '\(id)'")
            }
            keys.append(LinkKey(id: id, secret: secret))
        }
        guard (1...LinkKeys.maximum).contains(keys.count) else {
            throw Malformed(description: "expected 1 to \(LinkKeys.maximum) keys, found \(keys.count)")
        }
        self.keys = keys
    }

    /// Makes a line with a new key.
    /// - Throws: ``Malformed`` if the id is invalid.
    public static func generate(id: String) throws(Malformed) -> String {
        if let fault = CallerGroup.fault(ofName: id) {
            throw Malformed(description: fault)
        }
        return
            "\(id) \(Base64.encodeForURL((0..<secretBytes).map { _ in UInt8.random(in: 0 ... .max) }))"
    }

    var newest: LinkKey { keys[0] }

    func key(_ id: String) -> LinkKey? { keys.first { $0.id == id } }
}

/// A permission in the query of a URL. It is valid for one method on one object until its expiry, and optionally only
/// for a body of one size and type, and for one version of the object.
public struct SignedLink: Sendable, Equatable {
    /// The method of a link. `GET` includes `HEAD`.
    public enum Method: String, Sendable, CaseIterable {
        case get = "GET"
        case put = "PUT"
        case delete = "DELETE"
    }
    /// The version of the object that the decision has read.
    public enum Pin: Sendable, Equatable {
        /// No object existed.
        case absent
        /// The object had this generation and metageneration.
        case version(Int64, Int64)
    }
    /// The allowed method.
    public var method: Method
    /// The bucket's name.
    public var bucket: String
    /// Decoded.
    public var name: String
    /// The time of signing, in seconds since 1970.
    public var issued: Int64
    /// The expiry in seconds since 1970. From then on the link is not valid.
    public var expires: Int64
    /// The size of the body in bytes.
    public var size: UInt64?
    /// The body's `Content-Type`, compared bytewise.
    public var contentType: String?
    /// The only version of the object that the link is valid for; nil if the decision did not read the object.
    public var pin: Pin?
    /// Whether an upload must also end before ``expires``, because the decision has read the time.
    public var isDeadline = false

    public init(
        _ method: Method, bucket: String, name: String, issued: Int64, expires: Int64,
        size: UInt64? = nil, contentType: String? = nil
    ) {
        self.method = method
        self.bucket = bucket
        self.name = name
        self.issued = issued
        self.expires = expires
        self.size = size
        self.contentType = contentType
    }

    /// - Parameter path: The path as in a request: `/b/BUCKET/o/NAME`.
    /// - Throws: ``LinkKeys/Malformed`` if the path is not an object's, or no request can have the type.
    public init(
        _ method: Method, path: String, issued: Int64, expires: Int64, size: UInt64? = nil, contentType: String? = nil
    ) throws(LinkKeys.Malformed) {
        if contentType == "" { throw LinkKeys.Malformed(description: "the type is empty") }
        do throws(Problem) {
            if let contentType { try ObjectAttributes.checkField(contentType, "the type") }
            let route = try Route(target: path)
            guard case .named(let name) = route.path, !path.utf8.contains(UInt8(ascii: "?")) else { throw .notFound }
            guard BucketName(route.bucket) != nil else {
                throw Problem(.bucketNotFound, "No bucket can have this name.")
            }
            do throws(NameError) {
                self.init(
                    method, bucket: route.bucket, name: try ObjectName(percentEncoded: name).value,
                    issued: issued, expires: expires, size: size, contentType: contentType)
            } catch {
                throw Problem(error)
            }
        } catch {
            throw LinkKeys.Malformed(description: "\(path): \(error.detail)")
        }
    }

    /// The path and query, signed with the first key.
    public func target(_ keys: LinkKeys) -> String {
        let key = keys.newest
        var target = "/b/\(bucket)/o/\(PercentEncoding.encodePath(name))"
        target += "?link-method=\(method.rawValue)&link-issued=\(issued)&link-expires=\(expires)"
        if let size { target += "&link-size=\(size)" }
        if let contentType { target += "&link-type=\(PercentEncoding.encodeSegment(contentType))" }
        if let pin { target += "&link-object=\(pin)" }
        if isDeadline { target += "&link-deadline=true" }
        return target + "&link-key=\(key.id)&link-signature=\(Base64.encodeForURL(signature(key)))"
    }

    /// The signed message. Each part is preceded by its length, so no two links have the same message.
    private func signature(_ key: LinkKey) -> [UInt8] {
        var message: [UInt8] = []
        for part in [
            "sluice link 2", method.rawValue, bucket, name, "\(issued)", "\(expires)", size.map { "\($0)" } ?? "",
            contentType ?? "", pin.map { "\($0)" } ?? "", "\(isDeadline)",
        ] {
            message += "\(part.utf8.count):".utf8
            message += part.utf8
        }
        return HMAC.sha256(key: key.secret, message.span.bytes)
    }
}

extension SignedLink {
    /// The link parameters of a query.
    private struct Parameters {
        var values: [BytewiseString: String] = [:]
        /// Whether there are other parameters, or a parameter occurs twice.
        var hasOthers = false
        private static let known = [
            "method", "issued", "expires", "size", "type", "object", "deadline", "key", "signature",
        ]

        init(_ query: QueryParameters) {
            hasOthers = query.isIncomplete
            for parameter in query.all {
                let name = parameter.name
                guard name.hasPrefix("link-"),
                    Self.known.contains(where: { name.dropFirst(5) == $0 }),
                    values[name] == nil,
                    let text = try? QueryParameters.decoded(parameter.value, of: name)
                else {
                    hasOthers = true
                    continue
                }
                values[name] = text
            }
        }
    }

    /// Whether a query claims to be a signed link.
    static func isClaimed(_ query: QueryParameters) -> Bool { query.contains("link-signature") }

    /// The link of a request, and the id of the key that signed it.
    /// - Parameters:
    ///   - maximumLifetime: The maximum lifetime of a link in seconds, whichever key signed it.
    ///   - now: Seconds since 1970.
    /// - Throws: ``Problem``: `link-expired`; `invalid-link` if it is altered, for another request or valid too long.
    static func verified(
        method: String, bucket: String, name: String, query: QueryParameters, _ keys: LinkKeys,
        maximumLifetime: Int64, now: Int64
    ) throws(Problem) -> (link: SignedLink, key: String) {
        let parameters = Parameters(query)
        let values = parameters.values
        guard !parameters.hasOthers, let text = values["link-method"],
            let allowed = Method(rawValue: text),
            let issued: Int64 = number(values["link-issued"]),
            let expires: Int64 = number(values["link-expires"]),
            let key = values["link-key"].flatMap(keys.key),
            let shown = values["link-signature"].flatMap({
                Base64.decodeForURL(Array($0.utf8)[...])
            }),
            case let size:UInt64? = number(values["link-size"]),
            (values["link-size"] == nil) == (size == nil), values["link-type"] != "",
            case let pin = values["link-object"].flatMap(Pin.init),
            (values["link-object"] == nil) == (pin == nil),
            values["link-deadline"] == nil || values["link-deadline"] == "true"
        else { throw invalid("a parameter is missing, unknown or malformed") }
        var link = SignedLink(
            allowed, bucket: bucket, name: name, issued: issued, expires: expires,
            size: size, contentType: values["link-type"])
        link.pin = pin
        link.isDeadline = values["link-deadline"] != nil
        guard areEqualInConstantTime(shown, link.signature(key)) else {
            throw invalid("the signature is another")
        }
        guard now < expires else {
            throw Problem(
                .linkExpired, "The link was valid until \(HTTPDate.rfc3339(milliseconds: expires * 1000)).",
                cause: "link of key \(key.id)")
        }
        guard method == allowed.rawValue || (method == "HEAD" && allowed == .get) else {
            throw invalid("it is for \(allowed.rawValue)")
        }
        try link.checkLifetime(maximumLifetime, key: key, now: now)
        return (link, key.id)
    }

    /// The tolerated difference between clocks in seconds.
    private static let skew: Int64 = 60

    /// - Throws: ``Problem`` with `invalid-link`.
    private func checkLifetime(_ maximum: Int64, key: LinkKey, now: Int64) throws(Problem) {
        let (lifetime, isOverflow) = expires.subtractingReportingOverflow(issued)
        guard !isOverflow, lifetime <= maximum else {
            throw Problem(
                .invalidLink,
                "The link is valid for longer than \(maximum) s, which is the maximum.",
                cause: "link of key \(key.id): links.maximumLifetime is \(maximum) s")
        }
        guard issued <= now + SignedLink.skew else {
            throw Problem(.invalidLink, "The link was signed in the future.", cause: "link of key \(key.id)")
        }
    }

    /// Parses a number in the form in which links are written. Any other form means an altered link.
    fileprivate static func number<Number: FixedWidthInteger>(_ text: String?) -> Number? {
        text.flatMap { Number($0) }.flatMap { "\($0)" == text ? $0 : nil }
    }

    private static func invalid(_ cause: String) -> Problem {
        Problem(
            .invalidLink, "The link was altered, or is not for this request.", cause: cause)
    }

    /// Decides instead of a policy whether the object is still the version that the link was signed for. The client
    /// gets the cause of a denial.
    func decide(_ existing: CurrentObject, now: Int64) -> Decision {
        if isDeadline, now >= expires {
            return .deny(cause: "The link has expired while the request was being served.")
        }
        guard let pin else { return .allow }
        guard let current = Pin(existing) else { return .needsExisting }
        return current == pin ? .allow : .deny(cause: "The object has changed since the link was signed.")
    }

    /// Checks that an upload has the size and type of the link.
    /// - Throws: ``Problem`` with `invalid-link`.
    func check(_ request: UploadRequest) throws(Problem) {
        if let size, request.size != size {
            throw SignedLink.invalid("the body must have \(size) bytes, declared by Content-Length")
        }
        if let contentType, request.attributes.contentType != contentType {
            throw SignedLink.invalid("the body's Content-Type must be \(contentType)")
        }
    }
}

/// The form in links: `none`, or `GENERATION.METAGENERATION`.
extension SignedLink.Pin: CustomStringConvertible {
    public var description: String {
        switch self {
        case .absent: "none"
        case .version(let generation, let metageneration): "\(generation).\(metageneration)"
        }
    }

    /// Parses ``description``; nil for anything else.
    init?(_ text: String) {
        if text == "none" {
            self = .absent
            return
        }
        let parts = text.split(separator: ".", omittingEmptySubsequences: false).map(String.init)
        guard parts.count == 2, let generation: Int64 = SignedLink.number(parts[0]),
            let metageneration: Int64 = SignedLink.number(parts[1])
        else { return nil }
        self = .version(generation, metageneration)
    }

    /// The version that a decision has read; nil if it did not read the object.
    init?(_ existing: CurrentObject) {
        switch existing {
        case .unknown: return nil
        case .absent: self = .absent
        case .object(let object): self = .version(object.generation, object.metageneration)
        }
    }
}
