import OpenSSL
import Testing
import Wire

@testable import Gateway

/// How requests of real clients are read: the encodings of paths and queries, hosts behind proxies, hoisted fields.
@Suite struct CanonicalRequestTests {
    private let signer = RequestSigner()

    private func isVerified(_ request: S3SignedRequest) throws -> Bool {
        let verifier = try Example.verifier()
        return Refusal.of { try verifier.verify(request, now: Example.time) } == nil
    }

    @Test(
        "Keys with special characters, sent raw and signed encoded, or the reverse: trap 8",
        arguments: [
            ("/a+b", "/a%2Bb"), ("/a%2Bb", "/a+b"), ("/a%2bb", "/a%2Bb"),
            ("/(1)@x=y:z,!*'", "/%281%29%40x%3Dy%3Az%2C%21%2A%27"),
            ("/a%20b", "/a%20b"), ("/a%7Eb", "/a~b"), ("/%61", "/a"), ("/d%2Ff", "/d/f"), ("/d%2Ff", "/d%2Ff"),
            ("/%C3%BC", "/%C3%BC"), ("/%c3%bc", "/%C3%BC"), ("/a//b/./../c/", "/a//b/./../c/"), ("/100%25", "/100%25"),
            ("/100%", "/100%25"), ("/$f", "/%24f"), ("/", "/"),
        ])
    func paths(sent: String, signed: String) throws {
        let request = signer.request("GET", sent, path: signed)
        if sent == "/a%2Bb", signed == "/a+b" {
            // Only the canonical path and the path as sent are tried.
            #expect(try !isVerified(request))
            return
        }
        #expect(try isVerified(request))
    }

    @Test func aPlusInAPathIsNoSpace() throws {
        #expect(try !isVerified(signer.request("GET", "/a+b", path: "/a%20b")))
    }

    @Test(arguments: [
        ("prefix=d/&delimiter=/", "delimiter=%2F&prefix=d%2F"), ("a=b+c", "a=b%20c"), ("a=b%20c", "a=b%20c"),
        ("a=%2B", "a=%2B"), ("uploads", "uploads="), ("b&a&b=1", "a=&b=&b=1"), ("a=2&a=1&a=10", "a=1&a=10&a=2"),
        ("a=b=c", "a=b%3Dc"), ("&a=1&&", "a=1"), ("", ""), ("%61=%7e", "a=~"), ("a=%zz", "a=%25zz"),
        ("A=1&a=2&a-b=3&aa=4", "A=1&a=2&a-b=3&aa=4"), ("ü=1", "%C3%BC=1"),
    ])
    func queries(sent: String, signed: String) throws {
        #expect(try isVerified(signer.request("GET", "/?\(sent)", query: signed)))
    }

    @Test func fieldsAreJoinedAndTrimmed() throws {
        let signed = signer.request("GET", "/", fields: [("x-amz-meta-a", "b c d,e"), ("x-absent", "")])
        var request = signed.changing { name, value in ["x-amz-meta-a", "x-absent"].contains(name) ? nil : value }
        request = request.adding("x-amz-meta-a", "  b \t c   d ").adding("x-amz-meta-a", "e")
        #expect(try isVerified(request))
        #expect(try isVerified(signer.request("GET", "/", fields: [("x-amz-meta-a", "ü"), ("range", "bytes=0-9")])))
    }

    @Test("Hosts behind proxies: trap 10") func hosts() throws {
        var request = signer.request("GET", "/", host: "127.0.0.1:18556")
        #expect(try isVerified(request))
        request.authority = "127.0.0.1"
        #expect(try !isVerified(request))
        for (signed, forwarded, port, isSecure, expected) in [
            ("s3.example.com", "s3.example.com", nil, true, true),
            ("s3.example.com:8443", "s3.example.com", "8443", true, true),
            ("s3.example.com", "s3.example.com", "8443", true, true),
            ("s3.example.com:443", "s3.example.com", "443", true, false),
            ("s3.example.com:80", "s3.example.com", "80", true, true),
            ("s3.example.com:8443", "s3.example.com:8443", nil, true, true),
            ("s3.example.com", "other.example.com", nil, true, false),
        ] as [(String, String, String?, Bool, Bool)] {
            var proxied = signer.request("GET", "/a(b", path: "/a%28b", host: signed)
            proxied.authority = "backend:9000"
            #expect(try !isVerified(proxied))
            proxied.forwardedHost = forwarded
            proxied.forwardedPort = port
            proxied.isSecure = isSecure
            #expect(try isVerified(proxied) == expected, "\(signed) \(forwarded)")
        }
    }

