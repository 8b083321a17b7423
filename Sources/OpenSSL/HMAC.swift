/// HMAC (RFC 2104) with SHA-256.
public enum HMAC {
    private static let blockBytes = 64

    /// Returns the 32 bytes of HMAC-SHA256.
    public static func sha256(key: [UInt8], _ message: RawSpan) -> [UInt8] {
        var block = key
        if key.count > blockBytes {
            let digest = Digest(.sha256)
            digest.update(key.span.bytes)
            block = digest.finish()
        }
        block += repeatElement(0, count: blockBytes - block.count)
        for index in block.indices { block[index] ^= 0x36 }
        let inner = Digest(.sha256)
        inner.update(block.span.bytes)
        inner.update(message)
        for index in block.indices { block[index] ^= 0x36 ^ 0x5c }
        let outer = Digest(.sha256)
        outer.update(block.span.bytes)
        outer.update(inner.finish().span.bytes)
        return outer.finish()
    }
}
