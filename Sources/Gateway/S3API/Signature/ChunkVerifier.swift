import OpenSSL
import Wire

/// Verifies the signatures of the chunks and the trailer of one `aws-chunked` body. Each covers the one before.
struct ChunkVerifier {
    private let key: HMAC
    /// `DATE\nSCOPE\n`.
    private var middle: [UInt8] = []
    /// The previous signature, in hexadecimal.
    private var previous: [UInt8]

    /// The SHA-256 of nothing.
    private static let emptyHash = Digest(.sha256).finish()

    /// - Parameter claim: The request's signature, which was verified.
    init(_ claim: SignatureClaim, _ key: HMAC) {
        self.key = key
        // The signature is compared as bytes, so it may have been in upper case.
        previous = claim.signature.map(ASCII.lowercased)
        middle += claim.stamp
        middle.append(0x0a)
        middle += claim.credential.scope
        middle.append(0x0a)
    }

    /// Whether a chunk with this SHA-256 has this signature (in hexadecimal). The next chunk follows it then.
    mutating func verify(chunk hash: [UInt8], _ signature: [UInt8]) -> Bool {
        verify("AWS4-HMAC-SHA256-PAYLOAD\n", [ChunkVerifier.emptyHash, hash], signature)
    }

    /// Whether a trailer with this SHA-256 has this signature.
    mutating func verify(trailer hash: [UInt8], _ signature: [UInt8]) -> Bool {
        verify("AWS4-HMAC-SHA256-TRAILER\n", [hash], signature)
    }

    private mutating func verify(_ algorithm: StaticString, _ hashes: [[UInt8]], _ signature: [UInt8]) -> Bool {
        guard signature.count == 64, let wanted = Hexadecimal.decode(signature.span) else { return false }
        var text: [UInt8] = []
        text.reserveCapacity(384)
        text.append(algorithm)
        text += middle
        text += previous
        for hash in hashes {
            text.append(0x0a)
            text.append(hexadecimal: hash.span)
        }
        let computed = key.code(of: text.span.bytes)
        guard areEqualInConstantTime(computed, wanted) else { return false }
        previous = []
        previous.append(hexadecimal: computed.span)
        return true
    }
}
