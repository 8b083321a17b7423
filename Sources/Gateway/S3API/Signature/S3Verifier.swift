import Identity
import OpenSSL
import System
import Wire

/// Verifies the signatures of requests (AWS Signature Version 4), in `Authorization`, in the query and in forms.
///
/// The keys may be replaced at any time, from any thread.
public final class S3Verifier: Sendable {
    /// The tolerated difference between a request's time and the gateway's in seconds.
    static let maximumSkew: Int64 = 15 * 60
    /// The maximum lifetime of a presigned URL in seconds.
    static let maximumLifetime: Int64 = 7 * 86_400

    private struct State {
        var keys: AccessKeys
        var sessionKeys: S3SessionKeys?
        /// The number of replacements. A key derived before the last one is not kept.
        var generation = 0
        var signingKeys = SigningKeys()
        var urls = VerifiedURLs()
    }
    private let region: String?
    private let isConfigured: @Sendable (Principal) -> Bool
    private let state: Lock<State>

    /// - Parameters:
    ///   - region: The only region that credentials of S3 may have; nil for any.
    ///   - sessionKeys: nil if there are no temporary credentials.
    ///   - isConfigured: Whether the source of a session's caller is still configured.
    public init(
        region: String?, keys: AccessKeys, sessionKeys: S3SessionKeys?,
        isConfigured: @escaping @Sendable (Principal) -> Bool
    ) {
        self.region = region
        self.isConfigured = isConfigured
        state = Lock(State(keys: keys, sessionKeys: sessionKeys))
    }

    /// The current access keys.
    var keys: AccessKeys { state.withLock { $0.keys } }

    /// The current keys of temporary credentials.
    var sessionKeys: S3SessionKeys? { state.withLock { $0.sessionKeys } }

    /// Replaces the access keys. A removed key is unknown from now on.
    public func replace(_ keys: AccessKeys) { change { $0.keys = keys } }

    /// Replaces the keys of temporary credentials.
    public func replace(_ keys: S3SessionKeys?) { change { $0.sessionKeys = keys } }

    private func change(_ body: (inout State) -> Void) {
        state.withLock { state in
            body(&state)
            state.generation += 1
            state.signingKeys = SigningKeys()
            state.urls = VerifiedURLs()
        }
    }

    // MARK: One entry

    /// Authenticates a request by the credential that it has, wherever that is. No body byte is needed.
    /// - Parameter now: Seconds since 1970.
    /// - Throws: ``Problem`` with the dialect's error.
    func verify(_ request: S3SignedRequest, now: Int64) throws(Problem) -> S3Authentication {
        let query = request.query
        let shown = ShownFields(request.fields)
        if query.isVersion2 { throw .unsupportedSignature(cause: "Signature Version 2 in the query") }
        if query.isPresigned {
            guard shown.authorizations == 0 else {
                throw .onlyOneMechanism(cause: "a signature in the query, and Authorization")
            }
            return try verifyQuery(request, query, shown, now: now)
        }
        guard shown.authorizations > 0 else {
            return S3Authentication(payload: try payload(request, shown, nil))
        }
        guard shown.authorizations == 1 else { throw .onlyOneMechanism(cause: "several fields Authorization") }
        let text = shown.authorization.span
        if ASCII.hasPrefix(text, AuthorizationField.algorithm),
            case let rest = text.extracting(AuthorizationField.algorithm.utf8CodeUnitCount...),
            rest.isEmpty || ASCII.isSpace(rest[0])
        {
            return try verifyField(request, query, shown, try AuthorizationField(rest), now: now)
        }
        if ASCII.hasPrefix(text, "AWS ") {
            throw .unsupportedSignature(cause: "Signature Version 2 in Authorization")
        }
        if ASCII.hasPrefix(text, "AWS4-ECDSA-") {
            throw .unsupportedSignature(cause: "Signature Version 4A in Authorization")
        }
        guard text.count >= 6, ASCII.isEqual(text.extracting(0..<6), ignoringCase: "bearer"),
            text.count == 6 || ASCII.isSpace(text[6])
        else { throw .unsupportedAuthorization }
        return S3Authentication(signer: .bearer, payload: try payload(request, shown, nil))
    }

