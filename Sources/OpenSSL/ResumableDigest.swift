import COpenSSL

/// A message digest whose state can be saved, so that another process can continue it. A copy is a snapshot.
///
/// It uses OpenSSL's older functions: the state of those behind ``Digest`` can't be read.
public struct ResumableDigest: Sendable {
    private enum Context {
        case md5(MD5_CTX)
        case sha256(SHA256_CTX)
        case sha512(SHA512_CTX)
    }
    private var context: Context

    /// Begins a digest of nothing.
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

/// A saved state: the chaining words, the number of bytes so far (64 bits), and those of the last block that is not full.
/// All numbers begin with their highest byte.
extension ResumableDigest {
    /// What ``init(_:savedState:)`` continues from, on any machine: at most 199 bytes.
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
        }
    }

    /// Continues from a saved state; nil where it is not one of this algorithm.
    public init?(_ algorithm: Digest.Algorithm, savedState: some Collection<UInt8>) {
        self.init(algorithm)
        let saved = Array(savedState)
        switch context {
        case .md5(var state):
            guard let parts = ResumableDigest.parts(saved, UInt32.self, words: 4, block: 64)
            else { return nil }
            (state.A, state.B, state.C, state.D) =
                (parts.words[0], parts.words[1], parts.words[2], parts.words[3])
            (state.Nh, state.Nl) = ResumableDigest.bits(parts.count)
            state.num = UInt32(parts.rest.count)
            withUnsafeMutableBytes(of: &state.data) { $0.copyBytes(from: parts.rest) }
            context = .md5(state)
        case .sha256(var state):
            guard let parts = ResumableDigest.parts(saved, UInt32.self, words: 8, block: 64)
            else { return nil }
            withUnsafeMutableBytes(of: &state.h) { target in
                parts.words.withUnsafeBytes { target.copyBytes(from: $0) }
            }
            (state.Nh, state.Nl) = ResumableDigest.bits(parts.count)
            state.num = UInt32(parts.rest.count)
            withUnsafeMutableBytes(of: &state.data) { $0.copyBytes(from: parts.rest) }
            context = .sha256(state)
        case .sha512(var state):
            guard let parts = ResumableDigest.parts(saved, UInt64.self, words: 8, block: 128)
            else { return nil }
            withUnsafeMutableBytes(of: &state.h) { target in
                parts.words.withUnsafeBytes { target.copyBytes(from: $0) }
            }
            (state.Nh, state.Nl) = (parts.count >> 61, parts.count << 3)
            state.num = UInt32(parts.rest.count)
            withUnsafeMutableBytes(of: &state.u) { $0.copyBytes(from: parts.rest) }
            context = .sha512(state)
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

    private static func parts<Word: FixedWidthInteger>(
        _ saved: [UInt8], _: Word.Type, words: Int, block: UInt64
    ) -> (words: [Word], count: UInt64, rest: ArraySlice<UInt8>)? {
        let fixed = words * MemoryLayout<Word>.size
        guard saved.count >= fixed + 8 else { return nil }
        func number<Number: FixedWidthInteger>(_ offset: Int, _: Number.Type) -> Number {
            saved[offset..<offset + MemoryLayout<Number>.size].reduce(0) { $0 << 8 | Number($1) }
        }
        let count = number(fixed, UInt64.self)
        let rest = saved[(fixed + 8)...]
        guard UInt64(rest.count) == count % block else { return nil }
        let size = MemoryLayout<Word>.size
        return ((0..<words).map { number($0 * size, Word.self) }, count, rest)
    }
}
