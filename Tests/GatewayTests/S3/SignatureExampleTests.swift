import Glibc
import Identity
import System
import Testing
import Wire

@testable import Gateway

/// Signatures that others have made: the examples of AWS's documentation, and botocore.
@Suite struct SignatureExampleTests {
    private func request(
        _ method: String, _ target: String, host: String = "examplebucket.s3.amazonaws.com",
        _ fields: [(String, String)], signed: String = "", signature: String
    ) -> S3SignedRequest {
        var header = HeaderFields()
        for (name, value) in fields { header.append(name: name, value) }
        if !signed.isEmpty {
            header.append(
                "authorization",
                "AWS4-HMAC-SHA256 Credential=\(Example.id)/20130524/us-east-1/s3/aws4_request,"
                    + "SignedHeaders=\(signed),Signature=\(signature)")
        }
        return S3SignedRequest(method: method, target: RequestTarget(target), authority: host, fields: header)
    }

    private func verify(_ request: S3SignedRequest, region: String? = "us-east-1") throws -> S3Authentication {
        try Example.verifier(region: region).verify(request, now: Example.time)
    }

    @Test("GET Object") func get() throws {
        let found = try verify(
            request(
                "GET", "/test.txt",
                [
                    ("range", "bytes=0-9"), ("x-amz-content-sha256", Example.emptyHash),
                    ("x-amz-date", "20130524T000000Z"),
                ],
                signed: "host;range;x-amz-content-sha256;x-amz-date",
                signature: "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"))
        #expect(found.uid == "alice" && found.accessKeyID == Example.id && !found.isPresigned && found.hoisted.isEmpty)
        guard case .sha256(let hash) = found.payload, case .accessKey(let principal) = found.signer else {
            Issue.record("another payload or signer")
            return
        }
        #expect(Hexadecimal.encode(hash) == Example.emptyHash)
        #expect(principal.kind == .accessKey && principal.source == "s3" && principal.group == "s3")
    }

    @Test("PUT Object", arguments: ["/test%24file.text", "/test$file.text"]) func put(target: String) throws {
        let found = try verify(
            request(
                "PUT", target,
                [
                    ("date", "Fri, 24 May 2013 00:00:00 GMT"), ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
                    ("x-amz-date", "20130524T000000Z"),
                    ("x-amz-content-sha256", "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"),
                ], signed: "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
                signature: "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"))
        #expect(found.uid == "alice")
    }