    @Test("Parameters that act as fields, without checksums: trap 24") func hoisted() throws {
        let request = signer.presigned(
            "PUT",
            more: [
                ("X-Amz-Meta-Name", "a%20%2Bb"), ("x-amz-acl", "private"), ("x-amz-checksum-crc32", "AAAAAA%3D%3D"),
                ("x-amz-sdk-checksum-algorithm", "CRC32"), ("X-Amz-Checksum-Sha256", "x"), ("x-id", "PutObject"),
                ("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD"),
            ])
        let found = try Example.verifier().verify(request, now: Example.time)
        #expect(found.hoisted.map(\.name).sorted() == ["x-amz-acl", "x-amz-meta-name"])
        #expect(found.hoisted.first { $0.name == "x-amz-meta-name" }?.value == "a +b")
        guard case .unsigned = found.payload else {
            Issue.record("another payload")
            return
        }
        // Not of a request that is signed in Authorization.
        let other = try Example.verifier().verify(signer.request("PUT", "/?x-amz-acl=private"), now: Example.time)
        #expect(other.hoisted.isEmpty)
    }

    @Test func hashesOfPresignedRequests() throws {
        let hash = Example.emptyHash
        let verifier = try Example.verifier()
        func payload(_ request: S3SignedRequest) throws -> String {
            switch try verifier.verify(request, now: Example.time).payload {
            case .sha256(let hash): Hexadecimal.encode(hash)
            case let other: "\(other)"
            }
        }
        #expect(try payload(signer.presigned("PUT", fields: [("x-amz-content-sha256", hash)], hash: hash)) == hash)
        #expect(try payload(signer.presigned("PUT", unsigned: [("x-amz-content-sha256", hash)], hash: hash)) == hash)
        #expect(try payload(signer.presigned("PUT", more: [("X-Amz-Content-Sha256", hash)], hash: hash)) == hash)
        let both = signer.presigned(
            "PUT", more: [("X-Amz-Content-Sha256", hash)],
            unsigned: [("x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER")], hash: hash)
        #expect(Refusal.of { try verifier.verify(both, now: Example.time) }?.code == "InvalidRequest")
    }

    @Test func sts() throws {
        var sts = signer
        sts.service = "sts"
        let body = "Action=GetCallerIdentity&Version=2011-06-15"
        var request = sts.request("POST", "/", hash: RequestSigner.sha256(body))
        request.services = [.s3, .sts]
        let verifier = try Example.verifier(region: "eu-central-1")
        #expect(try verifier.verify(request, now: Example.time).uid == "alice")
        request.services = .s3
        #expect(Refusal.of { try verifier.verify(request, now: Example.time) }?.code == "AuthorizationHeaderMalformed")
        // Clients of STS send no hash.
        let names = "host;x-amz-date"
        let lines = "host:h\nx-amz-date:\(sts.stamp)\n"
        let signature = sts.signature(canonical: "POST\n/\n\n\(lines)\n\(names)\n\(RequestSigner.sha256(body))")
        var fields = HeaderFields()
        fields.append("x-amz-date", sts.stamp)
        fields.append(
            "authorization",
            "AWS4-HMAC-SHA256 Credential=\(Example.id)/\(sts.scope), SignedHeaders=\(names), Signature=\(signature)")
        var unhashed = S3SignedRequest(method: "POST", target: RequestTarget("/"), authority: "h", fields: fields)
        unhashed.services = .sts
        #expect(Refusal.of { try verifier.verify(unhashed, now: Example.time) }?.code == "InvalidRequest")
        unhashed.bodySHA256 = Hexadecimal.decode(RequestSigner.sha256(body).utf8)
        #expect(try verifier.verify(unhashed, now: Example.time).uid == "alice")
        unhashed.bodySHA256?[0] ^= 1
        #expect(Refusal.of { try verifier.verify(unhashed, now: Example.time) }?.code == "SignatureDoesNotMatch")
    }

    /// The text that a signature covers must not grow with each repetition of a name.
    @Test func listsOfSignedFieldsAreBounded() {
        #expect(SignedNames(Array("host;x-amz-date".utf8)) != nil)
        #expect(SignedNames(Array("host;x;host".utf8)) == nil)
        let many = (0..<SignedNames.maximumNames).map { "x\($0)" }
        #expect(SignedNames(Array(many.joined(separator: ";").utf8)) != nil)
        #expect(SignedNames(Array((many + ["y"]).joined(separator: ";").utf8)) == nil)
        let region = String(repeating: "r", count: 500)
        #expect(S3Credential(Array("A/20130524/\(region)/s3/aws4_request".utf8)) == nil)
    }

    @Test func signingKeysAreForgotten() throws {
        var keys = SigningKeys()
        let credentials = try (0..<SigningKeys.limit / 400).map { index in
            try #require(S3Credential(Array("A/20130524/r\(index)/s3/aws4_request".utf8)))
        }
        for (index, credential) in credentials.enumerated() {
            keys.insert(SigningKey(key: HMAC(key: [UInt8(index & 0xff)]), signer: .anonymous), credential)
            #expect(keys.find(credentials[0]) != nil)
            #expect(keys.count <= SigningKeys.limit / 800)
        }
        #expect(keys.find(credentials[1]) == nil && keys.find(credentials[credentials.count - 1]) != nil)
    }
}
