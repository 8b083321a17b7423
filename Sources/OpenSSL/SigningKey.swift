import COpenSSL

/// A private RSA key for RS256 signatures (RFC 7518, section 3.3: RSASSA-PKCS1-v1_5 with SHA-256).
///
/// Safety: an `EVP_PKEY` is not changed after `init`, and each signature uses its own context.
public final class SigningKey: @unchecked Sendable {
    private let pointer: OpaquePointer

    /// Reads a key from PEM (PKCS #8 or PKCS #1).
    /// - Throws: ``TLSError`` if it is not an RSA key of at least 2048 bits, or has a passphrase.
    public init(pem: String) throws(TLSError) {
        // The BIO reads from `bytes` and must not outlive them.
        let key = Array(pem.utf8).withUnsafeBytes { bytes -> OpaquePointer? in
            guard let bio = BIO_new_mem_buf(bytes.baseAddress, Int32(clamping: bytes.count)) else {
                return nil
            }
            defer { BIO_free(bio) }
            // A key with a passphrase is rejected: there is no prompt for it.
            return PEM_read_bio_PrivateKey(bio, nil, { _, _, _, _ in 0 }, nil)
        }
        guard let key else {
            throw TLSError(
                "the private key can't be read: it must be an RSA key in PEM (PKCS #8 or PKCS #1) without a passphrase")
        }
        guard EVP_PKEY_get_base_id(key) == EVP_PKEY_RSA, EVP_PKEY_get_bits(key) >= 2048 else {
            EVP_PKEY_free(key)
            throw TLSError("the private key is not an RSA key of at least 2048 bits")
        }
        pointer = key
    }

    deinit { EVP_PKEY_free(pointer) }

    /// Signs a message, which takes about a millisecond.
    /// - Throws: ``TLSError`` if OpenSSL fails.
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
