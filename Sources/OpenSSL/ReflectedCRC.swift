import COpenSSL

/// The CRC of ISO 3309, as in zlib. 4 bytes.
public struct CRC32: Sendable, Equatable {
    private static let code = ReflectedCRC(polynomial: 0xedb8_8320, width: 32)
    private var state: UInt64 = 0xffff_ffff

    /// Starts a new checksum.
    public init() {}

    /// Continues from the checksum of the preceding bytes.
    public init(after value: UInt32) { state = UInt64(~value) }

    /// The checksum of all bytes so far.
    public var value: UInt32 { ~UInt32(truncatingIfNeeded: state) }

    /// Adds bytes.
    public mutating func update(_ bytes: RawSpan) { state = bytes.withUnsafeBytes { CRC32.code.update(state, $0) } }

    /// The checksum of bytes followed by `count` others, from the checksums of both.
    public static func combined(_ first: UInt32, _ second: UInt32, count: UInt64) -> UInt32 {
        UInt32(truncatingIfNeeded: code.shifted(UInt64(first), by: count)) ^ second
    }

    /// The checksum computed without the processor's instructions, for tests.
    package static func valueByTable(_ bytes: RawSpan) -> UInt32 {
        ~UInt32(truncatingIfNeeded: bytes.withUnsafeBytes { code.byTable(0xffff_ffff, $0) })
    }
}

/// The CRC of NVM Express (NVM Command Set, section 5.2.1.3.4), which S3 calls CRC64NVME. 8 bytes.
public struct CRC64NVME: Sendable, Equatable {
    private static let code = ReflectedCRC(polynomial: 0x9a6c_9329_ac4b_c9b5, width: 64)
    private var state = UInt64.max

    /// Starts a new checksum.
    public init() {}

    /// Continues from the checksum of the preceding bytes.
    public init(after value: UInt64) { state = ~value }

    /// The checksum of all bytes so far.
    public var value: UInt64 { ~state }

    /// Adds bytes.
    public mutating func update(_ bytes: RawSpan) {
        state = bytes.withUnsafeBytes { CRC64NVME.code.update(state, $0) }
    }

    /// The checksum of bytes followed by `count` others, from the checksums of both.
    public static func combined(_ first: UInt64, _ second: UInt64, count: UInt64) -> UInt64 {
        code.shifted(first, by: count) ^ second
    }

    /// The checksum computed without the processor's instructions, for tests.
    package static func valueByTable(_ bytes: RawSpan) -> UInt64 {
        ~bytes.withUnsafeBytes { code.byTable(.max, $0) }
    }
}

extension CRC32C {
    private static let code = ReflectedCRC(polynomial: 0x82f6_3b78, width: 32)

    /// The checksum of bytes followed by `count` others, from the checksums of both.
    public static func combined(_ first: UInt32, _ second: UInt32, count: UInt64) -> UInt32 {
        UInt32(truncatingIfNeeded: code.shifted(UInt64(first), by: count)) ^ second
    }
}

/// A CRC of at most 64 bits whose least significant bit is the highest power. Long input is reduced by carry-less
/// multiplication if the processor has it, the rest is looked up in tables.
private struct ReflectedCRC: Sendable {
    private let polynomial: UInt64
    private let width: Int
    /// One table for each byte of an 8-byte word ("slicing by eight").
    private let tables: [UInt64]
    /// What moves a remainder by 64 and by 256 bytes.
    private let step64: (UInt64, UInt64)
    private let step256: (UInt64, UInt64)
    /// x^(8 · 2^n) modulo the polynomial.
    private let powers: [UInt64]

    private static let hasMultiplication = sluice_crc_hardware() != 0
    private static let hasWideMultiplication = sluice_crc_hardware() != 0 && sluice_crc32c_wide() != 0
    /// Shorter input is not reduced, in bytes.
    private static let shortest = 128
    private static let shortestWide = 1024

