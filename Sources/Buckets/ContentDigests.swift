import OpenSSL

/// Computes the size and digests of a body while it is streamed.
///
/// Safety: used by one thread at a time: a job on the pool, or the loop while no job runs.
final class ContentDigests: @unchecked Sendable {
    private let md5: Digest?
    private var crc32c = CRC32C()
    private var others: [(DigestAlgorithm, RunningDigest)]
    private var size: UInt64 = 0

    /// - Parameter plan: Selects the digests besides crc32c.
    init(_ plan: UploadPlan) {
        md5 = plan.wantsMD5 ? Digest(.md5) : nil
        others = plan.digests.map { ($0, RunningDigest($0)) }
    }

    func update(_ bytes: RawSpan) {
        md5?.update(bytes)
        crc32c.update(bytes)
        for index in others.indices { others[index].1.update(bytes) }
        size += UInt64(bytes.byteCount)
    }

    /// Call it once, after the last ``update(_:)``.
    func facts() -> ContentFacts {
        ContentFacts(
            size: size, md5: md5?.finish(), crc32c: crc32c.value,
            digests: Dictionary(uniqueKeysWithValues: others.map { ($0.0, $0.1.finish()) }))
    }
}

/// A digest of bytes that arrive in pieces, by any algorithm. Used by one thread at a time.
package struct RunningDigest {
    private enum State {
        case digest(Digest)
        case crc32(CRC32)
        case crc64nvme(CRC64NVME)
    }
    private var state: State

    package init(_ algorithm: DigestAlgorithm) {
        state =
            switch algorithm {
            case .sha256: .digest(Digest(.sha256))
            case .sha512: .digest(Digest(.sha512))
            case .sha1: .digest(Digest(.sha1))
            case .crc32: .crc32(CRC32())
            case .crc64nvme: .crc64nvme(CRC64NVME())
            }
    }

    /// Adds bytes.
    package mutating func update(_ bytes: RawSpan) {
        switch state {
        case .digest(let digest): digest.update(bytes)
        case .crc32(var checksum):
            checksum.update(bytes)
            state = .crc32(checksum)
        case .crc64nvme(var checksum):
            checksum.update(bytes)
            state = .crc64nvme(checksum)
        }
    }

    /// The digest of all bytes. No byte may follow.
    package func finish() -> [UInt8] {
        switch state {
        case .digest(let digest): digest.finish()
        case .crc32(let checksum): checksum.value.bigEndianBytes
        case .crc64nvme(let checksum): checksum.value.bigEndianBytes
        }
    }
}

extension FixedWidthInteger {
    var bigEndianBytes: [UInt8] { withUnsafeBytes(of: bigEndian) { Array($0) } }

    /// nil if there are more or fewer bytes.
    init?(bigEndianBytes bytes: some Collection<UInt8>) {
        guard bytes.count == Self.bitWidth / 8 else { return nil }
        self = bytes.reduce(0) { $0 << 8 | Self(truncatingIfNeeded: $1) }
    }
}
