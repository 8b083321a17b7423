import EventLoop
import Glibc
import HTTPClient
import OpenSSL
import SecurityRules
import Wire

/// Verifies what a request carries in `Authorization`: JSON Web Tokens of the configured issuers (RFC 8725), and static
/// tokens.
public final class Authenticator: Sendable {
    /// How far clocks may be apart: 60 s.
    static let skew: Int64 = 60

    /// Numbers for metrics.
    public let statistics = IdentityStatistics()
    public let issuers: [TokenIssuer]
    private let staticTokens: Lock<StaticTokenTable>
    private let acceptsUnsigned: Bool
    private let now: @Sendable () -> Int64
    private let fetchers: [KeyFetcher]
    private let times: RefreshTimes
    private let keepers = Lock<[KeyKeeper]>([])
    private let verified = VerifiedTokens()

    /// Fetches and reads nothing yet.
    /// - Parameters:
    ///   - acceptsUnsigned: The development mode: also takes tokens without a signature, and those of issuers that are
    ///     not configured, at their word.
    ///   - pool: Where files are read.
    ///   - now: Seconds since 1970.
    ///   - observer: Told of each request for keys.
    ///   - environment: Where the cluster's API server is.
    public convenience init(
        issuers: [TokenIssuer], staticTokens: [StaticToken], acceptsUnsigned: Bool,
        pool: BlockingPool, now: @escaping @Sendable () -> Int64 = systemSeconds,
        observer: (any UpstreamObserver)? = nil, environment: [String: String]
    ) {
        self.init(
            issuers: issuers, staticTokens: staticTokens, acceptsUnsigned: acceptsUnsigned,
            pool: pool, now: now, observer: observer, environment: environment,
            times: RefreshTimes())
    }

    init(
        issuers: [TokenIssuer], staticTokens: [StaticToken], acceptsUnsigned: Bool,
        pool: BlockingPool, now: @escaping @Sendable () -> Int64,
        observer: (any UpstreamObserver)?, environment: [String: String], times: RefreshTimes
    ) {
        self.issuers = issuers
        self.staticTokens = Lock(StaticTokenTable(staticTokens))
        self.acceptsUnsigned = acceptsUnsigned
        self.now = now
        self.times = times
        fetchers = issuers.map {
            KeyFetcher(issuer: $0, pool: pool, environment: environment, observer: observer)
        }
    }

    /// Puts other static tokens into effect: those that are gone are not valid any more.
    public func replace(_ tokens: [StaticToken]) {
        let table = StaticTokenTable(tokens)
        staticTokens.withLock { current in
            current.isReplaced.store(true, ordering: .relaxed)
            current = table
        }
    }

    /// Whether there is anything that a token could be verified by; otherwise nobody looks at `Authorization`.
    private var isConfigured: Bool {
        acceptsUnsigned || !issuers.isEmpty || staticTokens.withLock { !$0.tokens.isEmpty }
    }

    // MARK: Keys

    /// Begins to fetch keys, and keeps them fresh. Once.
    /// - Parameter loop: Where they are fetched.
    public func start(on loop: EventLoop) {
        let new = fetchers.map { KeyKeeper($0, times, on: loop, statistics) }
        keepers.withLock { $0 = new }
        for keeper in new { keeper.start() }
    }

    /// Ends what ``start(on:)`` began. The keys that are there stay in use.
    public func close() async {
        for keeper in keepers.withLock({ $0 }) { await keeper.close() }
    }

    /// The issuers without keys, in words: while there are any, the process is not ready.
    public var pending: [String] {
        let keepers = keepers.withLock { $0 }
        if keepers.isEmpty { return issuers.map { "\($0.name): keys are not fetched yet" } }
        return keepers.compactMap { keeper in
            let health = keeper.health
            guard health.isPending else { return nil }
            return "\(keeper.issuer.name): \(health.failure ?? "keys are not fetched yet")"
        }
    }

    /// The issuers whose keys could not be fetched again, in words; the old ones stay in use.
    public var failures: [String] {
        keepers.withLock { $0 }.compactMap { keeper in
            let health = keeper.health
            guard !health.isPending, let failure = health.failure else { return nil }
            return "\(keeper.issuer.name): \(failure)"
        }
    }

    // MARK: Requests

    /// A token that nobody has looked into yet.
    private struct Shown {
        let text: [UInt8]
        /// Two in a JWT (RFC 7515, section 7.1).
        let dots: Int

        /// nil where there is nothing, or what no token has.
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

    /// What a header tells at once.
    private enum First {
        case nobody
        case known(Principal)
        case unknown(Shown, Fingerprint)
        case refused(CredentialError)
    }

    /// Who has sent a request with these fields; nil where they have no `Authorization`, or nothing is configured that it
    /// could be verified by.
    ///
    /// It does not suspend for a token that was verified before. A caller on a loop may wait for up to five seconds where
    /// a token names a key that is not known.
    public func authenticate(_ fields: HeaderFields) async throws(CredentialError) -> Principal? {
        guard isConfigured else { return nil }
        let now = now()
        switch first(fields, now) {
        case .nobody: return nil
        case .known(let principal):
            statistics.known.add(1, ordering: .relaxed)
            return principal
        case .refused(let error):
            statistics.refuse(error.code)
            throw error
        case .unknown(let shown, let fingerprint):
            do throws(CredentialError) {
                let entry = try await verify(shown, now)
                verified.insert(entry, fingerprint)
                statistics.fresh.add(1, ordering: .relaxed)
                return entry.principal
            } catch {
                statistics.refuse(error.code)
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
                    return .refused(
                        CredentialError(.malformed, "there are two Authorization fields"))
                }
                found = first(field.value, now)
            }
            return found
        }
    }

