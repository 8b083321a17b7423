import BucketConformance
import Glibc
import OpenSSL
import System
import Testing

@Suite("Digests")
struct DigestTests {
    static func hexadecimal(_ bytes: [UInt8]) -> String {
        bytes.map { byte in
            let text = String(byte, radix: 16)
            return text.count == 1 ? "0" + text : text
        }.joined()
    }

    @Test(
        "RFC 1321, appendix A.5",
        arguments: [
            ("", "d41d8cd98f00b204e9800998ecf8427e"), ("a", "0cc175b9c0f1b6a831c399e269772661"),
            ("abc", "900150983cd24fb0d6963f7d28e17f72"),
            ("message digest", "f96b697d7cb7938d525a2f31aaf161d0"),
            ("abcdefghijklmnopqrstuvwxyz", "c3fcd3d76192e4007dfb496cca67e13b"),
            (
                "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789",
                "d174ab98d277d9f5a5611c2c9f419d9f"
            ),
            (
                "12345678901234567890123456789012345678901234567890123456789012345678901234567890",
                "57edf4a22be3c955ac49da2e2107b67a"
            ),
        ])
    func md5(_ text: String, _ wanted: String) {
        #expect(Self.hexadecimal(digest(.md5, Array(text.utf8))) == wanted)
    }

    @Test("A process that ends while its threads encrypt does not crash")
    func exits() async {
        await #expect(processExitsWith: .success) {
            // Runs after what OpenSSL would register at its first use, and leaves the threads time.
            atexit { usleep(200_000) }
            let cipher = AES256GCM(key: Array(repeating: 1, count: AES256GCM.keyBytes))
            let nonce = AES256GCM.randomNonce()
            _ = cipher.seal([1], nonce: nonce, authenticated: [])
            for _ in 0..<4 {
                _ = startThread {
                    while true { _ = cipher.seal([1], nonce: nonce, authenticated: []) }
                }
            }
            exit(EXIT_SUCCESS)
        }
    }

    @Test("FIPS 180-4's example")
    func sha() {
        let bytes = Array("abc".utf8)
        #expect(
            Self.hexadecimal(digest(.sha256, bytes))
                == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
        #expect(
            Self.hexadecimal(digest(.sha512, bytes))
                == "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a"
                + "2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f")
    }

    @Test("The CRCs' check values, of the same bytes as the catalogue's, and SHA-1's example")
    func checks() {
        let bytes = Array("123456789".utf8)
        var (crc32, crc64) = (CRC32(), CRC64NVME())
        #expect(crc32.value == 0 && crc64.value == 0)
        crc32.update(bytes.span.bytes)
        crc64.update(bytes.span.bytes)
        #expect(crc32.value == 0xcbf4_3926)
        #expect(crc64.value == 0xae8b_1486_0a79_9888)
        #expect(Self.hexadecimal(digest(.sha1, Array("abc".utf8))) == "a9993e364706816aba3e25717850c26c9cd0d89d")
    }

    @Test("The CRCs agree with their tables in any pieces and at any alignment, and are combined")
    func crcPieces() {
        let bytes = pattern(9000, seed: 9)
        for (start, cut, end) in [(0, 2500, 9000), (1, 3, 8999), (3, 50, 100), (7, 7, 8), (5, 5, 5), (0, 0, 9000)]
            + (0...300).map({ (5, 5 + $0, 500) }) + (1000...1300).map({ (3, 3 + $0, 5000) })
        {
            let (first, second) = (
                bytes.span.bytes.extracting(start..<cut), bytes.span.bytes.extracting(cut..<end)
            )
            let whole = bytes.span.bytes.extracting(start..<end)
            var (crc32, crc64) = (CRC32(), CRC64NVME())
            crc32.update(first)
            crc64.update(first)
            var (later32, later64) = (CRC32(), CRC64NVME())
            later32.update(second)
            later64.update(second)
            let count = UInt64(end - cut)
            #expect(CRC32.combined(crc32.value, later32.value, count: count) == CRC32.valueByTable(whole))
            #expect(CRC64NVME.combined(crc64.value, later64.value, count: count) == CRC64NVME.valueByTable(whole))
            // Continued from a saved value.
            crc32 = CRC32(after: crc32.value)
            crc64 = CRC64NVME(after: crc64.value)
            crc32.update(second)
            crc64.update(second)
            #expect(crc32.value == CRC32.valueByTable(whole), "\(start), \(cut), \(end)")
            #expect(crc64.value == CRC64NVME.valueByTable(whole), "\(start), \(cut), \(end)")
        }
    }

    @Test("A reused context starts a new digest, and pieces give the digest of the whole")
    func reuse() {
        let bytes = pattern(10_000, seed: 4)
        let whole = digest(.md5, bytes)
        for step in [1, 7, 64, 4096] {
            let pieces = Digest(.md5)
            for start in stride(from: 0, to: bytes.count, by: step) {
                let end = min(bytes.count, start + step)
                pieces.update(bytes.span.bytes.extracting(start..<end))
            }
            #expect(pieces.finish() == whole)
        }
        let dropped = Digest(.md5)
        dropped.update(bytes.span.bytes)
        #expect(digest(.md5, []) == Digest(.md5).finish())
    }

    /// Vectors of RFC 3720, appendix B.4, where the least significant byte comes first.
    static let vectors: [([UInt8], UInt32)] = [
        ([], 0), (Array("123456789".utf8), 0xe306_9283),
        ([UInt8](repeating: 0, count: 32), 0x8a91_36aa),
        ([UInt8](repeating: 0xff, count: 32), 0x62a8_ab43),
        ((0..<32).map { UInt8($0) }, 0x46dd_794e),
        ((0..<32).map { UInt8(31 - $0) }, 0x113f_db5c),
        (
            [
                0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x14, 0, 0, 0, 0, 0, 0x04, 0,
                0,
                0, 0, 0x14, 0, 0, 0, 0x18, 0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0, 0,
            ], 0xd996_3a56
        ),
    ]

    @Test("RFC 3720, appendix B.4", arguments: vectors)
    func crc32c(_ bytes: [UInt8], _ wanted: UInt32) {
        var checksum = CRC32C()
        checksum.update(bytes.span.bytes)
        #expect(checksum.value == wanted)
        #expect(CRC32C.valueByTable(bytes.span.bytes) == wanted)
    }

    @Test("The table and the instructions agree, in any pieces and at any alignment")
    func crc32cPieces() {
        // Covers both lane lengths and blocks of vectors several times, with remainders.
        let bytes = pattern(9000, seed: 8)
        for (start, end, cut) in [
            (0, 9000, 2500), (1, 8999, 3), (3, 100, 50), (7, 8, 7), (5, 5, 5), (2, 3461, 3074),
        ] + (360...420).map({ (0, 400 + $0, $0) }) + (1000...1300).map({ (3, 5000, 3 + $0) }) {
            var pieces = CRC32C()
            pieces.update(bytes.span.bytes.extracting(start..<cut))
            pieces.update(bytes.span.bytes.extracting(cut..<end))
            let whole = CRC32C.valueByTable(bytes.span.bytes.extracting(start..<end))
            #expect(pieces.value == whole)
        }
    }
}
