import OpenSSL

/// The running digests of an upload session. Their state is saved with each durable offset, so that bytes need not be
/// read again after a restart. A copy is a snapshot.
struct SessionDigests: Sendable {
    private static let version: UInt8 = 1

    fileprivate enum Running: Sendable {
        case digest(Digest.Algorithm, ResumableDigest)
        case crc32(CRC32)
        case crc64nvme(CRC64NVME)

        init(_ algorithm: DigestAlgorithm) {
            self =
                switch algorithm {
                case .sha256: .digest(.sha256, ResumableDigest(.sha256))
                case .sha512: .digest(.sha512, ResumableDigest(.sha512))
                case .sha1: .digest(.sha1, ResumableDigest(.sha1))
                case .crc32: .crc32(CRC32())
                case .crc64nvme: .crc64nvme(CRC64NVME())
                }
        }
    }
    /// The numbers of the CRCs in a saved state, after those of ``Digest/Algorithm``.
    fileprivate static let crc32Number = 16
    fileprivate static let crc64nvmeNumber = 17

    private var crc32c = CRC32C()
    /// md5 is the first.
    private var others: [Running]

    init(_ wanted: Set<DigestAlgorithm>) {
        others = [.digest(.md5, ResumableDigest(.md5))]
        for algorithm in DigestAlgorithm.allCases where wanted.contains(algorithm) { others.append(Running(algorithm)) }
    }

    mutating func update(_ bytes: RawSpan) {
        crc32c.update(bytes)
        for index in others.indices {
            switch others[index] {
            case .digest(let algorithm, var digest):
                digest.update(bytes)
                others[index] = .digest(algorithm, digest)
            case .crc32(var checksum):
                checksum.update(bytes)
                others[index] = .crc32(checksum)
            case .crc64nvme(var checksum):
                checksum.update(bytes)
                others[index] = .crc64nvme(checksum)
            }
        }
    }

    func facts(size: UInt64) -> ContentFacts {
        var facts = ContentFacts(size: size, md5: nil, crc32c: crc32c.value)
        for running in others {
            switch running {
            case .digest(.md5, let digest): facts.md5 = digest.value
            case .digest(.sha256, let digest): facts.digests[.sha256] = digest.value
            case .digest(.sha512, let digest): facts.digests[.sha512] = digest.value
            case .digest(.sha1, let digest): facts.digests[.sha1] = digest.value
            case .crc32(let checksum): facts.digests[.crc32] = checksum.value.bigEndianBytes
            case .crc64nvme(let checksum): facts.digests[.crc64nvme] = checksum.value.bigEndianBytes
            }
        }
        return facts
    }

    /// A version byte, the crc32c (big-endian), and for each digest its number, its state's length and its state.
    var saved: [UInt8] {
        var bytes = [SessionDigests.version]
        bytes += crc32c.value.bigEndianBytes
        for running in others {
            let (number, state) =
                switch running {
                case .digest(let algorithm, let digest): (algorithm.rawValue, digest.savedState)
                case .crc32(let checksum): (SessionDigests.crc32Number, checksum.value.bigEndianBytes)
                case .crc64nvme(let checksum): (SessionDigests.crc64nvmeNumber, checksum.value.bigEndianBytes)
                }
            bytes += [UInt8(number), UInt8(state.count)]
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
            guard rest.count >= count, let running = Running(number, rest.prefix(count)) else { return nil }
            others.append(running)
            rest = rest.dropFirst(count)
        }
        guard rest.isEmpty, case .digest(.md5, _)? = others.first else { return nil }
    }
}

extension SessionDigests.Running {
    fileprivate init?(_ number: Int, _ state: ArraySlice<UInt8>) {
        switch number {
        case SessionDigests.crc32Number:
            guard let value = UInt32(bigEndianBytes: state) else { return nil }
            self = .crc32(CRC32(after: value))
        case SessionDigests.crc64nvmeNumber:
            guard let value = UInt64(bigEndianBytes: state) else { return nil }
            self = .crc64nvme(CRC64NVME(after: value))
        default:
            guard let algorithm = Digest.Algorithm(rawValue: number),
                let digest = ResumableDigest(algorithm, savedState: state)
            else { return nil }
            self = .digest(algorithm, digest)
        }
    }
}
