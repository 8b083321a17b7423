import Wire

/// A JSON Web Token that was parsed but not verified (RFC 7519; JWS compact serialization, RFC 7515, section 7.1).
struct JSONWebToken {
    /// The maximum size of a token in bytes: 16 KiB.
    static let maximumBytes = 16 * 1024

    struct Header {
        let algorithm: String
        let keyID: String?
    }

    let header: Header
    let claims: Claims
    let signature: [UInt8]
    /// The signed text: everything before the second dot.
    let signedBytes: Int

    /// Parses `text`, which has exactly two dots. Ignores `jku`, `x5u`, `jwk` and `x5c`: keys are only the issuer's
    /// own.
    /// - Throws: ``CredentialError`` with `malformed`.
    init(_ text: [UInt8]) throws(CredentialError) {
        guard text.count <= JSONWebToken.maximumBytes else {
            throw fault("it has more than 16 KiB")
        }
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

/// A JSON object without duplicate names at any level.
private func object(_ text: [UInt8], _ what: String) throws(CredentialError) -> JSONDocument {
    // The reader's message may contain member names, which are part of the token.
    guard let document = try? JSONDocument(text), document.kind(0) == .object else {
        throw fault("\(what) is not one JSON object without equal names")
    }
    return document
}

extension JSONDocument {
    fileprivate func string(_ index: Int) -> String? { kind(index) == .string ? text(index) : nil }

    /// nil if the value is not a number, or too large for a double.
    func number(_ index: Int) -> Double? {
        guard kind(index) == .number else { return nil }
        let text = text(index)
        // Most numbers are integers, which are parsed in a tenth of the time.
        if let integer = Int64(text) { return Double(integer) }
        guard let number = Double(text), number.isFinite else { return nil }
        return number
    }
}

extension JSONWebToken.Header {
    fileprivate init(_ text: [UInt8]) throws(CredentialError) {
        let document = try object(text, "the header")
        var algorithm: String?
        var keyID: String?
        for name in document.children(of: 0) {
            if document.has(name, "alg") {
                algorithm = document.string(name + 1)
            } else if document.has(name, "kid") {
                keyID = document.string(name + 1)
                if keyID == nil { throw fault("kid is not a string") }
            } else if document.has(name, "crit") {
                throw fault("it has critical extensions")
            } else if document.has(name, "typ") {
                guard let type = document.string(name + 1), Self.isToken(type) else {
                    throw fault("typ is not a token's")
                }
            }
        }
        guard let algorithm else { throw fault("alg is missing") }
        self.algorithm = algorithm
        self.keyID = keyID
    }

    /// `JWT`, or `at+jwt` (RFC 9068, section 2.1).
    private static func isToken(_ type: String) -> Bool {
        let type = type.asciiLowercased()
        let short = type.hasPrefix("application/") ? type.dropFirst(12) : type[...]
        return short == "jwt" || short == "at+jwt"
    }
}

/// The claims of a token (RFC 7519, section 4.1).
struct Claims {
    let document: JSONDocument
    private(set) var issuer: String?
    private(set) var subject: String?
    /// Seconds since 1970.
    private(set) var expires: Double?
    private(set) var notBefore: Double?
    private(set) var issuedAt: Double?
    private(set) var authenticatedAt: Double?
    private var audience: Int?

    fileprivate init(_ text: [UInt8]) throws(CredentialError) {
        document = try object(text, "the claim set")
        for name in document.children(of: 0) {
            let index = name + 1
            if document.has(name, "iss") {
                issuer = try string(index, "iss")
            } else if document.has(name, "sub") {
                subject = try string(index, "sub")
            } else if document.has(name, "aud") {
                audience = index
                guard audiences.allSatisfy({ document.kind($0) == .string }) else {
                    throw fault("aud is not a string")
                }
            } else if document.has(name, "exp") {
                expires = try time(index, "exp")
            } else if document.has(name, "nbf") {
                notBefore = try time(index, "nbf")
            } else if document.has(name, "iat") {
                issuedAt = try time(index, "iat")
            } else if document.has(name, "auth_time") {
                authenticatedAt = try time(index, "auth_time")
            }
        }
    }

    /// The approximate memory in bytes: the text, plus 12 bytes here and 96 in the rules for each name and value.
    var bytes: Int { document.bytes.count + document.count * 108 }

    func index(_ name: String) -> Int? {
        document.children(of: 0).first { document.has($0, name) }.map { $0 + 1 }
    }

    /// A string claim; nil if there is none.
    subscript(_ name: String) -> String? { index(name).flatMap(document.string) }

    func has(audience: String) -> Bool { audiences.contains { document.has($0, audience) } }

    /// The index of `aud`, or the indexes of its elements if it is a list.
    private var audiences: [Int] {
        guard let audience else { return [] }
        return document.kind(audience) == .array ? Array(document.children(of: audience)) : [audience]
    }

    private func string(_ index: Int, _ name: String) throws(CredentialError) -> String {
        guard let text = document.string(index) else { throw fault("\(name) is not a string") }
        return text
    }

    private func time(_ index: Int, _ name: String) throws(CredentialError) -> Double {
        guard let time = document.number(index) else { throw fault("\(name) is not a number") }
        return time
    }
}
