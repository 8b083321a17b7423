/// A bijection in which every input bit affects every output bit (the finalizer of SplitMix64).
package func mixed(_ value: UInt64) -> UInt64 {
    var value = value
    value = (value ^ value >> 30) &* 0xbf58_476d_1ce4_e5b9
    value = (value ^ value >> 27) &* 0x94d0_49bb_1331_11eb
    return value ^ value >> 31
}

/// Combines the Castagnoli CRCs (RFC 3720, appendix B.4) of pieces without reading their bytes again.
package enum CRC32CMatrix {
    /// The reflected polynomial.
    package static let polynomial: UInt32 = 0x82f6_3b78

    /// The checksum of bytes followed by `count` others.
    /// - Parameters:
    ///   - first: The checksum of the former.
    ///   - second: The checksum of the latter.
    package static func combined(_ first: UInt32, _ second: UInt32, count: UInt64) -> UInt32 {
        // Zeros are appended by powers of two: the matrix of one zero byte, squared again and again.
        var matrix = zeroByte
        var left = count
        var sum = first
        while left > 0 {
            if left & 1 == 1 { sum = times(matrix, sum) }
            left >>= 1
            if left > 0 { matrix = matrix.map { [matrix] in times(matrix, $0) } }
        }
        return sum ^ second
    }

    // A matrix has 32 columns over GF(2).
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
