import Wire

/// Validates a token's claims after its signature has been verified.
struct ClaimsValidator {
    private let claims: Claims
    private let now: Double

    init(_ token: JSONWebToken, _ now: Int64) {
        claims = token.claims
        self.now = Double(now)
    }

    func principal(_ issuer: TokenIssuer, _ key: IssuerKey) throws(CredentialError)
        -> VerifiedTokens.Entry
    {
        guard issuer.audiences.contains(where: claims.has(audience:)) else {
            throw CredentialError(.wrongAudience, "it is not for '\(issuer.name)'")
        }
        guard claims.expires != nil else { throw fault("exp is missing") }
        try checkTimes()
        guard let subject = claims.subject, !subject.isEmpty else { throw fault("sub is missing") }
        var uid = claims[issuer.uidClaim]
        if issuer.profile == .firebase {
            guard claims.authenticatedAt != nil else { throw fault("auth_time is missing") }
            uid = claims["user_id"] ?? uid
        }
        if let proof = ClaimsValidator.proofs[issuer.uidClaim], !isTrue(proof) {
            throw fault("\(proof) is not true, so that \(issuer.uidClaim) can't be the uid")
        }
        if let name = uid, !name.isEmpty { uid = issuer.uidPrefix + name }
        return try entry(.token, uid, source: issuer.name, group: issuer.group, key)
    }

    func developer() throws(CredentialError) -> VerifiedTokens.Entry {
        try checkTimes()
        return try entry(
            .development, claims["user_id"] ?? claims.subject, source: "development", group: "development", nil)
    }

    private func entry(
        _ kind: Principal.Kind, _ uid: String?, source: String, group: String, _ key: IssuerKey?
    ) throws(CredentialError) -> VerifiedTokens.Entry {
        guard let uid, Principal.uidBytes.contains(uid.utf8.count) else {
            throw fault("the claim that is the uid is missing, or has more than 2048 bytes")
        }
        guard areReadable(0, depth: 0) else {
            throw fault("a claim is nested too deeply, or is none that rules could read")
        }
        let expires = claims.expires.map { Int64(min(max($0, -1e15), 1e15)) } ?? .max
        let until = expires == .max ? expires : expires + Authenticator.skew
        return VerifiedTokens.Entry(
            principal: Principal(
                kind: kind, uid: uid, claims: claims.document, source: source, group: group, expires: expires),
            until: until, key: key, bytes: claims.bytes)
    }

    /// Checks those of `exp`, `nbf`, `iat` and `auth_time` that are present, with the tolerated clock skew.
    private func checkTimes() throws(CredentialError) {
        let skew = Double(Authenticator.skew)
        if let expires = claims.expires, now >= expires + skew {
            throw CredentialError(.expired, "it has expired")
        }
        for time in [claims.notBefore, claims.issuedAt, claims.authenticatedAt] {
            if let time, time > now + skew {
                throw CredentialError(.notYetValid, "it is of a time to come")
            }
        }
    }

    /// Claims that a user may choose freely, and those that confirm them (OpenID Connect Core 1.0, section 5.1).
    private static let proofs = [
        "email": "email_verified", "phone_number": "phone_number_verified",
    ]

    private func isTrue(_ claim: String) -> Bool {
        claims.index(claim).map { claims.document.kind($0) == .true } ?? false
    }

    /// Whether a value and its elements are within the limits of ``Principal/claims``.
    private func areReadable(_ index: Int, depth: Int) -> Bool {
        guard depth <= Principal.maximumClaimDepth else { return false }
        let document = claims.document
        return switch document.kind(index) {
        case .null, .false, .true, .string: true
        case .number: document.number(index) != nil
        case .array: document.children(of: index).allSatisfy { areReadable($0, depth: depth + 1) }
        case .object: document.children(of: index).allSatisfy { areReadable($0 + 1, depth: depth + 1) }
        }
    }

    private func fault(_ cause: String) -> CredentialError { CredentialError(.malformed, cause) }
}
