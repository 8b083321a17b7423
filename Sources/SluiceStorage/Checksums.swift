import Foundation
import Wire

#if os(Linux)
    import OpenSSL
#else
    import CryptoKit
#endif

/// CRC-32C (RFC 9260, appendix A). Checksums of pieces can be combined, so each piece of an upload is read only once.
struct CRC32C: Equatable, Sendable {
    private(set) var value: UInt32 = 0
    /// The number of bytes.
    private(set) var count: UInt64 = 0

    init() {}

    /// The checksum of these bytes.
    init(_ bytes: [UInt8]) { update(bytes) }

    mutating func update(_ bytes: [UInt8]) {
        #if os(Linux)
            var sum = OpenSSL.CRC32C(after: value)
            sum.update(bytes.span.bytes)
            value = sum.value
        #else
            value = bytes.withUnsafeBytes { CRC32C.byTable(value, $0) }
        #endif
        count += UInt64(bytes.count)
    }

    /// The checksum of these bytes followed by the bytes of `other`.
    mutating func append(_ other: CRC32C) {
        value = CRC32CMatrix.combined(value, other.value, count: other.count)
        count += other.count
    }

    /// Base64 of the bytes, the most significant first.
    var base64: String { withUnsafeBytes(of: value.bigEndian) { Base64.encode(Array($0)) } }

    // MARK: Tables

    /// Eight tables of 256 entries, one after another: entry `256 * k + b` is the checksum of `b` and `k` zeros.
    private static let tables: [UInt32] = {
        var tables = [UInt32](repeating: 0, count: 8 * 256)
        for byte in 0..<256 {
            var crc = UInt32(byte)
            for _ in 0..<8 { crc = crc & 1 == 1 ? crc >> 1 ^ CRC32CMatrix.polynomial : crc >> 1 }
            tables[byte] = crc
        }
        for index in 256..<tables.count {
            let previous = tables[index - 256]
            tables[index] = previous >> 8 ^ tables[Int(previous & 0xff)]
        }
        return tables
    }()

    /// The checksum after `value`, eight bytes at a time, where there is no OpenSSL.
    static func byTable(_ value: UInt32, _ bytes: UnsafeRawBufferPointer) -> UInt32 {
        tables.withUnsafeBufferPointer { table in
            var crc = ~value
            var index = 0
            while index + 8 <= bytes.count {
                let word = UInt64(littleEndian: bytes.loadUnaligned(fromByteOffset: index, as: UInt64.self))
                let mixed = word ^ UInt64(crc)
                crc = 0
                for lane in 0..<8 {
                    crc ^= table[(7 - lane) << 8 | Int(truncatingIfNeeded: mixed >> (8 * lane) & 0xff)]
                }
                index += 8
            }
            while index < bytes.count {
                crc = crc >> 8 ^ table[Int((crc ^ UInt32(bytes[index])) & 0xff)]
                index += 1
            }
            return ~crc
        }
    }
}

/// MD5 (RFC 1321), for objects of which the store knows no other checksum.
struct MD5 {
    #if os(Linux)
        private let digest = Digest(.md5)

        mutating func update(_ bytes: [UInt8]) { digest.update(bytes.span.bytes) }

        /// The digest of everything, in base64.
        consuming func base64() -> String { Base64.encode(digest.finish()) }
    #else
        private var digest = Insecure.MD5()

        mutating func update(_ bytes: [UInt8]) { digest.update(data: bytes) }

        /// The digest of everything, in base64.
        consuming func base64() -> String { Base64.encode(Array(digest.finalize())) }
    #endif
}

/// Verifies bytes by the best checksum that the gateway reports of an object.
struct ExpectedChecksum {
    private var crc32c: CRC32C?
    private var md5: MD5?
    private let object: StorageMetadata

    init(_ object: StorageMetadata) {
        self.object = object
        if object.crc32c != nil { crc32c = CRC32C() } else if object.md5Hash != nil { md5 = MD5() }
    }

    /// Whether the gateway reports a checksum.
    static func isKnown(of object: StorageMetadata) -> Bool {
        object.crc32c != nil || object.md5Hash != nil
    }

    mutating func update(_ bytes: [UInt8]) {
        crc32c?.update(bytes)
        md5?.update(bytes)
    }

    /// Whether the bytes are the object's. No bytes may be added afterwards.
    consuming func matches() -> Bool {
        if let crc32c { return crc32c.base64 == object.crc32c }
        if let md5 { return md5.base64() == object.md5Hash }
        return true
    }
}
