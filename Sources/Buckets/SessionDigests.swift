import OpenSSL

/// The running digests of an upload session. Their state is saved with each durable offset, so that bytes need not be
/// read again after a restart. A copy is a snapshot.
struct SessionDigests: Sendable {
    private static let version: UInt8 = 1

    private var crc32c = CRC32C()
    private var others: [(Digest.Algorithm, ResumableDigest)]

    init(_ wanted: Set<DigestAlgorithm>) {
        others = [(.md5, ResumableDigest(.md5))]
        if wanted.contains(.sha256) { others.append((.sha256, ResumableDigest(.sha256))) }
        if wanted.contains(.sha512) { others.append((.sha512, ResumableDigest(.sha512))) }
    }

    mutating func update(_ bytes: RawSpan) {
        crc32c.update(bytes)
        for index in others.indices { others[index].1.update(bytes) }
    }

    func facts(size: UInt64) -> ContentFacts {
        var facts = ContentFacts(size: size, md5: nil, crc32c: crc32c.value)
        for (algorithm, digest) in others {
            switch algorithm {
            case .md5: facts.md5 = digest.value
            case .sha256: facts.digests[.sha256] = digest.value
            case .sha512: facts.digests[.sha512] = digest.value
            }
        }
        return facts
    }

    /// A version byte, the crc32c (big-endian), and for each digest its number, its state's length and its state.
    var saved: [UInt8] {
        var bytes = [SessionDigests.version]
        withUnsafeBytes(of: crc32c.value.bigEndian) { bytes += $0 }
        for (algorithm, digest) in others {
            let state = digest.savedState
            bytes += [UInt8(algorithm.rawValue), UInt8(state.count)]
            bytes += state
        }
        return bytes
    }

    /// Restores ``saved``; nil if it is malformed.
    init?(saved: [UInt8]) {
        guard saved.count >= 5, saved[0] == SessionDigests.version else { return nil }
        crc32c = CRC32C(after: saved[1..<5].reduce(0) { $0 << 8 | UInt32($1) })
        others = []
        var rest = saved[5...]
        while rest.count >= 2 {
            let (number, count) = (Int(rest.removeFirst()), Int(rest.removeFirst()))
            guard let algorithm = Digest.Algorithm(rawValue: number), rest.count >= count,
                let digest = ResumableDigest(algorithm, savedState: rest.prefix(count))
            else { return nil }
            others.append((algorithm, digest))
            rest = rest.dropFirst(count)
        }
        guard rest.isEmpty, others.first?.0 == .md5 else { return nil }
    }
}
