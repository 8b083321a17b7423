import COpenSSL

/// What a secret is looked up by, in place of the secret itself. It tells nothing outside of the process.
public struct Fingerprint: Hashable, Sendable {
    fileprivate var first: UInt64 = 0
    fileprivate var second: UInt64 = 0

    /// A number from it, for the choice among a few places.
    public var place: Int { Int(truncatingIfNeeded: second & 0xffff) }

    public func hash(into hasher: inout Hasher) { hasher.combine(first) }
}

/// Makes fingerprints by GMAC (NIST SP 800-38D) with a key drawn at `init` and one nonce.
///
/// Nobody outside learns a fingerprint, or can make two messages with the same one: whatever is chosen without knowing
/// the key, two messages of at most 16 KiB meet with a chance of 2^-117. That is all that a table of known messages
/// needs, and takes a tenth of the time of SHA-256 where the processor has no instructions for that.
public final class Fingerprints: Sendable {
    /// Contexts that rest, at most.
    private static let shelfLimit = 64
    private let key: [UInt8]
    private let cipher: Handle
    private let idle = CryptoLock<[Handle]>([])

    /// A pointer of OpenSSL.
    ///
    /// Safety: the cipher is never changed once it was fetched; a context has one owner, or rests on the shelf.
    private struct Handle: @unchecked Sendable {
        let pointer: OpaquePointer
    }

    /// Draws a key.
    public init() {
        var key = [UInt8](repeating: 0, count: 16)
        guard RAND_priv_bytes(&key, 16) == 1,
            let cipher = EVP_CIPHER_fetch(nil, "AES-128-GCM", nil)
        else { preconditionFailure("OpenSSL has no AES-128-GCM") }
        self.key = key
        self.cipher = Handle(pointer: cipher)
    }

    deinit {
        for context in idle.withLock({ $0 }) { EVP_CIPHER_CTX_free(context.pointer) }
        EVP_CIPHER_free(cipher.pointer)
    }

    /// The fingerprint of a message.
    public func of(_ message: RawSpan) -> Fingerprint {
        let kept = idle.withLock { $0.popLast() }
        let context = kept?.pointer ?? newContext()
        var nonce: (UInt64, UInt32) = (0, 0)
        var length: Int32 = 0
        var result = Fingerprint()
        let isMade = withUnsafeMutableBytes(of: &nonce) { nonce in
            // The same nonce each time: what it would protect is never shown.
            EVP_EncryptInit_ex2(
                context, nil, nil, nonce.baseAddress!.assumingMemoryBound(to: UInt8.self), nil) == 1
                && message.withUnsafeBytes {
                    EVP_EncryptUpdate(
                        context, nil, &length, $0.baseAddress, Int32(truncatingIfNeeded: $0.count))
                        == 1
                } && EVP_EncryptFinal_ex(context, nil, &length) == 1
        }
        precondition(isMade && message.byteCount <= Int32.max, "GMAC")
        withUnsafeMutableBytes(of: &result) {
            precondition(
                EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, 16, $0.baseAddress) == 1)
        }
        let resting = Handle(pointer: context)
        let isKept = idle.withLock { idle in
            guard idle.count < Fingerprints.shelfLimit else { return false }
            idle.append(resting)
            return true
        }
        if !isKept { EVP_CIPHER_CTX_free(context) }
        return result
    }

    private func newContext() -> OpaquePointer {
        guard let context = EVP_CIPHER_CTX_new(),
            EVP_EncryptInit_ex2(context, cipher.pointer, key, nil, nil) == 1
        else { preconditionFailure("OpenSSL can't begin AES-128-GCM") }
        return context
    }
}

/// Whether two secrets are the same, in a time that tells nothing of where they differ.
public func areEqualInConstantTime(_ left: [UInt8], _ right: [UInt8]) -> Bool {
    left.count == right.count && CRYPTO_memcmp(left, right, left.count) == 0
}
