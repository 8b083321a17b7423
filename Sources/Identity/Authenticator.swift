import Glibc
import HTTPClient
import OpenSSL
import System
import Wire

/// Verifies the `Authorization` of a request: JSON Web Tokens of the configured issuers (RFC 8725), and static tokens.
public final class Authenticator: Sendable {
    /// The tolerated difference of clocks: 60 s.
    static let skew: Int64 = 60

    /// Counters for metrics.
    public let statistics = IdentityStatistics()
    public let issuers: [TokenIssuer]
    private let staticTokens: Lock<StaticTokenTable>
    /// Whether this is the development mode, which accepts unsigned tokens.
    public let acceptsUnsigned: Bool
    private let now: @Sendable () -> Int64
    private let clients: [JWKSClient]
    private let times: RefreshTimes
    private let caches = Lock<[JWKSCache]>([])
    private let verified = VerifiedTokens()

    /// Creates an authenticator. Nothing is fetched or read yet.
    /// - Parameters:
    ///   - acceptsUnsigned: The development mode: also accepts unsigned tokens, and tokens of unconfigured issuers.
    ///   - pool: Reads files.
    ///   - now: Seconds since 1970.
    ///   - observer: Receives the record of each request for keys.
    ///   - environment: The variables with the address of the cluster's API server.
    public convenience init(
        issuers: [TokenIssuer], staticTokens: [StaticToken], acceptsUnsigned: Bool,
        pool: BlockingPool, now: @escaping @Sendable () -> Int64 = SystemClock.seconds,
        observer: (any UpstreamObserver)? = nil, environment: [BytewiseString: String]
    ) {
        self.init(
            issuers: issuers, staticTokens: staticTokens, acceptsUnsigned: acceptsUnsigned, pool: pool, now: now,
            observer: observer, environment: environment, times: RefreshTimes())
    }

    init(
        issuers: [TokenIssuer], staticTokens: [StaticToken], acceptsUnsigned: Bool,
        pool: BlockingPool, now: @escaping @Sendable () -> Int64,
        observer: (any UpstreamObserver)?, environment: [BytewiseString: String],
        times: RefreshTimes
    ) {
        self.issuers = issuers
        self.staticTokens = Lock(StaticTokenTable(staticTokens))
        self.acceptsUnsigned = acceptsUnsigned
        self.now = now
        self.times = times
        clients = issuers.map {
            JWKSClient(issuer: $0, pool: pool, environment: environment, observer: observer)
        }
    }

    /// Replaces the static tokens. Removed tokens become invalid.
    public func replace(_ tokens: [StaticToken]) {
        let table = StaticTokenTable(tokens)
        staticTokens.withLock { current in
            current.isReplaced.store(true, ordering: .relaxed)
            current = table
        }
    }

    /// Whether any issuer or static token is configured. Otherwise `Authorization` is ignored.
    private var isConfigured: Bool {
        acceptsUnsigned || !issuers.isEmpty || staticTokens.withLock { !$0.tokens.isEmpty }
    }

    /// Whether the principal's static token or issuer is still configured. The connection's certificate and access keys
    /// are not checked here.
    public func isConfigured(_ principal: Principal) -> Bool {
        switch principal.kind {
        case .token: issuers.contains { BytewiseString.areEqual($0.name, principal.source) }
        case .staticToken:
            staticTokens.withLock { table in
                table.tokens.contains { BytewiseString.areEqual($0.token.name, principal.source) }
            }
        case .development: acceptsUnsigned
        case .certificate, .link, .accessKey: true
        }
    }

    // MARK: Keys

    /// Begins to fetch and refresh keys on `loop`. Called once.
    /// - Parameter warn: Receives a sentence that begins with an issuer's name when a new key set is empty or too long,
    ///   and when fetching begins to fail.
    public func start(on loop: EventLoop, warn: @escaping @Sendable (String) -> Void = { _ in }) {
        let new = clients.map { JWKSCache($0, times, on: loop, statistics, warn: warn) }
        caches.withLock { $0 = new }
        for cache in new { cache.start() }
    }

    /// Stops refreshing. The current keys stay in use.
    public func close() async {
        for cache in caches.withLock({ $0 }) { await cache.close() }
    }

