import Foundation

/// MD5 (RFC 1321), for objects of which the store knows no other checksum.
struct MD5 {
    private var state: (UInt32, UInt32, UInt32, UInt32) = (
        0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476
    )
    /// Bytes that are not a whole block yet.
    private var rest = Data()
    private var count: UInt64 = 0

    private static let shifts: [UInt32] = [
        7, 12, 17, 22, 5, 9, 14, 20, 4, 11, 16, 23, 6, 10, 15, 21,
    ]
    private static let sines: [UInt32] = (1...64).map {
        UInt32(abs(sin(Double($0))) * 4_294_967_296)
    }

    mutating func update(_ data: Data) {
        count += UInt64(data.count)
        rest.append(data)
        let whole = rest.count & ~63
        rest.withUnsafeBytes { bytes in
            for offset in stride(from: 0, to: whole, by: 64) { block(bytes, offset) }
        }
        rest = Data(rest.suffix(rest.count - whole))
    }

    /// The digest of everything, in base64.
    consuming func base64() -> String {
        let bits = count &* 8
        var end = Data([0x80])
        end.append(Data(count: Int((119 - count % 64) % 64)))
        withUnsafeBytes(of: bits.littleEndian) { end.append(contentsOf: $0) }
        update(end)
        var digest = Data()
        for word in [state.0, state.1, state.2, state.3] {
            withUnsafeBytes(of: word.littleEndian) { digest.append(contentsOf: $0) }
        }
        return digest.base64EncodedString()
    }

    private mutating func block(_ bytes: UnsafeRawBufferPointer, _ offset: Int) {
        var (a, b, c, d) = state
        for step in 0..<64 {
            let mixed: UInt32
            let word: Int
            switch step >> 4 {
            case 0: (mixed, word) = (b & c | ~b & d, step)
            case 1: (mixed, word) = (d & b | ~d & c, (5 * step + 1) & 15)
            case 2: (mixed, word) = (b ^ c ^ d, (3 * step + 5) & 15)
            default: (mixed, word) = (c ^ (b | ~d), (7 * step) & 15)
            }
            let input = UInt32(
                littleEndian: bytes.loadUnaligned(
                    fromByteOffset: offset + 4 * word, as: UInt32.self))
            let sum = a &+ mixed &+ MD5.sines[step] &+ input
            let shift = MD5.shifts[(step / 16) * 4 + step % 4]
            (a, d, c, b) = (d, c, b, b &+ (sum << shift | sum >> (32 - shift)))
        }
        state = (state.0 &+ a, state.1 &+ b, state.2 &+ c, state.3 &+ d)
    }
}