    /// The payload's mode. It is determined after the signature's verification.
    private func payload(
        _ request: S3SignedRequest, _ shown: ShownFields, _ verified: (SignatureClaim, SigningKey)?
    ) throws(Problem) -> S3Payload {
        if shown.hashes > 1 { throw S3Error.invalidRequest("x-amz-content-sha256 occurs twice.") }
        guard let (claim, key) = verified else {
            return try S3Payload(shown.hashes == 0 ? nil : shown.hash.span, request.fields, verifier: nil)
        }
        let hash = claim.payloadHash
        return try S3Payload(hash.span, request.fields) { ChunkVerifier(claim, key.key) }
    }

    // MARK: Authorization

    private func verifyField(
        _ request: S3SignedRequest, _ query: S3Query, _ shown: ShownFields, _ field: AuthorizationField, now: Int64
    ) throws(Problem) -> S3Authentication {
        if let fault = fault(field.credential, request.services) {
            throw .malformedAuthorization(fault.text, region: fault.region)
        }
        let (time, stamp) = try shown.time(now: now)
        guard stamp[..<8].elementsEqual(field.credential.day) else {
            throw .malformedAuthorization("the date of the Credential is not that of the request.")
        }
        guard abs(now - time) <= S3Verifier.maximumSkew else { throw .skewed(time, now: now) }
        let hash: [UInt8]
        if shown.hashes > 0 {
            hash = shown.hash
        } else if let body = request.bodySHA256 {
            hash = Array(Hexadecimal.encode(body).utf8)
        } else {
            throw .noPayloadHash
        }
        let claim = SignatureClaim(
            field.credential, field.signedNames, signature: field.signature, stamp: stamp, payloadHash: hash,
            token: try shown.sessionToken())
        let key = try check(claim, request, query, now: now).key
        return S3Authentication(
            signer: key.signer, accessKeyID: claim.credential.shownID,
            payload: try payload(request, shown, (claim, key)))
    }

    // MARK: Presigned URLs

    /// What is known of a request's URL.
    func find(_ method: HTTPMethod?, _ target: RequestTarget, authority: String?) -> VerifiedURLs.Finding {
        guard let method, VerifiedURLs.mayKeep(method, target) else { return .new }
        let hash = VerifiedURLs.hash(method.rawValue, target)
        return state.withLock { $0.urls.find(hash, method: method.rawValue, target, authority: authority) }
    }

    /// Authenticates a request whose URL was verified before; nil if it must be verified again.
    /// - Throws: ``Problem``: `InvalidToken`.
    func verify(_ url: VerifiedURL, _ fields: HeaderFields, now: Int64) throws(Problem) -> S3Authentication? {
        guard url.valid.contains(now), !ShownFields.isSigning(fields) else { return nil }
        try checkSource(url.authentication.signer)
        return url.authentication
    }

    private func keep(
        _ request: S3SignedRequest, _ authentication: S3Authentication, _ resolved: ResolvedKey,
        valid: ClosedRange<Int64>
    ) {
        guard let authority = request.authority, request.forwardedHost == nil, !ShownFields.isSigning(request.fields),
            case .unsigned = authentication.payload, request.query.others.all.count <= VerifiedURLs.maximumParameters
        else { return }
        var valid = valid
        if let session = resolved.key.session { valid = valid.clamped(to: 0...(session.expires - 1)) }
        let hash = VerifiedURLs.hash(request.method, request.target)
        let url = VerifiedURL(request, authority: authority, authentication, valid: valid)
        state.withLock { state in
            if state.generation == resolved.generation { state.urls.insert(hash, url) }
        }
    }