    @Test(arguments: [
        ("/?lifecycle", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ("/?lifecycle=", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ("/?max-keys=2&prefix=J", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
        ("/?prefix=%4a&max-keys=2&", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ]) func bucket(target: String, signature: String) throws {
        let found = try verify(
            request(
                "GET", target,
                [("x-amz-content-sha256", Example.emptyHash), ("x-amz-date", "20130524T000000Z")],
                signed: "host;x-amz-content-sha256;x-amz-date", signature: signature))
        #expect(found.uid == "alice")
    }

    @Test func presignedURL() throws {
        let target =
            "/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1"
            + "%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host"
            + "&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
        let found = try verify(request("GET", target, [], signature: ""))
        #expect(found.uid == "alice" && found.isPresigned && found.hoisted.isEmpty)
        guard case .unsigned = found.payload else {
            Issue.record("another payload")
            return
        }
        let verifier = try Example.verifier()
        for (delay, code) in [(Int64(86_400), nil), (86_401, "AccessDenied"), (-900, nil), (-901, "AccessDenied")] {
            let refusal = Refusal.of {
                try verifier.verify(request("GET", target, [], signature: ""), now: Example.time + delay)
            }
            #expect(refusal?.code == code)
        }
    }

    /// The bodies of the examples with chunks.
    private static func body(_ signatures: [String], end: String) -> [UInt8] {
        var text: [UInt8] = []
        for (count, signature) in zip([65_536, 1024, 0], signatures) {
            text += "\(String(count, radix: 16));chunk-signature=\(signature)\r\n".utf8
            text += [UInt8](repeating: UInt8(ascii: "a"), count: count)
            text += (count > 0 ? "\r\n" : end).utf8
        }
        return text
    }

    private func decode(_ found: S3Authentication, _ fields: HeaderFields, _ body: [UInt8]) throws -> AWSChunkDecoder {
        guard case .streaming(let streaming) = found.payload else { throw Problem(.internal, "another payload") }
        #expect(streaming.signed != nil)
        var decoder = try AWSChunkDecoder(streaming, fields)
        var count = 0
        let taken = try decoder.write(body.span.bytes) { part in
            count += part.byteCount
            return part.byteCount
        }
        try decoder.end()
        #expect(count == 66_560 && taken == body.count)
        return decoder
    }

    @Test func chunkedUpload() throws {
        let put = request(
            "PUT", "/examplebucket/chunkObject.txt", host: "s3.amazonaws.com",
            [
                ("x-amz-date", "20130524T000000Z"), ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
                ("x-amz-content-sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"), ("content-encoding", "aws-chunked"),
                ("x-amz-decoded-content-length", "66560"), ("content-length", "66824"),
            ],
            signed: "content-encoding;content-length;host;x-amz-content-sha256;x-amz-date;"
                + "x-amz-decoded-content-length;x-amz-storage-class",
            signature: "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9")
        let found = try verify(put)
        var signatures = [
            "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
            "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
            "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
        ]
        let body = Self.body(signatures, end: "\r\n")
        #expect(body.count == 66_824)
        #expect(try decode(found, put.fields, body).trailers.isEmpty)
        for index in signatures.indices {
            let right = signatures[index]
            signatures[index] = "f" + right.dropFirst()
            let refusal = Refusal.of { try decode(found, put.fields, Self.body(signatures, end: "\r\n")) }
            #expect(refusal?.status == 403 && refusal?.code == "SignatureDoesNotMatch")
            signatures[index] = right
        }
    }

    @Test(arguments: ["\r\n", "\n\r\n"], ["", "\r\n"]) func chunkedUploadWithTrailer(lineEnd: String, end: String)
        throws
    {
        let put = request(
            "PUT", "/examplebucket/chunkObject.txt", host: "s3.amazonaws.com",
            [
                ("x-amz-date", "20130524T000000Z"), ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
                ("x-amz-content-sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"),
                ("content-encoding", "aws-chunked"), ("x-amz-decoded-content-length", "66560"),
                ("x-amz-trailer", "x-amz-checksum-crc32c"),
            ],
            signed: "content-encoding;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;"
                + "x-amz-storage-class;x-amz-trailer",
            signature: "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e")
        let found = try verify(put)
        let signatures = [
            "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
            "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
            "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
        ]
        func trailer(_ value: String = "sOO8/Q==", _ last: String = "5") -> String {
            "x-amz-checksum-crc32c:\(value)\(lineEnd)"
                + "x-amz-trailer-signature:d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e43\(last)\r\n\(end)"
        }
        let decoder = try decode(found, put.fields, Self.body(signatures, end: trailer()))
        let trailers = decoder.trailers
        #expect(trailers.map(\.name) == ["x-amz-checksum-crc32c"] && trailers.map(\.value) == ["sOO8/Q=="])
        for wrong in [trailer("sOO8/A=="), trailer("sOO8/Q==", "6")] {
            let refusal = Refusal.of { try decode(found, put.fields, Self.body(signatures, end: wrong)) }
            #expect(refusal?.code == "SignatureDoesNotMatch")
        }
    }

    /// The requests that `Tests/EndToEnd/buckets/s3_signatures.py` signed with botocore.
    @Test func botocore() throws {
        let here = #filePath
        let root = here[..<here.utf8.lastIndex(of: UInt8(ascii: "/"))!]
        let path = root + "/../../CredentialsTests/Fixtures/signatures.jsonl"
        let descriptor = try SystemError.check("open") { open(String(path), O_RDONLY) }
        defer { close(descriptor) }
        var text = [UInt8](repeating: 0, count: 1 << 20)
        text = Array(text[..<read(descriptor, &text, text.count)])
        var verified = 0
        for line in text.split(separator: UInt8(ascii: "\n")) {
            let json = try JSONReader.parse(Array(line))
            func text(_ key: String) throws -> String { try #require(json[key]?.text) }
            let payload = try text("payload")
            var fields = HeaderFields()
            for pair in try #require(json["fields"]?.elements) {
                let parts = try #require(pair.elements)
                fields.append(name: try #require(parts[0].text), try #require(parts[1].text))
            }
            let time = try #require(Int64(try text("time")))
            fields.append("x-amz-date", S3Time.stamp(time))
            let body = try #require(Hexadecimal.decode(try text("body").utf8))
            fields.append(
                "x-amz-content-sha256",
                payload == "bytes" ? RequestSigner.sha256(String(decoding: body, as: UTF8.self)) : payload)
            fields.append("authorization", try text("authorization"))
            // Tokens of another service can't be opened: only requests without one are complete.
            guard json["token"]?.text == nil, body.allSatisfy({ $0 < 0x80 }) || payload != "bytes" else { continue }
            let verifier = try Example.verifier(keys: "AKIDEXAMPLE \(try text("secret")) alice")
            let target = try text("target")
            let request = S3SignedRequest(
                method: try text("method"), target: RequestTarget(target), authority: try text("host"),
                fields: fields)
            #expect(try verifier.verify(request, now: time).uid == "alice", "\(target)")
            verified += 1
        }
        #expect(verified > 100)
    }
}