    /// A sentence for each issuer without keys. The process is not ready while there are any.
    public var pending: [String] {
        let caches = caches.withLock { $0 }
        if caches.isEmpty { return issuers.map { "\($0.name): keys are not fetched yet" } }
        return caches.compactMap { cache in
            let health = cache.health
            guard health.isPending else { return nil }
            return "\(cache.issuer.name): \(health.failure ?? "keys are not fetched yet")"
        }
    }

    /// A sentence for each issuer whose keys could not be refreshed. The old keys stay in use.
    public var failures: [String] {
        caches.withLock { $0 }.compactMap { cache in
            let health = cache.health
            guard !health.isPending, let failure = health.failure else { return nil }
            return "\(cache.issuer.name): \(failure)"
        }
    }

    /// Warnings about the issuers' key sets that are empty or too long.
    public var warnings: [String] {
        caches.withLock { $0 }.compactMap { cache in
            cache.known?.keys.warning.map { "\(cache.issuer.name): \($0)" }
        }
    }

    /// The number of keys in use for each issuer; nil before the first fetch.
    public var keyCounts: [(issuer: String, keys: Int?)] {
        caches.withLock { $0 }.map { ($0.issuer.name, $0.known?.keys.keys.count) }
    }

    // MARK: Requests

    private struct Shown {
        let text: [UInt8]
        /// Two in a JWT (RFC 7515, section 7.1).
        let dots: Int

        /// nil if the text is empty, or has a character that no token has.
        init?(_ text: UnsafeBufferPointer<UInt8>) {
            var dots = 0
            for byte in text {
                guard byte > 0x20, byte < 0x7f, byte != UInt8(ascii: ",") else { return nil }
                if byte == UInt8(ascii: ".") { dots += 1 }
            }
            if text.isEmpty { return nil }
            self.text = Array(text)
            self.dots = dots
        }
    }

    private enum First {
        case nobody
        case known(Principal)
        case unknown(Shown, Fingerprint)
        case rejected(CredentialError)
    }

    /// The caller of a request; nil without `Authorization`, or if no issuer and no static token is configured. Does
    /// not suspend for a cached token. Takes up to five seconds if no known key matches the signature.
    public func authenticate(_ fields: HeaderFields) async throws(CredentialError) -> Principal? {
        guard isConfigured else { return nil }
        let now = now()
        switch first(fields, now) {
        case .nobody: return nil
        case .known(let principal):
            statistics.known.add(1, ordering: .relaxed)
            return principal
        case .rejected(let error):
            statistics.reject(error.code)
            throw error
        case .unknown(let shown, let fingerprint):
            do throws(CredentialError) {
                let entry = try await verify(shown, now)
                verified.insert(entry, fingerprint)
                statistics.fresh.add(1, ordering: .relaxed)
                return entry.principal
            } catch {
                statistics.reject(error.code)
                throw error
            }
        }
    }

    private func first(_ fields: HeaderFields, _ now: Int64) -> First {
        let name: StaticString = "authorization"
        return fields.read { fields in
            var found: First = .nobody
            while let field = fields.next() {
                guard field.name.count == name.utf8CodeUnitCount,
                    memcmp(field.name.baseAddress!, name.utf8Start, field.name.count) == 0
                else { continue }
                guard case .nobody = found else {
                    return .rejected(CredentialError(.malformed, "there are two Authorization fields"))
                }
                found = first(field.value, now)
            }
            return found
        }
    }

    /// - Parameter value: `SCHEME TOKEN` (RFC 6750, section 2.1).
    private func first(_ value: UnsafeBufferPointer<UInt8>, _ now: Int64) -> First {
        let space = value.firstIndex(of: 0x20) ?? value.count
        let scheme = value.span.extracting(0..<space)
        guard
            ASCII.isEqual(scheme, ignoringCase: "bearer")
                || ASCII.isEqual(scheme, ignoringCase: "firebase")
        else {
            return .rejected(
                CredentialError(.unsupportedScheme, "the scheme is neither Bearer nor Firebase"))
        }
        var token = value[space...]
        while token.first == 0x20 { token.removeFirst() }
        guard token.count <= JSONWebToken.maximumBytes else {
            return .rejected(CredentialError(.malformed, "it has more than 16 KiB"))
        }
        let bytes = UnsafeBufferPointer(rebasing: token)
        let fingerprint = verified.fingerprint(of: bytes.span.bytes)
        if let principal = verified.find(fingerprint, now: now) { return .known(principal) }
        guard let shown = Shown(bytes) else {
            return .rejected(CredentialError(.malformed, "no token follows the scheme"))
        }
        return .unknown(shown, fingerprint)
    }

