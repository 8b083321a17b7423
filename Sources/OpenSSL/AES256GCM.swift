import COpenSSL

/// Authenticated encryption with AES-256 in Galois/Counter Mode (NIST SP 800-38D). A key may encrypt at most 2^32
/// messages with random nonces (section 8.3).
public struct AES256GCM: Sendable {
    /// The size of a key in bytes.
    public static let keyBytes = 32
    /// The size of a nonce in bytes. A nonce must never be reused with the same key.
    public static let nonceBytes = 12
    /// The size of the tag in bytes, which a message has in addition to its text.
    public static let tagBytes = 16

    private let key: [UInt8]

    /// - Parameter key: ``keyBytes`` long.
    public init(key: [UInt8]) {
        precondition(key.count == AES256GCM.keyBytes)
        self.key = key
    }

    /// A random nonce from the system.
    public static func randomNonce() -> [UInt8] {
        var generator = SystemRandomNumberGenerator()
        return (0..<nonceBytes).map { _ in .random(in: 0 ... .max, using: &generator) }
    }

    /// Returns the encrypted text, followed by the tag.
    /// - Parameter nonce: ``nonceBytes`` long.
    /// - Parameter authenticated: Bytes that are authenticated but not encrypted, and needed to open the message.
    public func seal(_ text: [UInt8], nonce: [UInt8], authenticated: [UInt8]) -> [UInt8] {
        var sealed = [UInt8](repeating: 0, count: text.count + AES256GCM.tagBytes)
        let isDone = withContext(encrypts: true, nonce, authenticated) { context in
            var count: Int32 = 0
            var rest = [UInt8](repeating: 0, count: AES256GCM.tagBytes)
            return EVP_EncryptUpdate(context, &sealed, &count, text, Int32(text.count)) == 1
                && EVP_EncryptFinal_ex(context, &rest, &count) == 1
                && sealed.withUnsafeMutableBytes { bytes in
                    EVP_CIPHER_CTX_ctrl(
                        context, EVP_CTRL_AEAD_GET_TAG, Int32(AES256GCM.tagBytes), bytes.baseAddress! + text.count) == 1
                }
        }
        precondition(isDone, "OpenSSL can't encrypt with AES-256-GCM")
        return sealed
    }

    /// Decrypts a message; nil if the message, the nonce, the key or `authenticated` differs.
    public func open(_ sealed: [UInt8], nonce: [UInt8], authenticated: [UInt8]) -> [UInt8]? {
        let count = sealed.count - AES256GCM.tagBytes
        guard count >= 0, nonce.count == AES256GCM.nonceBytes else { return nil }
        var text = [UInt8](repeating: 0, count: count + AES256GCM.tagBytes)
        var tag = Array(sealed[count...])
        var rest = tag
        let isAuthentic = withContext(encrypts: false, nonce, authenticated) { context in
            var written: Int32 = 0
            return EVP_DecryptUpdate(context, &text, &written, sealed, Int32(count)) == 1
                && EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, Int32(AES256GCM.tagBytes), &tag) == 1
                && EVP_DecryptFinal_ex(context, &rest, &written) == 1
        }
        return isAuthentic ? Array(text[..<count]) : nil
    }

    /// Calls `body` with a context initialized with the key, the nonce and the authenticated bytes.
    private func withContext(
        encrypts: Bool, _ nonce: [UInt8], _ authenticated: [UInt8],
        _ body: (OpaquePointer) -> Bool
    ) -> Bool {
        guard let context = EVP_CIPHER_CTX_new() else {
            preconditionFailure("OpenSSL is out of memory")
        }
        defer { EVP_CIPHER_CTX_free(context) }
        var count: Int32 = 0
        return EVP_CipherInit_ex(context, EVP_aes_256_gcm(), nil, key, nonce, encrypts ? 1 : 0) == 1
            && EVP_CipherUpdate(context, nil, &count, authenticated, Int32(authenticated.count)) == 1 && body(context)
    }
}
