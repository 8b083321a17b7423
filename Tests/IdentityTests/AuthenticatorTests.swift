import OpenSSL
import TestSupport
import Testing
import Wire

@testable import Identity

@Suite(.timeLimit(.minutes(2))) struct AuthenticatorTests {
    @Test func aPrincipalHasTheClaimsOfItsToken() async throws {
        let harness = await Harness(keys: keySet(TestKey.rsa.jwk())).ready()
        let token = token(
            .rsa,
            claims(("a", "9223372036854775808"), ("b", #"{"c": null, "d": true}"#)))
        let principal = try #require(try await harness.ask("Bearer " + token))
        #expect(principal.uid == "alice" && principal.certificate == nil)
        #expect(principal.claim("a") == "9223372036854775808")
        #expect(principal.claim("b", "d") == "true" && principal.claim("aud") == "sluice")
        #expect(principal.expires == noon + 600 && principal.source == "example")
        #expect(principal.group == "example")
    }

    @Test func theSchemeMatters() async throws {
        let harness = await Harness(keys: keySet(TestKey.rsa.jwk())).ready()
        let token = token(.rsa)
        for scheme in ["Bearer", "bearer", "BEARER", "Firebase", "firebase", "Bearer "] {
            #expect(try await harness.ask("\(scheme) \(token)")?.uid == "alice", "\(scheme)")
        }
        #expect(try await harness.ask() == nil)
        for wrong in ["Basic YTpi", "Bearer2 \(token)", token, "", "Digest", "Bear er"] {
            await #expect(throws: CredentialError.self) { try await harness.ask(wrong) }
        }
        #expect(harness.authenticator.statistics.rejected(.unsupportedScheme) == 6)
        for wrong in ["Bearer", "Bearer ", "Bearer a b", "Bearer \(token),x"] {
            await #expect(throws: CredentialError.self) { try await harness.ask(wrong) }
        }
        await #expect(throws: CredentialError.self) {
            try await harness.ask("Bearer \(token)", "Bearer \(token)")
        }
        #expect(harness.authenticator.statistics.rejected(.malformed) == 5)
    }

    @Test func aKnownTokenIsVerifiedOnceAndUntilItExpires() async throws {
        let harness = await Harness(keys: keySet(TestKey.rsa.jwk())).ready()
        let token = "Bearer " + token(.rsa)
        let first = try #require(try await harness.ask(token))
        let second = try #require(try await harness.ask(token))
        #expect(first === second)
        let statistics = harness.authenticator.statistics
        #expect(statistics.verified == 1 && statistics.cached == 1)
        harness.clock.advance(659)
        #expect(try await harness.ask(token) === first)
        harness.clock.advance(1)
        await #expect(throws: CredentialError(.expired, "it has expired")) {
            try await harness.ask(token)
        }
    }

    @Test func theCacheIsBoundedAndKeepsRecentlyUsedTokens() {
        let cache = VerifiedTokens()
        let principal = Principal(
            kind: .token, uid: "a", source: "", group: "", expires: .max)
        func name(_ number: Int) -> Fingerprint {
            cache.fingerprint(of: Array("token \(number)".utf8).span.bytes)
        }
        let entry = VerifiedTokens.Entry(principal: principal, until: .max, key: nil, bytes: 100)
        for number in 0..<50_000 {
            cache.insert(entry, name(number))
            #expect(cache.find(name(0), now: 0) != nil)
        }
        #expect(cache.count <= VerifiedTokens.limit && cache.count > VerifiedTokens.limit / 4)
        #expect(cache.find(name(1), now: 0) == nil && cache.find(name(49_999), now: 0) != nil)
    }

    /// 14,000 tokens of 14 KB: as many as fit in 32 MiB stay, in both tables of each shard.
    @Test func theCacheOfLargeTokensTakesLittleMemory() {
        let cache = VerifiedTokens()
        let principal = Principal(
            kind: .token, uid: "a", source: "", group: "", expires: .max)
        let entry = VerifiedTokens.Entry(
            principal: principal, until: .max, key: nil, bytes: 14_000)
        for number in 0..<14_000 {
            let name = cache.fingerprint(of: Array("token \(number)".utf8).span.bytes)
            cache.insert(entry, name)
            cache.insert(entry, name)
        }
        #expect(cache.count * 14_000 <= 32 << 20 && cache.bytes <= 32 << 20)
        #expect(cache.bytes == cache.count * (14_000 + VerifiedTokens.entryBytes))
        #expect(cache.bytes > 16 << 20)
    }

    @Test func theCacheIsBoundedInBytesToo() {
        let cache = VerifiedTokens()
        let principal = Principal(
            kind: .token, uid: "a", source: "", group: "", expires: .max)
        let entry = VerifiedTokens.Entry(
            principal: principal, until: .max, key: nil, bytes: 1 << 20)
        for number in 0..<1_000 {
            let name = cache.fingerprint(of: Array("token \(number)".utf8).span.bytes)
            cache.insert(entry, name)
            #expect(cache.find(name, now: 0) != nil)
        }
        #expect(cache.count << 20 <= VerifiedTokens.maximumBytes)
        #expect(cache.count << 20 >= VerifiedTokens.maximumBytes / 4)
    }

    @Test func staticTokensAreFoundByTheirHash() async throws {
        let (token, sha256) = StaticTokens.generate()
        #expect(token.hasPrefix("sluice_") && token.utf8.count == 50 && sha256.utf8.count == 64)
        #expect(StaticTokens.generate().token != token)
        let hash = stride(from: 0, to: 64, by: 2).map { place in
            UInt8(sha256.dropFirst(place).prefix(2), radix: 16)!
        }
        let other = StaticTokens.hash(Array("dev.token".utf8).span.bytes)
        let harness = Harness(
            [],
            staticTokens: [
                StaticToken(name: "dev", sha256: other, group: "people"),
                StaticToken(name: "backup", sha256: hash),
            ])
        for _ in 0..<2 {
            let principal = try #require(try await harness.ask("Bearer " + token))
            #expect(principal.kind == .staticToken && principal.uid == "backup")
            #expect(principal.group == "backup" && principal.expires == .max)
        }
        #expect(try await harness.ask("Bearer dev.token")?.group == "people")
        #expect(try await harness.rejection(token + "x") == .unknownToken)
        #expect(try await harness.rejection(sha256) == .unknownToken)
    }

    /// A static token may look like a JSON Web Token, or even be one.
    @Test func staticTokensMayHaveDots() async throws {
        let texts = ["a.b.c", "...", "a.b", "a.b.c.d.e", token(.rsa)]
        let harness = Harness(
            [],
            staticTokens: texts.enumerated().map { index, text in
                let hash = StaticTokens.hash(Array(text.utf8).span.bytes)
                return StaticToken(name: "t\(index)", sha256: hash)
            })
        for (index, text) in texts.enumerated() {
            #expect(try await harness.ask("Bearer " + text)?.uid == "t\(index)")
        }
        #expect(try await harness.rejection("a.b.d") == .malformed)
        #expect(try await harness.rejection("a.b.c.d.f") == .malformed)
        #expect(try await harness.rejection("a.c") == .unknownToken)
        #expect(try await harness.rejection(token(.p256)) == .unknownIssuer)
    }

    @Test func firebaseHasAdditionalRequirements() async throws {
        var issuer = TokenIssuer.firebase(name: "users", project: "demo")
        let directory = TemporaryDirectory()
        write(keySet(TestKey.rsa.jwk()), to: directory.path + "/keys")
        issuer.keys = .file(directory.path + "/keys")
        let harness = await Harness([issuer]).ready()
        func user(_ changes: (String, String?)...) -> String {
            var all: [(String, String?)] = [
                ("iss", #""https://securetoken.google.com/demo""#), ("aud", #""demo""#),
                ("auth_time", "\(noon - 100)"), ("user_id", #""u1""#), ("sub", #""u1""#),
            ]
            all.removeAll { old in changes.contains { $0.0 == old.0 } }
            all += changes
            var text = "{\"exp\": \(noon + 600), \"iat\": \(noon)"
            for (name, value) in all where value != nil { text += ", \"\(name)\": \(value!)" }
            return token(.rsa, text + "}")
        }
        #expect(try await harness.ask("Firebase " + user())?.uid == "u1")
        #expect(try await harness.ask("Firebase " + user(("user_id", nil)))?.uid == "u1")
        #expect(try await harness.rejection(user(("auth_time", nil))) == .malformed)
        #expect(try await harness.rejection(user(("auth_time", "\(noon + 61)"))) == .notYetValid)
        #expect(try await harness.rejection(user(("sub", "\"\""))) == .malformed)
        #expect(try await harness.rejection(user(("aud", "\"demo2\""))) == .wrongAudience)
    }

    @Test func anotherClaimCanBeTheUid() async throws {
        let harness = await Harness(keys: keySet(TestKey.rsa.jwk())) { $0.uidClaim = "email" }
            .ready()
        let email = ("email", Optional("\"a@example.com\""))
        let verified = claims(email, ("email_verified", "true"))
        #expect(try await harness.ask("Bearer " + token(.rsa, verified))?.uid == "a@example.com")
        // Fails closed: only the issuer's word that it has verified the address counts.
        for word in [nil, "false", "null", "1", "\"true\"", "[true]", "{}"] {
            let unverified = claims(email, ("email_verified", word))
            #expect(try await harness.rejection(token(.rsa, unverified)) == .malformed)
        }
        #expect(try await harness.rejection(token(.rsa)) == .malformed)
        let phones = await Harness(keys: keySet(TestKey.rsa.jwk())) { $0.uidClaim = "phone_number" }
            .ready()
        let phone = ("phone_number", Optional("\"+1 555\""))
        #expect(try await phones.rejection(token(.rsa, claims(phone))) == .malformed)
        let proven = token(.rsa, claims(phone, ("phone_number_verified", "true")))
        #expect(try await phones.ask("Bearer " + proven)?.uid == "+1 555")
    }

    /// So that no user of one issuer can have the uid of another's, or of a static token.
    @Test func aPrefixIsAddedToTheUid() async throws {
        let harness = await Harness(keys: keySet(TestKey.rsa.jwk())) { $0.uidPrefix = "sso:" }
            .ready()
        let principal = try #require(try await harness.ask("Bearer " + token(.rsa)))
        #expect(principal.uid == "sso:alice" && principal.claim("sub") == "alice")
        #expect(principal.claim("iss") == issuerName)
        let longest = String(repeating: "a", count: 2044)
        let long = token(.rsa, claims(("sub", "\"\(longest)\"")))
        #expect(try await harness.ask("Bearer " + long)?.uid == "sso:" + longest)
        let longer = token(.rsa, claims(("sub", "\"\(longest)a\"")))
        #expect(try await harness.rejection(longer) == .malformed)
        #expect(try await harness.rejection(token(.rsa, claims(("sub", "\"\"")))) == .malformed)
    }

    @Test func theAudienceSelectsTheIssuer() async throws {
        let directory = TemporaryDirectory()
        write(keySet(TestKey.rsa.jwk()), to: directory.path + "/keys")
        let harness = await Harness(
            ["first", "second"].map {
                TokenIssuer(
                    name: $0, keys: .file(directory.path + "/keys"), issuer: issuerName,
                    audiences: [$0])
            }
        ).ready()
        for name in ["first", "second"] {
            let token = token(.rsa, claims(("aud", "\"\(name)\"")))
            #expect(try await harness.ask("Bearer " + token)?.group == name)
        }
        #expect(try await harness.rejection(token(.rsa)) == .wrongAudience)
    }

    @Test func theDevelopmentModeAcceptsUnsignedTokens() async throws {
        let directory = TemporaryDirectory()
        write(keySet(TestKey.rsa.jwk()), to: directory.path + "/keys")
        let issuer = TokenIssuer(
            name: "example", keys: .file(directory.path + "/keys"), issuer: issuerName,
            audiences: [audience])
        let harness = await Harness([issuer], acceptsUnsigned: true).ready()
        let none = unsigned(#"{"alg": "none"}"#, #"{"sub": "s", "user_id": "bob", "admin": true}"#)
        let principal = try #require(try await harness.ask("Bearer \(none)."))
        #expect(principal.kind == .development && principal.uid == "bob")
        #expect(principal.claim("admin") == "true" && principal.expires == .max)
        let foreign = token(.otherRSA, claims(("iss", #""https://elsewhere""#)))
        #expect(try await harness.ask("Bearer " + foreign)?.kind == .development)
        #expect(try await harness.ask("Bearer " + token(.rsa))?.kind == .token)
        #expect(try await harness.rejection(token(.otherRSA)) == .badSignature)
        let old = unsigned(#"{"alg": "none"}"#, #"{"sub": "s", "exp": \#(noon - 60)}"#)
        #expect(try await harness.rejection(old + ".") == .expired)
        #expect(
            try await harness.rejection(unsigned(#"{"alg": "none"}"#, "{}") + ".") == .malformed)
    }

    @Test func anIssuerThatCannotBeUsedIsReported() {
        func fault(_ keys: TokenIssuer.Keys, _ issuer: String? = "https://a.example") -> String? {
            TokenIssuer(name: "a", keys: keys, issuer: issuer, audiences: ["a"]).fault
        }
        for url in ["https://a.example/keys", "http://127.0.0.1:80/keys", "http://[::1]/keys"] {
            #expect(fault(.url(url)) == nil, "\(url)")
        }
        for url in [
            "http://a.example/keys", "http://127.a.example/keys", "ftp://a/", "keys",
            "https://a@b/",
            "http://localhost.example/keys", "https://a.example/#x",
        ] {
            #expect(fault(.url(url)) != nil, "\(url)")
        }
        #expect(fault(.discovery, "http://localhost:8080/realm") == nil)
        #expect(fault(.discovery, "http://a.example") != nil && fault(.discovery, nil) != nil)
        #expect(fault(.cluster, nil) == nil && fault(.file("/x"), nil) != nil)
    }

    /// Ed25519's points of an order that divides 8, some with the sign of x, and one written with y over the prime.
    static let smallOrder =
        [
            "0000000000000000000000000000000000000000000000000000000000000000",
            "0000000000000000000000000000000000000000000000000000000000000080",
            "0100000000000000000000000000000000000000000000000000000000000000",
            "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
            "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
            "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
            "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
            "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        ].map { Base64.encodeForURL(Hexadecimal.decode($0.utf8)!) }

    @Test func invalidKeysAreIgnored() throws {
        let unusable =
            [
                TestKey.weakRSA.jwk(), TestKey.rsa.jwk(#""use": "enc""#),
                TestKey.rsa.jwk(#""alg": "HS256""#), TestKey.rsa.jwk(#""alg": "ES256""#),
                TestKey.rsa.jwk(#""key_ops": []"#), #"{"kty": "oct", "k": "AAAA"}"#, "1", "{}",
                VectorTests.p256.replacing("x_FEz", with: "y_FEz"),
                VectorTests.p256.replacing("P-256", with: "P-384"),
                #"{"kty": "OKP", "crv": "Ed25519", "x": "AAAA"}"#,
                #"{"kty": "RSA", "n": "AQAB", "e": "AQAB"}"#,
                VectorTests.rsa.replacing("AQAB", with: "AQ"),
                VectorTests.rsa.replacing("AQAB", with: "AQAA"),
            ] + Self.smallOrder.map { #"{"kty": "OKP", "crv": "Ed25519", "x": "\#($0)"}"# }
        for key in unusable {
            #expect(throws: KeyFailure.self, "\(key)") { try KeySet(Array(keySet(key).utf8)) }
        }
        let set = try KeySet(
            Array(keySet(TestKey.p384.jwk(), unusable.joined(separator: ",")).utf8))
        #expect(set.keys.count == 1)
        let many = (0..<150).map { TestKey.p256.jwk(keyID: "\($0)") }.joined(separator: ",")
        #expect(try KeySet(Array(keySet(many).utf8)).keys.count == KeySet.maximumKeys)
    }
}
