import Wire

/// A JSON Web Token that has been read and not believed yet (RFC 7519; JWS compact serialization, RFC 7515, section 7.1).
struct WebToken {
    /// Bytes of a token at most: 16 KiB.
    static let maximumBytes = 16 * 1024

    /// Which key signs how.
    struct Header {
        let algorithm: String
        let keyID: String?
    }

    let header: Header
    let claims: Claims
    let signature: [UInt8]
    /// What is signed: everything before the second dot.
    let signedBytes: Int

    /// Reads `text`, in which there are exactly two dots.
    ///
    /// `jku`, `x5u`, `jwk` and `x5c` are not even looked at: keys come from the issuer's own set alone.
    /// - Throws: ``CredentialError`` of `malformed`.
    init(_ text: [UInt8]) throws(CredentialError) {
        guard text.count <= WebToken.maximumBytes else { throw fault("it has more than 16 KiB") }
        guard let first = text.firstIndex(of: UInt8(ascii: ".")),
            let second = text.lastIndex(of: UInt8(ascii: ".")), first < second,
            let headerText = Base64.decodeForURL(text[..<first]),
            let claimsText = Base64.decodeForURL(text[(first + 1)..<second]),
            let signature = Base64.decodeForURL(text[(second + 1)...])
        else { throw fault("it is not three parts in base64url") }
        header = try Header(headerText)
        claims = try Claims(claimsText)
        self.signature = signature
        signedBytes = second
    }
}

private func fault(_ cause: String) -> CredentialError { CredentialError(.malformed, cause) }

/// The members of a JSON object, none of them twice.
private func members(_ text: [UInt8], _ what: String) throws(CredentialError) -> [JSONMember] {
    // What the reader says of a fault names members: those are part of the token.
    guard case .object(let members)? = try? JSONReader.parse(text) else {
        throw fault("\(what) is not one JSON object without equal names")
    }
    return members
}

extension WebToken.Header {
    fileprivate init(_ text: [UInt8]) throws(CredentialError) {
        var algorithm: String?
        var keyID: String?
        for member in try members(text, "the header") {
            switch member.key {
            case "alg": algorithm = member.value.text
            case "kid":
                guard let text = member.value.text else { throw fault("kid is not a string") }
                keyID = text
            case "crit": throw fault("it has critical extensions")
            case "typ":
                guard let type = member.value.text, Self.isToken(type) else {
                    throw fault("typ is not that of a token")
                }
            default: break
            }
        }
        guard let algorithm else { throw fault("alg is missing") }
        self.algorithm = algorithm
        self.keyID = keyID
    }

    /// `JWT`, or `at+jwt` (RFC 9068, section 2.1).
    private static func isToken(_ type: String) -> Bool {
        let type = type.lowercased()
        let short = type.hasPrefix("application/") ? type.dropFirst(12) : type[...]
        return short == "jwt" || short == "at+jwt"
    }
}

/// What a token says (RFC 7519, section 4.1).
struct Claims {
    let members: [JSONMember]
    private(set) var issuer: String?
    private(set) var subject: String?
    private(set) var audiences: [String] = []
    /// Seconds since 1970.
    private(set) var expires: Double?
    private(set) var notBefore: Double?
    private(set) var issuedAt: Double?
    private(set) var authenticatedAt: Double?

    fileprivate init(_ text: [UInt8]) throws(CredentialError) {
        members = try Identity.members(text, "the claim set")
        for member in members {
            let value = member.value
            switch member.key {
            case "iss": issuer = try Claims.text(value, "iss")
            case "sub": subject = try Claims.text(value, "sub")
            case "aud":
                for element in value.elements ?? [value] {
                    audiences.append(try Claims.text(element, "aud"))
                }
            case "exp": expires = try Claims.time(value, "exp")
            case "nbf": notBefore = try Claims.time(value, "nbf")
            case "iat": issuedAt = try Claims.time(value, "iat")
            case "auth_time": authenticatedAt = try Claims.time(value, "auth_time")
            default: break
            }
        }
    }

    /// A claim that is a string; nil where it is none.
    subscript(_ name: String) -> String? {
        members.first { BytewiseString.areEqual($0.key, name) }?.value.text
    }

    func has(audience: String) -> Bool {
        audiences.contains { BytewiseString.areEqual($0, audience) }
    }

    private static func text(_ value: JSONValue, _ name: String) throws(CredentialError) -> String {
        guard let text = value.text else { throw fault("\(name) is not a string") }
        return text
    }

    private static func time(_ value: JSONValue, _ name: String) throws(CredentialError) -> Double {
        guard case .number(let text) = value, let time = ClaimValues.number(text) else {
            throw fault("\(name) is not a number")
        }
        return time
    }
}
