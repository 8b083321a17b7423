import Foundation

/// CRC-32C (RFC 9260, appendix A), eight bytes at a time. The checksums of two parts can be combined into that of the
/// whole, so that each piece of an upload is read once.
struct CRC32C: Equatable {
    private(set) var value: UInt32 = 0
    /// The number of bytes.
    private(set) var count: UInt64 = 0

    mutating func update(_ data: Data) {
        value = data.withUnsafeBytes { CRC32C.update(value, $0) }
        count += UInt64(data.count)
    }

    /// The checksum of these bytes followed by those of `other`.
    mutating func append(_ other: CRC32C) {
        // Zeros are appended by powers of two: the matrix of one zero byte, squared again and again.
        var matrix = CRC32C.zeroByte
        var left = other.count
        var sum = value
        while left > 0 {
            if left & 1 == 1 { sum = CRC32C.times(matrix, sum) }
            left >>= 1
            if left > 0 { matrix = matrix.map { [matrix] in CRC32C.times(matrix, $0) } }
        }
        value = sum ^ other.value
        count += other.count
    }

    /// Base64 of the bytes, the most significant first.
    var base64: String { withUnsafeBytes(of: value.bigEndian) { Data($0) }.base64EncodedString() }

    // MARK: Tables

    private static let polynomial: UInt32 = 0x82f6_3b78

    /// Eight tables of 256 entries, one after another: entry `256 * k + b` is the checksum of `b` and `k` zeros.
    private static let tables: [UInt32] = {
        var tables = [UInt32](repeating: 0, count: 8 * 256)
        for byte in 0..<256 {
            var crc = UInt32(byte)
            for _ in 0..<8 { crc = crc & 1 == 1 ? crc >> 1 ^ polynomial : crc >> 1 }
            tables[byte] = crc
        }
        for index in 256..<tables.count {
            let previous = tables[index - 256]
            tables[index] = previous >> 8 ^ tables[Int(previous & 0xff)]
        }
        return tables
    }()

    private static func update(_ value: UInt32, _ bytes: UnsafeRawBufferPointer) -> UInt32 {
        tables.withUnsafeBufferPointer { table in
            var crc = ~value
            var index = 0
            while index + 8 <= bytes.count {
                let word = UInt64(
                    littleEndian: bytes.loadUnaligned(fromByteOffset: index, as: UInt64.self))
                let mixed = word ^ UInt64(crc)
                var sum: UInt32 = 0
                var lane = 0
                while lane < 8 {
                    sum ^=
                        table[(7 - lane) << 8 | Int(truncatingIfNeeded: mixed >> (8 * lane) & 0xff)]
                    lane += 1
                }
                crc = sum
                index += 8
            }
            while index < bytes.count {
                crc = crc >> 8 ^ table[Int((crc ^ UInt32(bytes[index])) & 0xff)]
                index += 1
            }
            return ~crc
        }
    }

    // MARK: Matrices of 32 columns over GF(2)

    private static func times(_ matrix: [UInt32], _ vector: UInt32) -> UInt32 {
        var sum: UInt32 = 0
        for bit in 0..<32 where vector >> bit & 1 == 1 { sum ^= matrix[bit] }
        return sum
    }

    /// Appends eight zero bits.
    private static let zeroByte: [UInt32] = {
        let bit = [polynomial] + (0..<31).map { UInt32(1) << $0 }
        let two = bit.map { times(bit, $0) }
        let four = two.map { times(two, $0) }
        return four.map { times(four, $0) }
    }()
}
