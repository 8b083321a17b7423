import COpenSSL
import Wire

/// A key pair that signs as issuers, and attackers, do.
///
/// Safety: an `EVP_PKEY` is not changed after `init`.
final class TestKey: @unchecked Sendable {
    enum Kind: Sendable {
        case rsa(bits: Int32)
        case ec(String)
        case ed25519
    }
    static let rsa = TestKey(.rsa(bits: 2048), "rsa")
    static let otherRSA = TestKey(.rsa(bits: 2048), "rsa")
    static let weakRSA = TestKey(.rsa(bits: 1024), "weak")
    static let p256 = TestKey(.ec("P-256"), "p256")
    static let p384 = TestKey(.ec("P-384"), "p384")
    static let p521 = TestKey(.ec("P-521"), "p521")
    static let ed25519 = TestKey(.ed25519, "ed25519")

    let kind: Kind
    let keyID: String
    private let key: OpaquePointer

    init(_ kind: Kind, _ keyID: String) {
        self.kind = kind
        self.keyID = keyID
        let type =
            switch kind {
            case .rsa: "RSA"
            case .ec: "EC"
            case .ed25519: "ED25519"
            }
        let context = EVP_PKEY_CTX_new_from_name(nil, type, nil)
        defer { EVP_PKEY_CTX_free(context) }
        precondition(EVP_PKEY_keygen_init(context) == 1)
        switch kind {
        case .rsa(let bits): precondition(EVP_PKEY_CTX_set_rsa_keygen_bits(context, bits) == 1)
        case .ec(let curve): precondition(EVP_PKEY_CTX_set_group_name(context, curve) == 1)
        case .ed25519: break
        }
        var key: OpaquePointer?
        precondition(EVP_PKEY_generate(context, &key) == 1)
        self.key = key!
    }

    deinit { EVP_PKEY_free(key) }

    private func number(_ name: String, width: Int? = nil) -> String {
        var number: OpaquePointer?
        precondition(EVP_PKEY_get_bn_param(key, name, &number) == 1)
        defer { BN_free(number) }
        let width = width ?? Int((BN_num_bits(number) + 7) / 8)
        var bytes = [UInt8](repeating: 0, count: width)
        precondition(BN_bn2binpad(number, &bytes, Int32(width)) == Int32(width))
        return Base64.encodeForURL(bytes)
    }

    /// Bytes of a coordinate.
    var width: Int { Int(EVP_PKEY_get_bits(key) + 7) / 8 }

    /// The public half as a JSON Web Key, with more members such as `"alg": "RS256"`.
    func jwk(_ more: String..., keyID: String?? = .none) -> String {
        var members = more
        if let name = keyID ?? self.keyID { members.append(#""kid": "\#(name)""#) }
        switch kind {
        case .rsa:
            members += [
                #""kty": "RSA""#, #""n": "\#(number("n"))""#, #""e": "\#(number("e"))""#,
            ]
        case .ec(let curve):
            members += [
                #""kty": "EC""#, #""crv": "\#(curve)""#, #""x": "\#(number("qx", width: width))""#,
                #""y": "\#(number("qy", width: width))""#,
            ]
        case .ed25519:
            var bytes = [UInt8](repeating: 0, count: 32)
            var count = 32
            precondition(EVP_PKEY_get_raw_public_key(key, &bytes, &count) == 1)
            members += [
                #""kty": "OKP""#, #""crv": "Ed25519""#, #""x": "\#(Base64.encodeForURL(bytes))""#,
            ]
        }
        return "{\(members.joined(separator: ", "))}"
    }

    /// The modulus as it is published, which an attacker takes for a secret.
    var publicBytes: [UInt8] {
        let bio = BIO_new(BIO_s_mem())
        defer { BIO_free(bio) }
        PEM_write_bio_PUBKEY(bio, key)
        var bytes = [UInt8](repeating: 0, count: 8192)
        let count = BIO_read(bio, &bytes, Int32(bytes.count))
        return Array(bytes[..<Int(count)])
    }

    /// The usual algorithm.
    var algorithm: String {
        switch kind {
        case .rsa: "RS256"
        case .ec("P-256"): "ES256"
        case .ec("P-384"): "ES384"
        case .ec: "ES512"
        case .ed25519: "EdDSA"
        }
    }

    /// A signature as a JWS has it; of ECDSA in DER where `isRaw` is false.
    func sign(_ message: [UInt8], _ algorithm: String? = nil, isRaw: Bool = true) -> [UInt8] {
        let algorithm = algorithm ?? self.algorithm
        let digest =
            algorithm.hasSuffix("256")
            ? EVP_sha256() : algorithm.hasSuffix("384") ? EVP_sha384() : EVP_sha512()
        let context = EVP_MD_CTX_new()
        defer { EVP_MD_CTX_free(context) }
        var parameters: OpaquePointer?
        let isEdwards = algorithm == "EdDSA"
        precondition(
            EVP_DigestSignInit(context, &parameters, isEdwards ? nil : digest, nil, key) == 1)
        if algorithm.hasPrefix("PS") {
            EVP_PKEY_CTX_set_rsa_padding(parameters, RSA_PKCS1_PSS_PADDING)
            EVP_PKEY_CTX_set_rsa_pss_saltlen(parameters, RSA_PSS_SALTLEN_DIGEST)
        }
        var signature = [UInt8](repeating: 0, count: 1100)
        var count = signature.count
        precondition(EVP_DigestSign(context, &signature, &count, message, message.count) == 1)
        signature = Array(signature[..<count])
        guard case .ec = kind, isRaw else { return signature }
        var place = signature[1] == 0x81 ? 3 : 2
        var raw: [UInt8] = []
        for _ in 0..<2 {
            let length = Int(signature[place + 1])
            let digits = signature[(place + 2)..<(place + 2 + length)].drop { $0 == 0 }
            raw += [UInt8](repeating: 0, count: width - digits.count) + digits
            place += 2 + length
        }
        return raw
    }

    /// A compact JWS of exactly these texts.
    func token(header: String, claims: String, algorithm: String? = nil) -> String {
        let message = unsigned(header, claims)
        return message + "."
            + Base64.encodeForURL(sign(Array(message.utf8), algorithm ?? self.algorithm))
    }
}

/// What is signed of a token.
func unsigned(_ header: String, _ claims: String) -> String {
    Base64.encodeForURL(Array(header.utf8)) + "." + Base64.encodeForURL(Array(claims.utf8))
}
