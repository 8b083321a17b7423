import COpenSSL

/// A message digest of bytes that arrive in pieces. It may be used from any thread, but only from one at a time.
public final class Digest {
    /// The digest algorithm.
    public enum Algorithm: Int, Sendable, CaseIterable {
        /// RFC 1321, 16 bytes. For integrity checks that clients request, never for security.
        case md5
        /// FIPS 180-4, 32 bytes.
        case sha256
        /// FIPS 180-4, 64 bytes.
        case sha512
        /// FIPS 180-4, 20 bytes. For integrity checks that clients request, never for security.
        case sha1
    }

    /// OpenSSL's names of the algorithms, in the order of their raw values.
    private static let names = ["MD5", "SHA2-256", "SHA2-512", "SHA1"]

    /// The fetched algorithms. They are never changed.
    ///
    /// Safety: OpenSSL's algorithms may be used from any thread.
    nonisolated(unsafe) private static let types = names.map { name in
        // "-fips" permits MD5 as a checksum even if the system's policy allows only approved algorithms.
        let type = EVP_MD_fetch(nil, name, nil) ?? EVP_MD_fetch(nil, name, "-fips")
        guard let type else { preconditionFailure("OpenSSL has no \(name)") }
        return type
    }

    private let algorithm: Algorithm
    private let context: OpaquePointer

    /// Starts a new digest.
    public init(_ algorithm: Algorithm) {
        self.algorithm = algorithm
        guard let context = EVP_MD_CTX_new(),
            EVP_DigestInit_ex(context, Digest.types[algorithm.rawValue], nil) == 1
        else { preconditionFailure("OpenSSL can't begin \(algorithm)") }
        self.context = context
    }

    deinit { EVP_MD_CTX_free(context) }

    /// Adds bytes.
    public func update(_ bytes: RawSpan) {
        bytes.withUnsafeBytes {
            precondition(EVP_DigestUpdate(context, $0.baseAddress, $0.count) == 1)
        }
    }

    /// Returns the digest of all bytes. No bytes may be added afterwards.
    public func finish() -> [UInt8] {
        let length = Int(EVP_MD_get_size(Digest.types[algorithm.rawValue]))
        return [UInt8](unsafeUninitializedCapacity: length) { buffer, count in
            var written: UInt32 = 0
            precondition(EVP_DigestFinal_ex(context, buffer.baseAddress, &written) == 1)
            count = Int(written)
        }
    }
}

/// The Castagnoli CRC (RFC 3720, appendix B.4), computed with the processor's instructions if available.
public struct CRC32C: Sendable, Equatable {
    private var state: UInt32 = 0xffff_ffff

    /// Starts a new checksum.
    public init() {}

    /// Continues from the checksum of the preceding bytes.
    public init(after value: UInt32) { state = ~value }

    /// The checksum of all bytes so far.
    public var value: UInt32 { ~state }

    /// Adds bytes.
    public mutating func update(_ bytes: RawSpan) {
        state = bytes.withUnsafeBytes { buffer in
            guard let start = buffer.baseAddress else { return state }
            return switch CRC32C.instructions {
            case .vectors: sluice_crc32c_by_vectors(state, start, buffer.count)
            case .checksum: sluice_crc32c(state, start, buffer.count)
            case .none: CRC32C.byTable(state, buffer)
            }
        }
    }

    private enum Instructions { case none, checksum, vectors }

    /// The instructions of the processor.
    private static let instructions: Instructions =
        sluice_crc32c_hardware() == 0 ? .none : sluice_crc32c_wide() == 0 ? .checksum : .vectors

    /// One table for each byte of an 8-byte word ("slicing by eight").
    private static let tables: [UInt32] = {
        var tables = [UInt32](repeating: 0, count: 8 * 256)
        for byte in 0..<256 {
            var value = UInt32(byte)
            for _ in 0..<8 { value = value & 1 == 1 ? value >> 1 ^ 0x82f6_3b78 : value >> 1 }
            tables[byte] = value
        }
        for index in 256..<tables.count {
            let before = tables[index - 256]
            tables[index] = before >> 8 ^ tables[Int(before & 0xff)]
        }
        return tables
    }()

    /// The checksum computed without the processor's instructions, for tests.
    package static func valueByTable(_ bytes: RawSpan) -> UInt32 {
        ~bytes.withUnsafeBytes { byTable(0xffff_ffff, $0) }
    }

    private static func byTable(_ state: UInt32, _ bytes: UnsafeRawBufferPointer) -> UInt32 {
        var state = state
        var offset = 0
        tables.withUnsafeBufferPointer { table in
            while offset + 8 <= bytes.count {
                let word =
                    UInt64(littleEndian: bytes.loadUnaligned(fromByteOffset: offset, as: UInt64.self)) ^ UInt64(state)
                state = 0
                for lane in 0..<8 {
                    state ^= table[(7 - lane) * 256 + Int(word >> (UInt64(lane) * 8) & 0xff)]
                }
                offset += 8
            }
            while offset < bytes.count {
                state = state >> 8 ^ table[Int((state ^ UInt32(bytes[offset])) & 0xff)]
                offset += 1
            }
        }
        return state
    }
}
