import Testing

@testable import SluiceStorage

@Suite struct ChecksumTests {
    @Test func knownValues() {
        // RFC 3720, section B.4, and the usual check value.
        #expect(CRC32C(Array("123456789".utf8)).value == 0xe306_9283)
        #expect(CRC32C(Array(repeating: 0, count: 32)).value == 0x8a91_36aa)
        #expect(CRC32C(Array(repeating: 0xff, count: 32)).value == 0x62a8_ab43)
        #expect(CRC32C([]).value == 0)
        // RFC 1321, section A.5.
        for (text, digest) in [
            ("", "1B2M2Y8AsgTpgAmY7PhCfg=="), ("abc", "kAFQmDzST7DWlj99KOF/cg=="),
            (String(repeating: "1234567890", count: 8), "V+30oivjyVWsSdouIQe2eg=="),
        ] {
            var md5 = MD5()
            md5.update(Array(text.utf8))
            #expect(md5.base64() == digest)
        }
    }

    @Test func partsAreTheWhole() {
        let bytes = (0..<1000).map { UInt8(truncatingIfNeeded: $0 &* 31 &+ $0 >> 3) }
        let whole = CRC32C(bytes)
        #expect(bytes.withUnsafeBytes { CRC32C.byTable(0, $0) } == whole.value)
        var all = MD5()
        all.update(bytes)
        let digest = all.base64()
        for cut in [0, 1, 7, 8, 63, 64, 65, 127, 500, 999, 1000] {
            var sum = CRC32C(Array(bytes.prefix(cut)))
            sum.append(CRC32C(Array(bytes.dropFirst(cut))))
            #expect(sum == whole)
            var md5 = MD5()
            md5.update(Array(bytes.prefix(cut)))
            md5.update(Array(bytes.dropFirst(cut)))
            #expect(md5.base64() == digest)
        }
    }
}
