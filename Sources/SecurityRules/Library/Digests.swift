import Glibc

/// The digests of the rules language, for the short inputs that rules hash.
enum Digests {
    /// A reflected 32-bit CRC, least significant byte first.
    static func crc32(_ bytes: [UInt8], polynomial: UInt32) -> [UInt8] {
        var crc: UInt32 = ~0
        for byte in bytes {
            crc ^= UInt32(byte)
            for _ in 0..<8 { crc = crc >> 1 ^ (crc & 1 == 1 ? polynomial : 0) }
        }
        return littleEndian(~crc)
    }

    private static func littleEndian(_ value: UInt32) -> [UInt8] {
        (0..<4).map { UInt8(truncatingIfNeeded: value >> (8 * $0)) }
    }

    private static func bigEndian(_ value: UInt32) -> [UInt8] { littleEndian(value).reversed() }

    /// Pads the message, appends its length and splits it into blocks of sixteen words.
    private static func blocks(_ bytes: [UInt8], isBigEndian: Bool) -> [[UInt32]] {
        var padded = bytes + [0x80]
        padded += [UInt8](repeating: 0, count: (120 - padded.count % 64) % 64)
        let length = UInt64(bytes.count) * 8
        let lengthBytes = (0..<8).map { UInt8(truncatingIfNeeded: length >> (8 * UInt64($0))) }
        padded += isBigEndian ? lengthBytes.reversed() : lengthBytes
        return stride(from: 0, to: padded.count, by: 64).map { block in
            (0..<16).map { word in
                (0..<4).reduce(UInt32(0)) { value, index in
                    let byte = UInt32(padded[block + word * 4 + (isBigEndian ? index : 3 - index)])
                    return value << 8 | byte
                }
            }
        }
    }

    // MARK: MD5 (RFC 1321)

    private static let md5Shifts: [UInt32] = [
        7, 12, 17, 22, 5, 9, 14, 20, 4, 11, 16, 23, 6, 10, 15, 21,
    ]

    /// 2³² times the absolute sine of 1, 2, …, 64, rounded down.
    private static let md5Constants: [UInt32] = (1...64).map {
        UInt32(fabs(sin(Double($0))) * 4_294_967_296)
    }

    static func md5(_ bytes: [UInt8]) -> [UInt8] {
        var state: [UInt32] = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476]
        for block in blocks(bytes, isBigEndian: false) {
            var (a, b, c, d) = (state[0], state[1], state[2], state[3])
            for index in 0..<64 {
                let (mixed, word): (UInt32, Int)
                switch index / 16 {
                case 0: (mixed, word) = (b & c | ~b & d, index)
                case 1: (mixed, word) = (d & b | ~d & c, (5 * index + 1) % 16)
                case 2: (mixed, word) = (b ^ c ^ d, (3 * index + 5) % 16)
                default: (mixed, word) = (c ^ (b | ~d), 7 * index % 16)
                }
                let sum = a &+ mixed &+ md5Constants[index] &+ block[word]
                let shift = md5Shifts[index / 16 * 4 + index % 4]
                (a, d, c, b) = (d, c, b, b &+ (sum << shift | sum >> (32 - shift)))
            }
            for (index, value) in [a, b, c, d].enumerated() { state[index] &+= value }
        }
        return state.flatMap(littleEndian)
    }

    // MARK: SHA-256 (FIPS 180-4)

    private static let primes: [Int] = (2...311).filter { number in
        !(2..<number).contains { $0 * $0 <= number && number % $0 == 0 }
    }

    /// The first 32 bits of the fractional part of the cube roots of the primes.
    private static let sha256Constants: [UInt32] = primes.prefix(64).map {
        fraction(cbrt(Double($0)))
    }

    static func sha256(_ bytes: [UInt8]) -> [UInt8] {
        var state: [UInt32] = primes.prefix(8).map { fraction(Double($0).squareRoot()) }
        for block in blocks(bytes, isBigEndian: true) {
            var words = block
            for index in 16..<64 {
                let (a, b) = (words[index - 15], words[index - 2])
                let s0 = rotate(a, 7) ^ rotate(a, 18) ^ a >> 3
                let s1 = rotate(b, 17) ^ rotate(b, 19) ^ b >> 10
                words.append(words[index - 16] &+ s0 &+ words[index - 7] &+ s1)
            }
            var h = state
            for index in 0..<64 {
                let s1 = rotate(h[4], 6) ^ rotate(h[4], 11) ^ rotate(h[4], 25)
                let choice = h[4] & h[5] ^ ~h[4] & h[6]
                let t1 = h[7] &+ s1 &+ choice &+ sha256Constants[index] &+ words[index]
                let s0 = rotate(h[0], 2) ^ rotate(h[0], 13) ^ rotate(h[0], 22)
                let majority = h[0] & h[1] ^ h[0] & h[2] ^ h[1] & h[2]
                h = [t1 &+ s0 &+ majority, h[0], h[1], h[2], h[3] &+ t1, h[4], h[5], h[6]]
            }
            for index in 0..<8 { state[index] &+= h[index] }
        }
        return state.flatMap(bigEndian)
    }

    private static func rotate(_ value: UInt32, _ count: UInt32) -> UInt32 {
        value >> count | value << (32 - count)
    }

    private static func fraction(_ value: Double) -> UInt32 {
        UInt32((value - value.rounded(.down)) * 4_294_967_296)
    }
}

/// Converts bytes to text.
enum ByteText {
    private static let alphabet = Array("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_".utf8)

    /// The base64 of RFC 4648 section 5, with padding.
    static func base64URL(_ bytes: [UInt8]) -> [UInt8] {
        var result: [UInt8] = []
        for start in stride(from: 0, to: bytes.count, by: 3) {
            let group = bytes[start..<min(start + 3, bytes.count)]
            let bits = group.reduce(0) { $0 << 8 | Int($1) } << (8 * (3 - group.count))
            for index in 0..<4 {
                let digit = alphabet[bits >> (18 - 6 * index) & 63]
                result.append(index <= group.count ? digit : UInt8(ascii: "="))
            }
        }
        return result
    }

    static func hexadecimal(_ bytes: [UInt8]) -> [UInt8] {
        let digits = Array("0123456789ABCDEF".utf8)
        return bytes.flatMap { [digits[Int($0 >> 4)], digits[Int($0 & 15)]] }
    }
}
