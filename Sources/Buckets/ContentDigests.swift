import OpenSSL

/// Computes the size and digests of a body while it is streamed.
///
/// Safety: used by one thread at a time: a job on the pool, or the loop while no job runs.
final class ContentDigests: @unchecked Sendable {
    private let md5: Digest?
    private var crc32c = CRC32C()
    private let others: [(DigestAlgorithm, Digest)]
    private var size: UInt64 = 0

    /// - Parameter plan: Selects the digests besides crc32c.
    init(_ plan: UploadPlan) {
        md5 = plan.wantsMD5 ? Digest(.md5) : nil
        others = plan.digests.map { algorithm in
            switch algorithm {
            case .sha256: (algorithm, Digest(.sha256))
            case .sha512: (algorithm, Digest(.sha512))
            }
        }
    }

    func update(_ bytes: RawSpan) {
        md5?.update(bytes)
        crc32c.update(bytes)
        for (_, digest) in others { digest.update(bytes) }
        size += UInt64(bytes.byteCount)
    }

    /// Call it once, after the last ``update(_:)``.
    func facts() -> ContentFacts {
        ContentFacts(
            size: size, md5: md5?.finish(), crc32c: crc32c.value,
            digests: Dictionary(uniqueKeysWithValues: others.map { ($0.0, $0.1.finish()) }))
    }
}
