import COpenSSL

/// A private RSA key that signs as RS256 does (RFC 7518, section 3.3: RSASSA-PKCS1-v1_5 with SHA-256).
///
/// Safety: an `EVP_PKEY` is not changed after `init`, and each signature has a context of its own.
public final class SigningKey: @unchecked Sendable {
    private let pointer: OpaquePointer

    /// Reads a key from PEM (PKCS #8 or PKCS #1).
    /// - Throws: ``TLSError`` where it is not an RSA key of at least 2048 bits, or has a passphrase.
    public init(pem: String) throws(TLSError) {
        let bytes = Array(pem.utf8)
        guard let bio = BIO_new_mem_buf(bytes, Int32(clamping: bytes.count)) else {
            throw TLSError("private key")
        }
        defer { BIO_free(bio) }
        // A key with a passphrase is refused: nobody is there to type it.
        guard let key = PEM_read_bio_PrivateKey(bio, nil, { _, _, _, _ in 0 }, nil) else {
            throw TLSError("private key")
        }
        guard EVP_PKEY_get_base_id(key) == EVP_PKEY_RSA, EVP_PKEY_get_bits(key) >= 2048 else {
            EVP_PKEY_free(key)
            throw TLSError("the private key is not an RSA key of at least 2048 bits")
        }
        pointer = key
    }

    deinit { EVP_PKEY_free(pointer) }

    /// The signature of a message; about a millisecond of work.
    /// - Throws: ``TLSError`` where OpenSSL can't.
    public func sign(_ message: [UInt8]) throws(TLSError) -> [UInt8] {
        guard let context = EVP_MD_CTX_new() else { throw TLSError("signature") }
        defer { EVP_MD_CTX_free(context) }
        var length = Int(EVP_PKEY_get_size(pointer))
        var signature = [UInt8](repeating: 0, count: length)
        guard EVP_DigestSignInit(context, nil, EVP_sha256(), nil, pointer) == 1,
            EVP_DigestSign(context, &signature, &length, message, message.count) == 1
        else { throw TLSError("signature") }
        return Array(signature[..<length])
    }
}