    // MARK: Verification

    private func verify(_ shown: Shown, _ now: Int64) async throws(CredentialError)
        -> VerifiedTokens.Entry
    {
        if let entry = staticToken(shown) { return entry }
        guard shown.dots == 2 else {
            throw shown.dots == 4
                ? CredentialError(.malformed, "it is encrypted (JWE)")
                : CredentialError(.unknownToken, "it is not one of the static tokens")
        }
        let token = try JSONWebToken(shown.text)
        let caches = caches.withLock { $0 }
        let isUnsigned = token.header.algorithm == "none" && token.signature.isEmpty
        if acceptsUnsigned, isUnsigned || !isKnown(token.claims.issuer, caches) {
            return try ClaimsValidator(token, now).developer()
        }
        guard let (cache, known) = try find(token, caches) else {
            let name = token.claims.issuer.map { "issuer '\(ASCII.plainWords($0))'" }
            throw CredentialError(.unknownIssuer, "\(name ?? "a token without an issuer") is not configured")
        }
        let key = try await verifySignature(token, shown.text, cache, known.keys)
        return try ClaimsValidator(token, now).principal(cache.issuer, key)
    }

    /// Looks up any token, even one with two dots: an operator may have chosen it.
    private func staticToken(_ shown: Shown) -> VerifiedTokens.Entry? {
        let table = staticTokens.withLock { $0 }
        guard !table.tokens.isEmpty, let found = table.find(shown.text) else { return nil }
        return VerifiedTokens.Entry(
            principal: found, until: .max, key: nil, bytes: 0, table: table)
    }

    private func isKnown(_ issuer: String?, _ caches: [JWKSCache]) -> Bool {
        guard let issuer else { return false }
        return caches.contains {
            ($0.issuer.issuer ?? $0.known?.issuer).map { BytewiseString.areEqual($0, issuer) } ?? false
        }
    }

    /// The issuer of a token. If several have this `iss`, the audience decides.
    /// - Throws: `unavailable` if the issuer is not known yet, or its keys have not been fetched.
    private func find(_ token: JSONWebToken, _ caches: [JWKSCache]) throws(CredentialError) -> (
        JWKSCache, JWKSCache.Known
    )? {
        var chosen: JWKSCache?
        var isUndecided: String?
        for cache in caches {
            guard let name = cache.issuer.issuer ?? cache.known?.issuer else {
                isUndecided = cache.issuer.name
                continue
            }
            guard let issuer = token.claims.issuer, BytewiseString.areEqual(name, issuer) else {
                continue
            }
            if cache.issuer.audiences.contains(where: token.claims.has(audience:)) {
                chosen = cache
                break
            }
            chosen = chosen ?? cache
        }
        guard let name = chosen?.issuer.name ?? isUndecided else { return nil }
        guard let chosen, let known = chosen.known else {
            throw CredentialError(.unavailable, "the keys of '\(name)' are not there yet")
        }
        return (chosen, known)
    }

    private func verifySignature(
        _ token: JSONWebToken, _ text: [UInt8], _ cache: JWKSCache, _ keys: KeySet
    ) async throws(CredentialError) -> IssuerKey {
        guard let algorithm = SignatureAlgorithm(rawValue: token.header.algorithm) else {
            throw CredentialError(.badSignature, "its algorithm is none that '\(cache.issuer.name)' may sign with")
        }
        let keyID = token.header.keyID
        func signer(_ keys: KeySet) -> IssuerKey? {
            let message = text.span.bytes.extracting(first: token.signedBytes)
            return keys.candidates(keyID, algorithm).first {
                $0.verifies(message, token.signature, algorithm)
            }
        }
        if let key = signer(keys) { return key }
        // The issuer may have a new key, even with a known name.
        var keys = keys
        if await cache.refreshEarly() {
            keys = cache.known?.keys ?? keys
            if let key = signer(keys) { return key }
        }
        let isNamed = keyID.map(keys.hasKey) ?? false
        let name = keyID.map { "key '\(ASCII.plainWords($0))'" } ?? "the key"
        throw CredentialError(
            .badSignature,
            keyID != nil && !isNamed
                ? "'\(cache.issuer.name)' has no \(name)" : "\(name) of '\(cache.issuer.name)' has not signed it so")
    }
}