    /// - Parameter value: `SCHEME TOKEN` (RFC 6750, section 2.1).
    private func first(_ value: UnsafeBufferPointer<UInt8>, _ now: Int64) -> First {
        let space = value.firstIndex(of: 0x20) ?? value.count
        let scheme = value[..<space]
        guard
            ["bearer", "firebase"].contains(where: { (known: StaticString) in
                scheme.count == known.utf8CodeUnitCount
                    && scheme.indices.allSatisfy {
                        ASCII.lowercased(scheme[$0]) == known.utf8Start[$0]
                    }
            })
        else {
            return .refused(
                CredentialError(.unsupportedScheme, "the scheme is neither Bearer nor Firebase"))
        }
        var token = value[space...]
        while token.first == 0x20 { token.removeFirst() }
        guard token.count <= WebToken.maximumBytes else {
            return .refused(CredentialError(.malformed, "it has more than 16 KiB"))
        }
        let bytes = UnsafeBufferPointer(rebasing: token)
        let fingerprint = verified.fingerprint(of: bytes.span.bytes)
        if let principal = verified.find(fingerprint, now: now) { return .known(principal) }
        guard let shown = Shown(bytes) else {
            return .refused(CredentialError(.malformed, "no token follows the scheme"))
        }
        return .unknown(shown, fingerprint)
    }

    // MARK: Verification

    private func verify(_ shown: Shown, _ now: Int64) async throws(CredentialError)
        -> VerifiedTokens.Entry
    {
        guard shown.dots == 2 else { return try staticToken(shown) }
        let token = try WebToken(shown.text)
        let keepers = keepers.withLock { $0 }
        let isUnsigned = token.header.algorithm == "none" && token.signature.isEmpty
        if acceptsUnsigned, isUnsigned || !isKnown(token.claims.issuer, keepers) {
            return try Judgement(token, now).developer()
        }
        guard let (keeper, known) = try find(token, keepers) else {
            let name = token.claims.issuer.map { "issuer '\(ASCII.plainWords($0))'" }
            throw CredentialError(
                .unknownIssuer, "\(name ?? "a token without an issuer") is not configured")
        }
        let key = try await verifySignature(token, shown.text, keeper, known.keys)
        return try Judgement(token, now).principal(keeper.issuer, key)
    }

    private func staticToken(_ shown: Shown) throws(CredentialError) -> VerifiedTokens.Entry {
        let table = staticTokens.withLock { $0 }
        guard let found = table.find(shown.text) else {
            throw shown.dots == 4
                ? CredentialError(.malformed, "it is encrypted (JWE)")
                : CredentialError(.unknownToken, "it is not one of the static tokens")
        }
        return VerifiedTokens.Entry(
            principal: found, until: .max, key: nil, bytes: 0, table: table)
    }

    private func isKnown(_ issuer: String?, _ keepers: [KeyKeeper]) -> Bool {
        guard let issuer else { return false }
        return keepers.contains {
            ($0.issuer.issuer ?? $0.known?.issuer).map { BytewiseString.areEqual($0, issuer) }
                ?? false
        }
    }

    /// Who may have issued a token: of several with one `iss`, the one that it is for.
    /// - Throws: `unavailable` where that can't be told yet, or its keys are not there.
    private func find(_ token: WebToken, _ keepers: [KeyKeeper]) throws(CredentialError) -> (
        KeyKeeper, KeyKeeper.Known
    )? {
        var chosen: KeyKeeper?
        var isUndecided: String?
        for keeper in keepers {
            guard let name = keeper.issuer.issuer ?? keeper.known?.issuer else {
                isUndecided = keeper.issuer.name
                continue
            }
            guard let issuer = token.claims.issuer, BytewiseString.areEqual(name, issuer) else {
                continue
            }
            if keeper.issuer.audiences.contains(where: token.claims.has(audience:)) {
                chosen = keeper
                break
            }
            chosen = chosen ?? keeper
        }
        guard let name = chosen?.issuer.name ?? isUndecided else { return nil }
        guard let chosen, let known = chosen.known else {
            throw CredentialError(.unavailable, "the keys of '\(name)' are not there yet")
        }
        return (chosen, known)
    }

    private func verifySignature(
        _ token: WebToken, _ text: [UInt8], _ keeper: KeyKeeper, _ keys: KeySet
    ) async throws(CredentialError) -> IssuerKey {
        guard let algorithm = SignatureAlgorithm(rawValue: token.header.algorithm) else {
            throw CredentialError(
                .badSignature, "its algorithm is none that '\(keeper.issuer.name)' may sign with")
        }
        let keyID = token.header.keyID
        func signer(_ keys: KeySet) -> IssuerKey? {
            let message = text.span.bytes.extracting(first: token.signedBytes)
            return keys.candidates(keyID, algorithm).first {
                $0.verifies(message, token.signature, algorithm)
            }
        }
        if let key = signer(keys) { return key }
        // A key of that name is there: then it is simply wrong. Otherwise its issuer may have a new one.
        let isNamed = keyID.map(keys.hasKey) ?? false
        if !isNamed, await keeper.refreshEarly(), let keys = keeper.known?.keys,
            let key = signer(keys)
        {
            return key
        }
        let name = keyID.map { "key '\(ASCII.plainWords($0))'" } ?? "the key"
        throw CredentialError(
            .badSignature,
            keyID != nil && !isNamed
                ? "'\(keeper.issuer.name)' has no \(name)"
                : "\(name) of '\(keeper.issuer.name)' has not signed it so")
    }
}
