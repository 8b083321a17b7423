import Glibc
import OpenSSL
import TestSupport
import Testing
import Wire

@testable import Identity

/// Tokens that nobody should believe, each with its code.
@Suite(.timeLimit(.minutes(2))) struct ForgedTokenTests {
    struct Forgery: Sendable, CustomTestStringConvertible {
        let name: String
        let code: CredentialError.Code
        let make: @Sendable () -> String
        var testDescription: String { name }

        init(_ name: String, _ code: CredentialError.Code, _ make: @escaping @Sendable () -> String) {
            self.name = name
            self.code = code
            self.make = make
        }
    }

    /// What all forgeries are shown to: two issuers, whose keys have the same names where it says so.
    private static func harness() async -> Harness {
        let path = "/tmp/sluice-keys-other-\(getpid())-\(UInt64.random(in: 0 ... .max)).json"
        write(keySet(TestKey.otherRSA.jwk(keyID: "other's")), to: path)
        let own = "/tmp/sluice-keys-own-\(getpid())-\(UInt64.random(in: 0 ... .max)).json"
        write(
            keySet(
                TestKey.rsa.jwk(#""alg": "RS256""#), TestKey.p256.jwk(), TestKey.p521.jwk(),
                TestKey.ed25519.jwk(#""use": "enc""#), TestKey.weakRSA.jwk(),
                TestKey.p384.jwk(#""key_ops": ["sign"]"#)), to: own)
        let harness = Harness([
            TokenIssuer(
                name: "example", keys: .file(own), issuer: issuerName, audiences: [audience]),
            TokenIssuer(
                name: "other", keys: .file(path), issuer: "https://other.example",
                audiences: [audience]),
        ])
        await eventually { harness.authenticator.pending.isEmpty }
        unlink(path)
        unlink(own)
        return harness
    }

    private static func mac(_ header: String, key: [UInt8]) -> String {
        let message = unsigned(header, claims())
        let tag = HMAC.sha256(key: key, Array(message.utf8).span.bytes)
        return message + "." + Base64.encodeForURL(tag)
    }

    private static let rsa = TestKey.rsa

    private static func with(_ more: String) -> String {
        rsa.token(header: header(rsa, more), claims: claims())
    }

    private static func named(_ kid: String) -> String {
        rsa.token(header: #"{"alg": "RS256", "kid": "\#(kid)"}"#, claims: claims())
    }

    static let algorithms =
        ["none", "None", "NONE", "nOnE", "none ", "", "HS256", "hs256", "rs256", "RS1", "ES256K"]
        .map { name in
            Forgery("alg \(name)", .badSignature) {
                unsigned(#"{"alg": "\#(name)", "kid": "rsa"}"#, claims()) + "."
            }
        } + [
            Forgery("alg none with a signature", .badSignature) {
                rsa.token(header: header(rsa, algorithm: "none"), claims: claims())
            },
            Forgery("no alg", .malformed) {
                rsa.token(header: #"{"kid": "rsa"}"#, claims: claims())
            },
            Forgery("alg a number", .malformed) {
                rsa.token(header: #"{"alg": 256, "kid": "rsa"}"#, claims: claims())
            },
            Forgery("another algorithm than the key's", .badSignature) {
                token(rsa, algorithm: "RS512")
            },
            Forgery("PSS with a key for PKCS #1", .badSignature) { token(rsa, algorithm: "PS256") },
            Forgery("another algorithm in the header than in the signature", .badSignature) {
                rsa.token(header: header(rsa), claims: claims(), algorithm: "RS512")
            },
            Forgery("the algorithm of another curve", .badSignature) {
                TestKey.p256.token(
                    header: header(.p256, algorithm: "ES512"), claims: claims())
            },
            Forgery("RSA's name, ECDSA's algorithm", .badSignature) {
                TestKey.p256.token(
                    header: #"{"alg": "ES256", "kid": "rsa"}"#, claims: claims())
            },
            Forgery("a MAC with the public key in PEM", .badSignature) {
                mac(#"{"alg": "HS256", "kid": "rsa"}"#, key: rsa.publicBytes)
            },
            Forgery("a MAC with the public key in PEM, as RS256", .badSignature) {
                mac(header(rsa), key: rsa.publicBytes)
            },
            Forgery("a MAC with the modulus", .badSignature) {
                let n = try! JSONReader.parse(Array(rsa.jwk().utf8))["n"]!.text!
                return mac(
                    #"{"alg": "HS256", "kid": "rsa"}"#,
                    key: Base64.decodeForURL(Array(n.utf8)[...])!)
            },
        ]

    static let keys =
        [
            "../../../../dev/null", "/dev/null", "rsa' OR '1'='1", "rsa; DROP TABLE keys",
            "other's",
            "", "RSA", "rsa\\u0000", "http://127.0.0.1:1/keys", "*",
        ].map { name in Forgery("kid \(name)", .badSignature) { named(name) } } + [
            Forgery("the key of another issuer, by its name", .badSignature) {
                TestKey.otherRSA.token(
                    header: #"{"alg": "RS256", "kid": "other's"}"#, claims: claims())
            },
            Forgery("the key of another issuer, by ours", .badSignature) {
                token(.otherRSA)
            },
            Forgery("our key for another issuer", .badSignature) {
                rsa.token(
                    header: #"{"alg": "RS256", "kid": "other's"}"#,
                    claims: claims(("iss", #""https://other.example""#)))
            },
            Forgery("no kid, and not the one key that fits", .badSignature) {
                TestKey.otherRSA.token(header: #"{"alg": "RS256"}"#, claims: claims())
            },
            Forgery("kid a number", .malformed) {
                rsa.token(header: #"{"alg": "RS256", "kid": 1}"#, claims: claims())
            },
            Forgery("a key of 1024 bits", .badSignature) { token(.weakRSA) },
            Forgery("a key to encrypt with", .badSignature) { token(.ed25519) },
            Forgery("a key that does not verify", .badSignature) { token(.p384) },
        ]
        + ["jku", "x5u"].map { member in
            Forgery(member, .badSignature) {
                TestKey.otherRSA.token(
                    header: header(.otherRSA, #", "\#(member)": "http://127.0.0.1:1/keys""#),
                    claims: claims())
            }
        } + [
            Forgery("jwk", .badSignature) {
                TestKey.otherRSA.token(
                    header: header(.otherRSA, #", "jwk": \#(TestKey.otherRSA.jwk())"#),
                    claims: claims())
            },
            Forgery("x5c", .badSignature) {
                let key = Base64.encode(TestKey.otherRSA.publicBytes)
                return TestKey.otherRSA.token(
                    header: header(.otherRSA, #", "x5c": ["\#(key)"]"#), claims: claims())
            },
            Forgery("crit", .malformed) { with(#", "crit": ["exp"], "exp": 1"#) },
            Forgery("an empty crit", .malformed) { with(#", "crit": []"#) },
            Forgery("another typ", .malformed) { with(#", "typ": "secevent+jwt""#) },
        ]

    static let signatures = [
        Forgery("ECDSA of zeros", .badSignature) {
            unsigned(header(.p256), claims()) + "."
                + Base64.encodeForURL([UInt8](repeating: 0, count: 64))
        },
        Forgery("ECDSA of the curve's order", .badSignature) {
            let order: [UInt8] =
                [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0] + [UInt8](repeating: 0xff, count: 8) + [
                    0xbc, 0xe6, 0xfa, 0xad, 0xa7, 0x17, 0x9e, 0x84, 0xf3, 0xb9, 0xca, 0xc2, 0xfc,
                    0x63, 0x25, 0x51,
                ]
            return unsigned(header(.p256), claims()) + "." + Base64.encodeForURL(order + order)
        },
        Forgery("ECDSA in DER", .badSignature) {
            let message = unsigned(header(.p256), claims())
            return message + "."
                + Base64.encodeForURL(TestKey.p256.sign(Array(message.utf8), isRaw: false))
        },
        Forgery("a byte more", .badSignature) {
            let message = unsigned(header(rsa), claims())
            return message + "." + Base64.encodeForURL(rsa.sign(Array(message.utf8)) + [0])
        },
        Forgery("a byte less", .badSignature) {
            let message = unsigned(header(rsa), claims())
            return message + "." + Base64.encodeForURL(rsa.sign(Array(message.utf8)).dropLast())
        },
        Forgery("no signature", .badSignature) { unsigned(header(rsa), claims()) + "." },
        Forgery("a signature of other claims", .badSignature) {
            let parts = token(rsa).split(separator: ".")
            let others = unsigned(header(rsa), claims(("sub", #""root""#))).split(separator: ".")
            return "\(parts[0]).\(others[1]).\(parts[2])"
        },
    ]

    static let structures = [
        Forgery("16 KiB and a byte", .malformed) {
            String(repeating: "a", count: JSONWebToken.maximumBytes + 1)
        },
        Forgery("a token of more than 16 KiB", .malformed) {
            token(rsa, claims(("x", "\"\(String(repeating: "a", count: 16 * 1024))\"")))
        },
        Forgery("five parts", .malformed) { "e30.e30.e30.e30.e30" },
        Forgery("two parts", .unknownToken) { "e30.e30" },
        Forgery("one part", .unknownToken) { "sluice_abc" },
        Forgery("empty parts", .malformed) { ".." },
        Forgery("padding", .malformed) { "e30=.e30=.AA==" },
        Forgery("the other alphabet", .malformed) { token(rsa) + "+/" },
        Forgery("stray bits", .malformed) { "e31." + token(rsa).split(separator: ".")[1] + ".AA" },
        Forgery("stray bits in the signature", .malformed) {
            // 256 bytes leave four bits of the last character over.
            let text = token(rsa)
            let last = "AQgw".contains(text.last!) ? text.unicodeScalars.last!.value + 1 : 0x42
            return text.dropLast() + String(Unicode.Scalar(last)!)
        },
        Forgery("a header that is no JSON", .malformed) {
            rsa.token(header: "alg=RS256", claims: claims())
        },
        Forgery("a header that is an array", .malformed) {
            rsa.token(header: "[]", claims: claims())
        },
        Forgery("claims that are no object", .malformed) {
            rsa.token(header: header(rsa), claims: "\"alice\"")
        },
        Forgery("claims cut off", .malformed) {
            rsa.token(header: header(rsa), claims: String(claims().dropLast()))
        },
        Forgery("claims that are not UTF-8", .malformed) {
            let message =
                Base64.encodeForURL(Array(header(rsa).utf8)) + "."
                + Base64.encodeForURL(Array(#"{"iss": ""#.utf8) + [0xc0, 0x80, 0x22, 0x7d])
            return message + "." + Base64.encodeForURL(rsa.sign(Array(message.utf8)))
        },
        Forgery("a byte order mark", .malformed) {
            rsa.token(header: header(rsa), claims: "\u{feff}" + claims())
        },
        Forgery("a claim twice", .malformed) {
            token(rsa, String(claims().dropLast()) + #", "sub": "root"}"#)
        },
        Forgery("a claim twice, once escaped", .malformed) {
            token(rsa, String(claims().dropLast()) + #", "s\u0075b": "root"}"#)
        },
        Forgery("a claim twice, within another", .malformed) {
            token(rsa, claims(("x", #"[{"a": 1, "b": [], "\u0061": 2}]"#)))
        },
        Forgery("a claim twice among many", .malformed) {
            let many = (0..<40).map { #""c\#($0)": \#($0)"# }.joined(separator: ", ")
            return token(rsa, claims(("x", #"{\#(many), "c\u0035": 1}"#)))
        },
        Forgery("alg twice", .malformed) { with(#", "alg": "none""#) },
        Forgery("a claim in too many arrays", .malformed) {
            token(rsa, claims(("x", "[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]")))
        },
        Forgery("arrays without end", .malformed) {
            token(rsa, claims(("x", String(repeating: "[", count: 9000))))
        },
    ]

    static let contents = [
        Forgery("another issuer", .unknownIssuer) {
            token(rsa, claims(("iss", #""https://evil.example""#)))
        },
        Forgery("an issuer with a slash", .unknownIssuer) {
            token(rsa, claims(("iss", #""\#(issuerName)/""#)))
        },
        Forgery("no issuer", .unknownIssuer) { token(rsa, claims(("iss", nil))) },
        Forgery("the issuer in an array", .malformed) {
            token(rsa, claims(("iss", #"["\#(issuerName)"]"#)))
        },
        Forgery("another audience", .wrongAudience) {
            token(rsa, claims(("aud", #"["a", "sluice2"]"#)))
        },
        Forgery("no audience", .wrongAudience) { token(rsa, claims(("aud", nil))) },
        Forgery("an audience that is a number", .malformed) { token(rsa, claims(("aud", "1"))) },
        Forgery("expired", .expired) { token(rsa, claims(("exp", "\(noon - 60)"))) },
        Forgery("no exp", .malformed) { token(rsa, claims(("exp", nil))) },
        Forgery("exp a string", .malformed) { token(rsa, claims(("exp", #""\#(noon + 9)""#))) },
        Forgery("exp beyond all numbers", .malformed) { token(rsa, claims(("exp", "1e999"))) },
        Forgery("nbf to come", .notYetValid) { token(rsa, claims(("nbf", "\(noon + 61)"))) },
        Forgery("iat to come", .notYetValid) { token(rsa, claims(("iat", "\(noon + 60).5"))) },
        Forgery("no sub", .malformed) { token(rsa, claims(("sub", nil))) },
        Forgery("an empty sub", .malformed) { token(rsa, claims(("sub", "\"\""))) },
        Forgery("a sub of 2049 bytes", .malformed) {
            token(rsa, claims(("sub", "\"\(String(repeating: "a", count: 2049))\"")))
        },
        Forgery("an expired token of nobody's", .badSignature) {
            token(.otherRSA, claims(("exp", "1")))
        },
    ]

    @Test(arguments: [algorithms, keys, signatures, structures, contents])
    func aForgedTokenIsRejected(_ forgeries: [Forgery]) async throws {
        let harness = await Self.harness()
        for forgery in forgeries {
            for _ in 0..<2 {
                let code = try await harness.rejection(forgery.make())
                #expect(code == forgery.code, "\(forgery.name)")
            }
        }
        let count = CredentialError.Code.allCases.reduce(0) {
            $0 + harness.authenticator.statistics.rejected($1)
        }
        #expect(count == forgeries.count * 2 && harness.authenticator.statistics.verified == 0)
        #expect(try await harness.rejection(token(.rsa)) == nil)
    }

    @Test func whatIsJustAllowedIsAccepted() async throws {
        let harness = await Self.harness()
        let tokens = [
            token(.rsa, claims(("exp", "\(noon - 59)"))),
            token(.rsa, claims(("nbf", "\(noon + 60)"), ("iat", "\(noon + 59).99"))),
            token(.rsa, claims(("aud", #"["x", "sluice"]"#))),
            token(.rsa, claims(("sub", "\"\(String(repeating: "a", count: 2048))\""))),
            TestKey.p256.token(header: #"{"alg": "ES256"}"#, claims: claims()),
            Self.with(#", "typ": "application/AT+JWT", "cty": 1, "b64": true"#),
            token(.rsa, claims(("x", "[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]"))),
            // To rules these two names differ.
            token(.rsa, String(claims().dropLast()) + #", "\u00e9": 1, "e\u0301": 2}"#),
        ]
        for (place, token) in tokens.enumerated() {
            #expect(try await harness.rejection(token) == nil, "token \(place)")
        }
    }
}
