import COpenSSL

/// A message digest whose state can be saved and restored in another process. A copy is a snapshot. It uses OpenSSL's
/// low-level functions, because ``Digest``'s state can't be read.
public struct ResumableDigest: Sendable {
    private enum Context {
        case md5(MD5_CTX)
        case sha256(SHA256_CTX)
        case sha512(SHA512_CTX)
        case sha1(SHA_CTX)
    }
    private var context: Context

    /// Starts a new digest.
    public init(_ algorithm: Digest.Algorithm) {
        switch algorithm {
        case .md5:
            var context = MD5_CTX()
            sluice_md5_init(&context)
            self.context = .md5(context)
        case .sha256:
            var context = SHA256_CTX()
            sluice_sha256_init(&context)
            self.context = .sha256(context)
        case .sha512:
            var context = SHA512_CTX()
            sluice_sha512_init(&context)
            self.context = .sha512(context)
        case .sha1:
            var context = SHA_CTX()
            sluice_sha1_init(&context)
            self.context = .sha1(context)
        }
    }

    /// Adds bytes.
    public mutating func update(_ bytes: RawSpan) {
        bytes.withUnsafeBytes { bytes in
            switch context {
            case .md5(var state):
                sluice_md5_update(&state, bytes.baseAddress, bytes.count)
                context = .md5(state)
            case .sha256(var state):
                sluice_sha256_update(&state, bytes.baseAddress, bytes.count)
                context = .sha256(state)
            case .sha512(var state):
                sluice_sha512_update(&state, bytes.baseAddress, bytes.count)
                context = .sha512(state)
            case .sha1(var state):
                sluice_sha1_update(&state, bytes.baseAddress, bytes.count)
                context = .sha1(state)
            }
        }
    }

    /// The digest of all bytes so far. More can be added afterwards.
    public var value: [UInt8] {
        switch context {
        case .md5(var state):
            ResumableDigest.filled(16) { sluice_md5_final($0, &state) }
        case .sha256(var state):
            ResumableDigest.filled(32) { sluice_sha256_final($0, &state) }
        case .sha512(var state):
            ResumableDigest.filled(64) { sluice_sha512_final($0, &state) }
        case .sha1(var state):
            ResumableDigest.filled(20) { sluice_sha1_final($0, &state) }
        }
    }

    private static func filled(_ count: Int, _ fill: (UnsafeMutablePointer<UInt8>) -> Void)
        -> [UInt8]
    {
        [UInt8](unsafeUninitializedCapacity: count) { buffer, initialized in
            fill(buffer.baseAddress!)
            initialized = count
        }
    }
}

/// A saved state consists of the chaining words, the number of bytes so far (64 bits), and the bytes of the incomplete
/// last block. Numbers are big-endian.
extension ResumableDigest {
    /// The state for ``init(_:savedState:)`` on any machine, at most 199 bytes.
    public var savedState: [UInt8] {
        switch context {
        case .md5(let state):
            let count = UInt64(state.Nh) << 29 | UInt64(state.Nl) >> 3
            return ResumableDigest.save(
                [state.A, state.B, state.C, state.D], count,
                withUnsafeBytes(of: state.data) { Array($0.prefix(Int(state.num))) })
        case .sha256(let state):
            let count = UInt64(state.Nh) << 29 | UInt64(state.Nl) >> 3
            return ResumableDigest.save(
                withUnsafeBytes(of: state.h) { Array($0.bindMemory(to: UInt32.self)) }, count,
                withUnsafeBytes(of: state.data) { Array($0.prefix(Int(state.num))) })
        case .sha512(let state):
            let count = UInt64(state.Nh) << 61 | UInt64(state.Nl) >> 3
            return ResumableDigest.save(
                withUnsafeBytes(of: state.h) { Array($0.bindMemory(to: UInt64.self)) }, count,
                withUnsafeBytes(of: state.u) { Array($0.prefix(Int(state.num))) })
        case .sha1(let state):
            let count = UInt64(state.Nh) << 29 | UInt64(state.Nl) >> 3
            return ResumableDigest.save(
                [state.h0, state.h1, state.h2, state.h3, state.h4], count,
                withUnsafeBytes(of: state.data) { Array($0.prefix(Int(state.num))) })
        }
    }

    /// Restores a saved state; nil if it does not fit the algorithm.
    public init?(_ algorithm: Digest.Algorithm, savedState: some Collection<UInt8>) {
        self.init(algorithm)
        let saved = Array(savedState)
        switch context {
        case .md5(var state):
            var words = (state.A, state.B, state.C, state.D)
            guard
                let count = ResumableDigest.restore(
                    saved, UInt32.self, &words, &state.data, &state.num)
            else { return nil }
            (state.A, state.B, state.C, state.D) = words
            (state.Nh, state.Nl) = ResumableDigest.bits(count)
            context = .md5(state)
        case .sha256(var state):
            guard
                let count = ResumableDigest.restore(
                    saved, UInt32.self, &state.h, &state.data, &state.num)
            else { return nil }
            (state.Nh, state.Nl) = ResumableDigest.bits(count)
            context = .sha256(state)
        case .sha512(var state):
            guard
                let count = ResumableDigest.restore(
                    saved, UInt64.self, &state.h, &state.u, &state.num)
            else { return nil }
            (state.Nh, state.Nl) = (count >> 61, count << 3)
            context = .sha512(state)
        case .sha1(var state):
            var words = (state.h0, state.h1, state.h2, state.h3, state.h4)
            guard
                let count = ResumableDigest.restore(
                    saved, UInt32.self, &words, &state.data, &state.num)
            else { return nil }
            (state.h0, state.h1, state.h2, state.h3, state.h4) = words
            (state.Nh, state.Nl) = ResumableDigest.bits(count)
            context = .sha1(state)
        }
    }

    private static func bits(_ count: UInt64) -> (UInt32, UInt32) {
        (UInt32(truncatingIfNeeded: count >> 29), UInt32(truncatingIfNeeded: count << 3))
    }

    private static func save<Word: FixedWidthInteger>(
        _ words: [Word], _ count: UInt64, _ rest: [UInt8]
    ) -> [UInt8] {
        var bytes: [UInt8] = []
        for word in words { withUnsafeBytes(of: word.bigEndian) { bytes += $0 } }
        withUnsafeBytes(of: count.bigEndian) { bytes += $0 }
        return bytes + rest
    }

    /// Fills the chaining words and the last block from a saved state.
    /// - Returns: The number of bytes so far; nil if the state does not fit.
    private static func restore<Word: FixedWidthInteger, Words, Block>(
        _ saved: [UInt8], _: Word.Type, _ words: inout Words, _ block: inout Block, _ used: inout UInt32
    ) -> UInt64? {
        let fixed = MemoryLayout<Words>.size
        guard saved.count >= fixed + 8 else { return nil }
        func number<Number: FixedWidthInteger>(_ offset: Int, _: Number.Type) -> Number {
            saved[offset..<offset + MemoryLayout<Number>.size].reduce(0) { $0 << 8 | Number($1) }
        }
        let count = number(fixed, UInt64.self)
        let rest = saved[(fixed + 8)...]
        guard UInt64(rest.count) == count % UInt64(MemoryLayout<Block>.size) else { return nil }
        withUnsafeMutableBytes(of: &words) { words in
            for offset in stride(from: 0, to: fixed, by: MemoryLayout<Word>.size) {
                words.storeBytes(of: number(offset, Word.self), toByteOffset: offset, as: Word.self)
            }
        }
        withUnsafeMutableBytes(of: &block) { $0.copyBytes(from: rest) }
        used = UInt32(rest.count)
        return count
    }
}
