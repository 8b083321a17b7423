import Glibc
import OpenSSL
import System
import Testing
import Wire

@testable import Credentials

@Suite("Signature Version 4")
struct AWSSignerTests {
    private static let fixtures: String = {
        let here = #filePath
        return here[..<here.lastIndex(of: "/")!] + "/Fixtures/"
    }()

    private static func read(_ name: String) throws -> [UInt8] {
        let descriptor = try SystemError.check("open") { open(fixtures + name, O_RDONLY) }
        defer { close(descriptor) }
        var bytes = [UInt8](repeating: 0, count: 1 << 20)
        let count = Glibc.read(descriptor, &bytes, bytes.count)
        return Array(bytes[..<count])
    }

    private static let methods: [String: StaticString] = [
        "GET": "GET", "PUT": "PUT", "HEAD": "HEAD", "DELETE": "DELETE", "POST": "POST",
    ]

    /// Compares with signatures that `Tests/EndToEnd/buckets/s3_signatures.py` made with botocore.
    @Test func signsAsBotocoreDoes() throws {
        let lines = try Self.read("signatures.jsonl").split(separator: UInt8(ascii: "\n"))
        #expect(lines.count == 400)
        for line in lines {
            let json = try JSONReader.parse(Array(line))
            func text(_ key: String) throws -> String { try #require(json[key]?.text) }
            var fields = HeaderFields()
            for pair in try #require(json["fields"]?.elements) {
                let parts = try #require(pair.elements)
                fields.append(name: try #require(parts[0].text), try #require(parts[1].text))
            }
            let payload: AWSSigner.Payload =
                switch try text("payload") {
                case "UNSIGNED-PAYLOAD": .unsigned
                case "STREAMING-AWS4-HMAC-SHA256-PAYLOAD": .chunks
                default: .bytes(try #require(Hexadecimal.decode(try text("body").utf8)))
                }
            let target = try text("target")
            let wanted = try text("authorization")
            AWSSigner(region: try text("region")).sign(
                &fields, method: try #require(Self.methods[try text("method")]), target: target,
                host: try text("host"), payload: payload,
                with: AWSCredentials(
                    accessKey: "AKIDEXAMPLE", secretKey: try text("secret"),
                    sessionToken: json["token"]?.text),
                time: try #require(Int64(try text("time"))))
            #expect(fields["authorization"] == wanted, "\(target)")
        }
    }

    /// The example of "Signature Calculations for the Authorization Header: Transferring Payload in Multiple Chunks".
    @Test func signsChunksAsDocumented() throws {
        var fields = HeaderFields()
        fields.append("content-encoding", "aws-chunked")
        fields.append("content-length", "66824")
        fields.append("x-amz-decoded-content-length", "66560")
        fields.append("x-amz-storage-class", "REDUCED_REDUNDANCY")
        var signer = AWSSigner(region: "us-east-1").sign(
            &fields, method: "PUT", target: "/examplebucket/chunkObject.txt",
            host: "s3.amazonaws.com", payload: .chunks,
            with: AWSCredentials(
                accessKey: "AKIAIOSFODNN7EXAMPLE",
                secretKey: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
            time: 1_369_353_600)
        let seed = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
        #expect(fields["authorization"]?.hasSuffix(seed) == true)
        for (count, signature) in [
            (65_536, "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648"),
            (1024, "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497"),
            (0, "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"),
        ] {
            let chunk = [UInt8](repeating: UInt8(ascii: "a"), count: count)
            #expect(
                signer.head(of: chunk.span.bytes)
                    == "\(String(count, radix: 16));chunk-signature=\(signature)\r\n")
        }
        #expect(ChunkSigner.encodedLength(66_560, chunk: 65_536) == 66_824)
    }

    /// RFC 4231, test cases 1, 2 and 6.
    @Test func hmac() {
        for (key, message, digest) in [
            (
                [UInt8](repeating: 0x0b, count: 20), "Hi There",
                "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"
            ),
            (
                Array("Jefe".utf8), "what do ya want for nothing?",
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
            ),
            (
                [UInt8](repeating: 0xaa, count: 131),
                "Test Using Larger Than Block-Size Key - Hash Key First",
                "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
            ),
        ] {
            let found = HMAC.sha256(key: key, Array(message.utf8).span.bytes)
            #expect(Hexadecimal.encode(found) == digest)
        }
    }
}