    private func verifyQuery(
        _ request: S3SignedRequest, _ query: S3Query, _ shown: ShownFields, now: Int64
    ) throws(Problem) -> S3Authentication {
        let presigned = try PresignedQuery(query)
        if let fault = fault(presigned.credential, request.services) {
            throw .malformedQuery(
                "Error parsing the X-Amz-Credential parameter; \(fault.text)", region: fault.region)
        }
        guard presigned.time <= now + S3Verifier.maximumSkew else { throw .notYetValid(now: now) }
        guard now <= presigned.time + presigned.lifetime else {
            throw .expired(presigned.time + presigned.lifetime, now: now)
        }
        let hoistedHash = query.value(named: "x-amz-content-sha256")
        if let hoistedHash, shown.hashes > 0, hoistedHash != shown.hash {
            throw S3Error.invalidRequest("x-amz-content-sha256 differs in the query and in the header.")
        }
        let unsigned = Array("UNSIGNED-PAYLOAD".utf8)
        let fieldToken = try shown.sessionToken()
        let token = presigned.token ?? fieldToken
        let claim = SignatureClaim(
            presigned.credential, presigned.signedNames, signature: presigned.signature, stamp: presigned.stamp,
            payloadHash: hoistedHash ?? (shown.hashes > 0 ? shown.hash : unsigned), token: token)
        let resolved = try check(claim, request, query, now: now)
        let found = S3Authentication(
            signer: resolved.key.signer, accessKeyID: claim.credential.shownID, isPresigned: true,
            payload: try payload(request, shown, (claim, resolved.key)), hoisted: query.hoisted)
        if request.isRepeated, claim.signedNames.names.count == 1 {
            let valid = (presigned.time - S3Verifier.maximumSkew)...(presigned.time + presigned.lifetime)
            keep(request, found, resolved, valid: valid)
        }
        return found
    }

    /// What is wrong with a credential's scope; nil if nothing is.
    func fault(
        _ credential: S3Credential, _ services: S3SignedRequest.Services
    ) -> (text: String, region: String?)? {
        let service = credential.service.span
        let isS3 = service.equals("s3")
        guard services.contains(.s3) && isS3 || services.contains(.sts) && service.equals("sts") else {
            return ("incorrect service. This endpoint belongs to \"s3\".", nil)
        }
        // Clients of STS sign for its global region.
        guard isS3, let region, !credential.region.elementsEqual(region.utf8) else { return nil }
        let shown = String(decoding: credential.region.prefix(64), as: UTF8.self)
        return ("the region '\(shown)' is wrong; expecting '\(region)'", region)
    }

    // MARK: Keys and signatures

    /// The signing key of a credential, and what must be known to keep it.
    struct ResolvedKey {
        var key: SigningKey
        fileprivate var generation: Int
        fileprivate var isKept: Bool
    }

    /// Finds the key of a credential, or opens its session token.
    /// - Throws: ``Problem``: `InvalidAccessKeyId`, `InvalidToken`, `ExpiredToken`.
    func resolve(_ credential: S3Credential, token: [UInt8]?, now: Int64) throws(Problem) -> ResolvedKey {
        let (kept, generation, keys, sessionKeys) = state.withLock { state in
            (state.signingKeys.find(credential), state.generation, state.keys, state.sessionKeys)
        }
        if let kept, isUsable(kept, token: token, now: now) {
            try checkSource(kept.signer)
            return ResolvedKey(key: kept, generation: generation, isKept: true)
        }
        let key: SigningKey
        if let token {
            guard let sessionKeys else { throw .invalidToken(cause: "there are no temporary credentials here") }
            let opened = try sessionKeys.open(token, accessKeyID: credential.id, now: now)
            key = SigningKey(
                key: SigningKey.derive(opened.secret, credential), signer: .session(opened.caller),
                session: (token, opened.expires))
            try checkSource(key.signer)
        } else {
            guard let found = keys.find(String(decoding: credential.id, as: UTF8.self)) else {
                throw .unknownAccessKey(credential.shownID)
            }
            key = SigningKey(key: SigningKey.derive(found.secret, credential), signer: .accessKey(found.principal))
        }
        return ResolvedKey(key: key, generation: generation, isKept: false)
    }

    private func isUsable(_ key: SigningKey, token: [UInt8]?, now: Int64) -> Bool {
        switch (key.session, token) {
        case (nil, nil): true
        case (let session?, let token?): areEqualInConstantTime(session.token, token) && now < session.expires
        default: false
        }
    }

    private func checkSource(_ signer: S3Authentication.Signer) throws(Problem) {
        if case .session(let caller) = signer, !isConfigured(caller.principal) {
            throw .invalidToken(
                cause: "the \(caller.principal.kind.rawValue) source of the session's caller is not configured any more"
            )
        }
    }