    /// - Parameter polynomial: Reflected, without its highest power.
    init(polynomial: UInt64, width: Int) {
        self.polynomial = polynomial
        self.width = width
        var tables = [UInt64](repeating: 0, count: 8 * 256)
        for byte in 0..<256 {
            var value = UInt64(byte)
            for _ in 0..<8 { value = value & 1 == 1 ? value >> 1 ^ polynomial : value >> 1 }
            tables[byte] = value
        }
        for index in 256..<tables.count {
            let before = tables[index - 256]
            tables[index] = before >> 8 ^ tables[Int(before & 0xff)]
        }
        self.tables = tables
        func power(_ exponent: Int) -> UInt64 {
            var value = UInt64(1) << UInt64(width - 1)
            for _ in 0..<exponent { value = value & 1 == 1 ? value >> 1 ^ polynomial : value >> 1 }
            return value
        }
        func step(_ bytes: Int) -> (UInt64, UInt64) {
            let up = UInt64(64 - width)
            return (power(8 * bytes + 63) << up, power(8 * bytes - 1) << up)
        }
        step64 = step(64)
        step256 = step(256)
        var powers = [power(8)]
        while powers.count < 64 {
            let last = powers[powers.count - 1]
            powers.append(ReflectedCRC.product(last, last, polynomial, width))
        }
        self.powers = powers
    }

    func update(_ state: UInt64, _ bytes: UnsafeRawBufferPointer) -> UInt64 {
        guard ReflectedCRC.hasMultiplication, bytes.count >= ReflectedCRC.shortest, let start = bytes.baseAddress else {
            return byTable(state, bytes)
        }
        let isWide = ReflectedCRC.hasWideMultiplication && bytes.count >= ReflectedCRC.shortestWide
        let unit = isWide ? 256 : 64
        let count = bytes.count / unit * unit
        var factors = isWide ? step256 : step64
        let reduced = withUnsafeTemporaryAllocation(byteCount: unit, alignment: 64) { rest in
            withUnsafeBytes(of: &factors) { factors in
                let factors = factors.assumingMemoryBound(to: UInt64.self).baseAddress
                let bytes = start.assumingMemoryBound(to: UInt8.self)
                let target = rest.assumingMemoryBound(to: UInt8.self).baseAddress
                if isWide {
                    sluice_crc_reduce_wide(state, factors, bytes, count, target)
                } else {
                    sluice_crc_reduce(state, factors, bytes, count, target)
                }
            }
            let rest = UnsafeRawBufferPointer(rest)
            // Once more, to 64 bytes.
            return isWide ? update(0, rest) : byTable(0, rest)
        }
        return byTable(reduced, UnsafeRawBufferPointer(rebasing: bytes[count...]))
    }

    func byTable(_ state: UInt64, _ bytes: UnsafeRawBufferPointer) -> UInt64 {
        var state = state
        var offset = 0
        tables.withUnsafeBufferPointer { table in
            while offset + 8 <= bytes.count {
                let word = UInt64(littleEndian: bytes.loadUnaligned(fromByteOffset: offset, as: UInt64.self)) ^ state
                state = 0
                for lane in 0..<8 {
                    state ^= table[(7 - lane) * 256 + Int(word >> (UInt64(lane) * 8) & 0xff)]
                }
                offset += 8
            }
            while offset < bytes.count {
                state = state >> 8 ^ table[Int((state ^ UInt64(bytes[offset])) & 0xff)]
                offset += 1
            }
        }
        return state
    }

    /// A remainder after `count` zero bytes.
    func shifted(_ remainder: UInt64, by count: UInt64) -> UInt64 {
        var (value, left, index) = (remainder, count, 0)
        while left > 0 {
            if left & 1 == 1 { value = ReflectedCRC.product(value, powers[index], polynomial, width) }
            left >>= 1
            index += 1
        }
        return value
    }

    /// The product of two remainders modulo the polynomial.
    private static func product(_ first: UInt64, _ second: UInt64, _ polynomial: UInt64, _ width: Int) -> UInt64 {
        var (sum, value) = (UInt64(0), second)
        for bit in stride(from: width - 1, through: 0, by: -1) {
            if first >> UInt64(bit) & 1 == 1 { sum ^= value }
            value = value & 1 == 1 ? value >> 1 ^ polynomial : value >> 1
        }
        return sum
    }
}
