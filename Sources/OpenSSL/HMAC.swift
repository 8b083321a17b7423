/// A key of HMAC (RFC 2104) with SHA-256.
public final class HMAC: Sendable {
    private static let blockBytes = 64
    /// The digests after the key's block, which every message continues.
    private let inner: ResumableDigest
    private let outer: ResumableDigest

    /// Prepares a key of any length.
    public init(key: [UInt8]) {
        var block = key
        if key.count > HMAC.blockBytes {
            var digest = ResumableDigest(.sha256)
            digest.update(key.span.bytes)
            block = digest.value
        }
        block += repeatElement(0, count: HMAC.blockBytes - block.count)
        func digest(xor pad: UInt8) -> ResumableDigest {
            for index in block.indices { block[index] ^= pad }
            var digest = ResumableDigest(.sha256)
            digest.update(block.span.bytes)
            return digest
        }
        inner = digest(xor: 0x36)
        outer = digest(xor: 0x36 ^ 0x5c)
    }

    /// Returns the 32 bytes of HMAC-SHA256.
    public func code(of message: RawSpan) -> [UInt8] {
        var (inner, outer) = (inner, outer)
        inner.update(message)
        outer.update(inner.value.span.bytes)
        return outer.value
    }

    /// Returns the 32 bytes of HMAC-SHA256.
    public static func sha256(key: [UInt8], _ message: RawSpan) -> [UInt8] { HMAC(key: key).code(of: message) }
}
