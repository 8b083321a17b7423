import OpenSSL
import TestSupport
import Testing
import Wire

@testable import Identity

/// The examples of the specifications.
@Suite struct VectorTests {
    /// RFC 7515, appendices A.1 to A.3, and RFC 7519, section 3.1.
    static let payload =
        "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ"
    static let rsa = """
        {"kty": "RSA", "e": "AQAB", "n": "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPdd\
        xHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo\
        9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4u\
        DZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb5\
        4h4FRWyuXpoQ"}
        """
    static let p256 = """
        {"kty": "EC", "crv": "P-256", "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
         "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}
        """
    static let p521 = """
        {"kty": "EC", "crv": "P-521",
         "x": "AekpBQ8ST8a8VcfVOTNl353vSrDCLLJXmPk06wTjxrrjcBpXp5EOnYG_NjFZ6OvLFV1jSfS9tsz4qUxcWceqwQGk",
         "y": "ADSmRA43Z1DSNx_RvcLI87cdL07l6jQyyBXMoxVg_l2Th-x3S1WDhjDly79ajL4Kkd0AZMaZmh9ubmf63e3kyMj2"}
        """
    static let ed25519 = """
        {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}
        """

    struct Vector: Sendable {
        let algorithm: SignatureAlgorithm
        let key: String
        let message: String
        let signature: String
    }
    static let vectors = [
        Vector(
            algorithm: .rs256, key: rsa, message: "eyJhbGciOiJSUzI1NiJ9." + payload,
            signature:
                "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw"
        ),
        Vector(
            algorithm: .es256, key: p256, message: "eyJhbGciOiJFUzI1NiJ9." + payload,
            signature:
                "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q"
        ),
        Vector(
            algorithm: .es512, key: p521, message: "eyJhbGciOiJFUzUxMiJ9.UGF5bG9hZA",
            signature:
                "AdwMgeerwtHoh-l192l60hp9wAHZFVJbLfD_UxMi70cwnZOYaRI1bKPWROc-mZZqwqT2SI-KGDKB34XO0aw_7XdtAG8GaSwFKdCAPZgoXD2YBJZCPEX3xKpRwcdOO8KpEHwJjyqOgzDO7iKvU8vcnwNrmxYbSW9ERBXukOXolLzeO_Jn"
        ),
        Vector(
            algorithm: .eddsa, key: ed25519,
            message: "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc",
            signature:
                "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg"
        ),
    ]

    /// RFC 7515, appendices A.2 to A.4, and RFC 8037, appendix A.4: each signature holds, and with any bit turned does
    /// not.
    @Test(arguments: vectors) func aSignatureOfTheSpecificationIsValid(_ vector: Vector) throws {
        let set = try KeySet(Array(keySet(vector.key).utf8))
        let key = try #require(set.candidates(nil, vector.algorithm).first)
        let message = Array(vector.message.utf8)
        func holds(
            _ message: [UInt8], _ signature: [UInt8],
            _ algorithm: SignatureAlgorithm = vector.algorithm
        ) -> Bool {
            key.verifies(message.span.bytes, signature, algorithm)
        }
        var signature = try #require(Base64.decodeForURL(Array(vector.signature.utf8)[...]))
        #expect(holds(message, signature))
        for place in stride(from: 0, to: signature.count, by: 7) {
            signature[place] ^= 1 << UInt8(place % 8)
            #expect(!holds(message, signature))
            signature[place] ^= 1 << UInt8(place % 8)
        }
        var other = message
        other[0] ^= 1
        #expect(!holds(other, signature))
        #expect(!holds(message, signature + [0]) && !holds(message, []))
        #expect(!holds(message, Array(signature.dropLast())))
        for algorithm in SignatureAlgorithm.allCases where algorithm != vector.algorithm {
            #expect(!holds(message, signature, algorithm))
        }
    }

    /// RFC 7515, appendices A.1 (which is RFC 7519, section 3.1) and A.5 (RFC 7519, section 6.1): a MAC and no signature
    /// at all are valid to the specification, and never to us.
    @Test(arguments: [
        "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9." + payload
            + ".dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
        "eyJhbGciOiJub25lIn0." + payload + ".",
    ]) func unsignedTextIsRejected(_ token: String) async throws {
        let harness = Harness(keys: keySet(Self.rsa)) {
            $0.issuer = "joe"
            $0.audiences = ["anybody"]
        }
        #expect(try await harness.ready().rejection(token) == .badSignature)
    }

    /// RFC 7515, appendix A.2 as a whole: the signature holds, and it is for nobody and long over.
    @Test func theTokenOfTheSpecificationHasNoAudience() async throws {
        let harness = Harness(keys: keySet(Self.rsa)) {
            $0.issuer = "joe"
            $0.audiences = ["anybody"]
        }
        let vector = Self.vectors[0]
        let token = vector.message + "." + vector.signature
        #expect(try await harness.ready().rejection(token) == .wrongAudience)
    }

    /// Every algorithm of the list, by a key made here.
    @Test(arguments: SignatureAlgorithm.allCases) func eachAlgorithmVerifies(
        _ algorithm: SignatureAlgorithm
    ) async throws {
        let key: TestKey =
            switch algorithm {
            case .es256: .p256
            case .es384: .p384
            case .es512: .p521
            case .eddsa: .ed25519
            default: .rsa
            }
        let harness = await Harness(keys: keySet(key.jwk())).ready()
        let token = token(key, algorithm: algorithm.rawValue)
        let principal = try #require(try await harness.ask("Bearer " + token))
        #expect(principal.uid == "alice" && principal.kind == .token)
    }
}