    /// Keeps a key whose signature was verified, unless the keys were replaced meanwhile.
    func keep(_ resolved: ResolvedKey, _ credential: S3Credential) {
        if resolved.isKept { return }
        state.withLock { state in
            if state.generation == resolved.generation { state.signingKeys.insert(resolved.key, credential) }
        }
    }

    /// Verifies a claim: the key, the token, the fields that must be signed, and the signature.
    private func check(
        _ claim: SignatureClaim, _ request: S3SignedRequest, _ query: S3Query, now: Int64
    ) throws(Problem) -> ResolvedKey {
        let resolved = try resolve(claim.credential, token: claim.token, now: now)
        if let names = claim.signedNames.missing(request.fields) { throw .notSigned(names) }
        let canonical = CanonicalS3Request(request, query, claim)
        let signature = claim.signature
        let wanted = signature.count == 64 ? Hexadecimal.decode(signature.span) : nil
        guard let wanted, matches(wanted, claim, canonical, request, resolved.key.key) else {
            throw mismatch(claim, request, query, canonical)
        }
        keep(resolved, claim.credential)
        return resolved
    }

    /// Compares the signature with that of the canonical path and then of the path as received, since clients differ in
    /// what they encode; behind a trusted proxy also with the host that it has received.
    private func matches(
        _ wanted: [UInt8], _ claim: SignatureClaim, _ canonical: CanonicalS3Request, _ request: S3SignedRequest,
        _ key: HMAC
    ) -> Bool {
        func isSigned(host: String?) -> Bool {
            let raw = request.target.path.span
            return isSigned(path: canonical.path.span, host)
                || (!raw.isEqual(canonical.path.span) && isSigned(path: raw, host))
        }
        func isSigned(path: Span<UInt8>, _ host: String?) -> Bool {
            let hash = canonical.hash(path: path, host: host)
            return areEqualInConstantTime(key.code(of: claim.stringToSign(hash).span.bytes), wanted)
        }
        if isSigned(host: nil) { return true }
        guard let forwarded = request.forwardedHost else { return false }
        if isSigned(host: forwarded) { return true }
        guard let port = request.forwardedPort, port != (request.isSecure ? "443" : "80"),
            !forwarded.utf8.reversed().prefix(6).contains(UInt8(ascii: ":"))
        else { return false }
        return isSigned(host: "\(forwarded):\(port)")
    }

    /// Whether a text has this signature, in hexadecimal.
    func isSigned(_ text: [UInt8], _ signature: [UInt8], _ resolved: ResolvedKey) -> Bool {
        guard signature.count == 64, let wanted = Hexadecimal.decode(signature.span) else { return false }
        return areEqualInConstantTime(resolved.key.key.code(of: text.span.bytes), wanted)
    }

    private func mismatch(
        _ claim: SignatureClaim, _ request: S3SignedRequest, _ query: S3Query, _ canonical: CanonicalS3Request
    ) -> Problem {
        let id = claim.credential.shownID
        let hash = canonical.hash(path: canonical.path.span)
        let members: [(name: StaticString, value: String)] = [
            ("AWSAccessKeyId", id),
            ("StringToSign", String(decoding: claim.stringToSign(hash), as: UTF8.self)),
            ("SignatureProvided", String(decoding: claim.signature.prefix(128), as: UTF8.self)),
            ("CanonicalRequest", CanonicalS3Request(request, query, claim, isRedacted: true).text),
        ]
        return .signatureMismatch(cause: "the signature with the key \(id) is another", members)
    }
}

extension SignatureClaim {
    /// The text whose HMAC is the signature.
    /// - Parameter hash: Of the canonical request.
    func stringToSign(_ hash: [UInt8]) -> [UInt8] {
        var text: [UInt8] = []
        text.reserveCapacity(256)
        text.append("AWS4-HMAC-SHA256\n")
        text += stamp
        text.append(0x0a)
        text += credential.scope
        text.append(0x0a)
        text.append(hexadecimal: hash.span)
        return text
    }
}

extension Span<UInt8> {
    fileprivate func isEqual(_ other: Span<UInt8>) -> Bool {
        guard count == other.count else { return false }
        for index in indices where self[index] != other[index] { return false }
        return true
    }
}
