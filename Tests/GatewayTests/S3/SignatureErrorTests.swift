import Identity
import Testing
import Wire

@testable import Gateway

/// What is rejected before and by the verification of a signature, and with which error.
@Suite struct SignatureErrorTests {
    private let signer = RequestSigner()

    private func refusal(
        _ request: S3SignedRequest, region: String? = nil, now: Int64 = Example.time
    ) throws -> Refusal? {
        let verifier = try Example.verifier(region: region)
        return Refusal.of { try verifier.verify(request, now: now) }
    }

    private func code(_ request: S3SignedRequest, now: Int64 = Example.time) throws -> String? {
        try refusal(request, now: now).map { "\($0.status) \($0.code)" }
    }

    private func plain(_ fields: [(String, String)], _ target: String = "/b/k") -> S3SignedRequest {
        var header = HeaderFields()
        for (name, value) in fields { header.append(name: name, value) }
        return S3SignedRequest(method: "GET", target: RequestTarget(target), authority: "localhost", fields: header)
    }

    // MARK: Where a credential is

    @Test func withoutASignature() throws {
        let verifier = try Example.verifier()
        func signer(_ request: S3SignedRequest) throws -> String {
            let found = try verifier.verify(request, now: Example.time)
            #expect(found.accessKeyID == nil && !found.isPresigned && found.hoisted.isEmpty)
            return "\(found.signer) \(found.payload)"
        }
        #expect(try signer(plain([])) == "anonymous none")
        #expect(try signer(plain([], "/b?x-amz-acl=private&uploads")) == "anonymous none")
        #expect(try signer(plain([("authorization", "Bearer abc"), ("x-amz-acl", "x")])) == "bearer none")
        #expect(try signer(plain([("authorization", "bearer\tabc")])) == "bearer none")
        #expect(try signer(plain([("x-amz-content-sha256", "UNSIGNED-PAYLOAD")])) == "anonymous unsigned")
    }

    @Test(
        "Any credential parameter means a presigned URL: traps 1 and 2",
        arguments: [
            "X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Signature", "X-Amz-SignedHeaders", "X-Amz-Expires",
            "X-Amz-Date",
            "X-Amz-Security-Token", "x-amz-signature", "X-AMZ-CREDENTIAL", "X-Amz-%53ignature",
        ])
    func oneParameter(name: String) throws {
        let hash = ("x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER")
        let found = try refusal(plain([hash], "/b/k?\(name)=x"))
        #expect(found?.status == 400 && found?.code == "AuthorizationQueryParametersError")
        #expect(try code(plain([], "/b/k?\(name)")) == "400 AuthorizationQueryParametersError")
        #expect(try code(plain([("authorization", "Bearer x")], "/b/k?\(name)=x")) == "400 InvalidArgument")
    }

    @Test func eachParameterIsRequiredOnce() throws {
        let request = signer.presigned()
        #expect(try refusal(request) == nil)
        let target = String(decoding: request.target.bytes, as: UTF8.self)
        let query = target.split(separator: "?")[1].split(separator: "&").map(String.init)
        for index in query.indices {
            var others = query
            let one = others.remove(at: index)
            #expect(
                try code(request.with(target: "/test.txt?" + others.joined(separator: "&")))
                    == "400 AuthorizationQueryParametersError")
            #expect(try code(request.with(target: "\(target)&\(one)")) == "400 AuthorizationQueryParametersError")
            let lower = others + [one.asciiLowercased()]
            #expect(
                try code(request.with(target: "/test.txt?" + lower.joined(separator: "&")))
                    == "400 AuthorizationQueryParametersError")
        }
        // The order is free.
        #expect(try refusal(request.with(target: "/test.txt?" + query.reversed().joined(separator: "&"))) == nil)
    }

    @Test func onlyOneMechanism() throws {
        let both = signer.presigned().adding("authorization", "AWS4-HMAC-SHA256 x")
        #expect(try refusal(both)?.detail == "Only one auth mechanism allowed")
        let twice = signer.request("GET", "/k").adding("authorization", "Bearer x")
        #expect(try code(twice) == "400 InvalidArgument")
    }

    @Test(
        "The exact refusal of Signature Version 2, which s3cmd compares",
        arguments: [
            ("AWS AKIA:abc", "/b"), ("AWS4-ECDSA-P256-SHA256 Credential=x", "/b"),
            ("", "/b/k?AWSAccessKeyId=x&Expires=1&Signature=y"), ("", "/b/k?Signature=y"),
            (
                "",
                "/b/k?X-Amz-Algorithm=AWS4-ECDSA-P256-SHA256&X-Amz-Credential=a&X-Amz-Date=b&X-Amz-Expires=1&X-Amz-SignedHeaders=host&X-Amz-Signature=c"
            ),
        ])
    func versionTwo(field: String, target: String) throws {
        let found = try refusal(plain(field.isEmpty ? [] : [("authorization", field)], target))
        #expect(found?.status == 400 && found?.code == "InvalidRequest")
        #expect(
            found?.detail
                == "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.")
    }

    @Test(arguments: ["Basic abc", "AWS5 x", "Bearerx", "", "AWS4-HMAC-SHA256x Credential=a"])
    func otherSchemes(field: String) throws {
        #expect(try code(plain([("authorization", field)])) == "400 InvalidArgument")
    }

    // MARK: Authorization

    @Test func componentsInAnyOrder() throws {
        let request = signer.request("GET", "/test.txt")
        for separator in [",", ", ", " ,\t"] {
            let other = request.changing { name, value in
                guard name == "authorization" else { return value }
                let parts = value.split(separator: " ").map { $0.utf8.last == UInt8(ascii: ",") ? $0.dropLast() : $0 }
                return "\(parts[0]) \(parts[3])\(separator)\(parts[1])\(separator)\(parts[2])"
            }
            #expect(try refusal(other) == nil)
        }
    }

    @Test(arguments: [
        "", " ", "x", "Credential=a", "Credential=%C, SignedHeaders=host",
        "Credential=%C,SignedHeaders=host,Signature=",
        "Credential=%C,SignedHeaders=,Signature=a", "Credential=%C,SignedHeaders=a;;b,Signature=a",
        "Credential=%C,SignedHeaders=host,Signature=a,Signature=b", "Credential=%C,SignedHeaders=host,Signature=a,",
        "Credential=%C,SignedHeaders=host,Signature=a,X=b", "Credential=%C/x,SignedHeaders=host,Signature=a",
        "Credential=a/20130524/r/s3,SignedHeaders=host,Signature=a",
        "Credential=/20130524/r/s3/aws4_request,SignedHeaders=host,Signature=a",
        "Credential=a/2013052x/r/s3/aws4_request,SignedHeaders=host,Signature=a",
        "Credential=a/20130524//s3/aws4_request,SignedHeaders=host,Signature=a",
        "Credential=a/20130524/r/sts/aws4_request,SignedHeaders=host,Signature=a",
        "Credential=a/20130524/r/s3/aws4_requesT,SignedHeaders=host,Signature=a",
    ])
    func malformed(components: String) throws {
        let text = components.replacing("%C", with: "\(Example.id)/20130524/us-east-1/s3/aws4_request")
        let request = plain([
            ("authorization", "AWS4-HMAC-SHA256 \(text)"), ("x-amz-date", signer.stamp),
            ("x-amz-content-sha256", Example.emptyHash),
        ])
        #expect(try code(request) == "400 AuthorizationHeaderMalformed")
    }

    @Test func region() throws {
        let request = signer.request("GET", "/test.txt")
        #expect(try refusal(request, region: "us-east-1") == nil)
        let found = try refusal(request, region: "eu-central-1")
        #expect(found?.status == 400 && found?.code == "AuthorizationHeaderMalformed")
        #expect(found?.members == ["Region": "eu-central-1"])
        let query = try refusal(signer.presigned(), region: "eu-central-1")
        #expect(query?.code == "AuthorizationQueryParametersError" && query?.members == ["Region": "eu-central-1"])
        var other = signer
        other.region = "auto"
        #expect(try refusal(other.request("GET", "/test.txt")) == nil)
    }

    // MARK: Time

    @Test func skew() throws {
        let request = signer.request("GET", "/test.txt")
        for delay in [Int64(900), -900] { #expect(try refusal(request, now: Example.time + delay) == nil) }
        for delay in [Int64(901), -901, 1_000_000_000] {
            let found = try refusal(request, now: Example.time + delay)
            #expect(found?.status == 403 && found?.code == "RequestTimeTooSkewed")
            #expect(found?.members["RequestTime"] == "20130524T000000Z")
            #expect(found?.members["MaxAllowedSkewMilliseconds"] == "900000")
        }
        #expect(try refusal(request, now: Example.time + 3600)?.members["ServerTime"] == "2013-05-24T01:00:00Z")
    }

    @Test func dates() throws {
        let request = signer.request("GET", "/test.txt")
        func with(_ fields: [(String, String)]) -> S3SignedRequest {
            var changed = request.changing { name, value in name == "x-amz-date" ? nil : value }
            for (name, value) in fields { changed = changed.adding(name, value) }
            return changed
        }
        for wrong in [
            [], [("date", "yesterday")], [("x-amz-date", "2013-05-24T00:00:00Z")], [("x-amz-date", "20130532T000000Z")],
            [("x-amz-date", signer.stamp), ("x-amz-date", signer.stamp)],
            [("x-amz-date", ""), ("date", "Fri, 24 May 2013 00:00:00 GMT")],
        ] { #expect(try code(with(wrong)) == "403 AccessDenied") }
        let day = try refusal(with([("x-amz-date", "20130525T000000Z")]))
        #expect(day?.status == 400 && day?.code == "AuthorizationHeaderMalformed")
        // `Date` alone, signed as a field, in the form of HTTP.
        let names = "date;host;x-amz-content-sha256"
        let lines =
            "date:Fri, 24 May 2013 00:00:00 GMT\nhost:h\nx-amz-content-sha256:\(Example.emptyHash)\n"
        let signature = signer.signature(canonical: "GET\n/\n\n\(lines)\n\(names)\n\(Example.emptyHash)")
        var dated = plain(
            [
                ("date", "Fri, 24 May 2013 00:00:00 GMT"), ("x-amz-content-sha256", Example.emptyHash),
                (
                    "authorization",
                    "AWS4-HMAC-SHA256 Credential=\(Example.id)/\(signer.scope),SignedHeaders=\(names),Signature=\(signature)"
                ),
            ], "/")
        dated.authority = "h"
        #expect(try refusal(dated) == nil)
    }

    @Test(arguments: [
        ("0", 400), ("-1", 400), ("604801", 400), ("x", 400), ("", 400), ("99999999999999999999", 400), ("604800", 0),
        ("1", 0), ("007", 0),
    ])
    func lifetimes(expires: String, status: Int) throws {
        let found = try refusal(signer.presigned(expires: expires))
        #expect(found?.status ?? 0 == status)
        if status == 400 { #expect(found?.code == "AuthorizationQueryParametersError") }
    }

    @Test func expiry() throws {
        let found = try refusal(signer.presigned(expires: "60"), now: Example.time + 61)
        #expect(found?.status == 403 && found?.code == "AccessDenied" && found?.detail == "Request has expired")
        #expect(found?.members == ["Expires": "2013-05-24T00:01:00Z", "ServerTime": "2013-05-24T00:01:01Z"])
        #expect(try code(signer.presigned(), now: Example.time - 901) == "403 AccessDenied")
        var other = signer
        other.day = "20130523"
        #expect(try code(other.presigned()) == "400 AuthorizationQueryParametersError")
        #expect(try code(other.request("GET", "/")) == "400 AuthorizationHeaderMalformed")
    }

    // MARK: Keys and fields

    @Test func unknownKeys() throws {
        var other = signer
        other.id = "AKIAUNKNOWN"
        let found = try refusal(other.request("GET", "/test.txt"))
        #expect(found?.status == 403 && found?.code == "InvalidAccessKeyId")
        #expect(found?.members == ["AWSAccessKeyId": "AKIAUNKNOWN"])
        #expect(try code(other.presigned()) == "403 InvalidAccessKeyId")
        // A removed key is unknown at the next request, and a replaced secret does not hold any more.
        let verifier = try Example.verifier()
        let request = signer.request("GET", "/test.txt")
        for _ in 0..<2 { #expect(try verifier.verify(request, now: Example.time).uid == "alice") }
        verifier.replace(try AccessKeys(text: "\(Example.id) another-secret-of-the-key bob"))
        #expect(Refusal.of { try verifier.verify(request, now: Example.time) }?.code == "SignatureDoesNotMatch")
        verifier.replace(AccessKeys())
        #expect(Refusal.of { try verifier.verify(request, now: Example.time) }?.code == "InvalidAccessKeyId")
    }

    @Test(
        "Unsigned fields: traps 4 and 27",
        arguments: [
            "x-amz-copy-source", "x-amz-meta-a", "x-amz-acl", "x-amz-security-token", "x-amz-decoded-content-length",
        ])
    func unsignedFields(name: String) throws {
        for request in [
            signer.request("PUT", "/k", unsigned: [(name, "x")]), signer.presigned("PUT", unsigned: [(name, "x")]),
        ] where name != "x-amz-security-token" {
            let found = try refusal(request)
            #expect(found?.status == 403 && found?.code == "AccessDenied")
            #expect(found?.detail == "There were headers present in the request which were not signed")
            #expect(found?.members == ["HeadersNotSigned": name])
        }
        if name != "x-amz-security-token" {
            #expect(try refusal(signer.request("PUT", "/k", fields: [(name, "x")])) == nil)
            #expect(try refusal(signer.presigned("PUT", fields: [(name, "x")])) == nil)
            // A second line of a signed field changes its value.
            #expect(
                try code(signer.request("PUT", "/k", fields: [(name, "x")]).adding(name, "y"))
                    == "403 SignatureDoesNotMatch")
        }
        // Other fields need not be signed.
        #expect(try refusal(signer.request("PUT", "/k", unsigned: [("content-type", "a/b"), ("range", "x")])) == nil)
    }

    @Test func theHostMustBeSigned() throws {
        let request = signer.request("GET", "/k").changing { name, value in
            name == "authorization" ? value.replacing("=host;", with: "=") : value
        }
        #expect(try refusal(request)?.members == ["HeadersNotSigned": "host"])
    }

    @Test("The error has what was signed, and never the right signature: trap 30") func mismatches() throws {
        let right = signer.request("PUT", "/a%20b?x=1", fields: [("x-amz-meta-a", "<b>")])
        let authorization = try #require(right.fields["authorization"])
        let signature = String(authorization.suffix(64))
        for wrong in [String(repeating: "0", count: 64), String(signature.dropLast()), "zz", signature + "00"] {
            let request = right.changing { name, value in
                name == "authorization" ? value.replacing(signature, with: wrong) : value
            }
            let found = try #require(try refusal(request))
            let members = found.members
            #expect(found.status == 403 && members["AWSAccessKeyId"] == Example.id)
            #expect(members["SignatureProvided"] == wrong)
            let canonical = try #require(members["CanonicalRequest"])
            #expect(canonical.hasPrefix("PUT\n/a%20b\nx=1\nhost:examplebucket.s3.amazonaws.com\n"))
            #expect(canonical.hasSuffix("\n\(Example.emptyHash)"))
            #expect(
                members["StringToSign"]
                    == "AWS4-HMAC-SHA256\n20130524T000000Z\n20130524/us-east-1/s3/aws4_request\n"
                    + RequestSigner.sha256(canonical))
            let others = members.filter { $0.key != "SignatureProvided" }.values.joined()
            let all = others + found.detail + found.cause
            #expect(all.replacing(signature, with: "") == all && all.replacing(Example.secret, with: "") == all)
        }
        let long = signer.request("GET", "/k", unsigned: []).with(target: "/" + String(repeating: "a", count: 20_000))
        #expect(try refusal(long)?.members["CanonicalRequest"]?.utf8.count == 8192)
    }

    @Test func changedRequests() throws {
        let request = signer.request("GET", "/k?a=1")
        var other = request
        other.method = "HEAD"
        #expect(try code(other) == "403 SignatureDoesNotMatch")
        #expect(try code(request.with(target: "/k?a=2")) == "403 SignatureDoesNotMatch")
        #expect(try code(request.with(target: "/k/?a=1")) == "403 SignatureDoesNotMatch")
        #expect(try code(request.with(target: "//k?a=1")) == "403 SignatureDoesNotMatch")
        #expect(try code(request.with(target: "/./k?a=1")) == "403 SignatureDoesNotMatch")
        other = request
        other.authority = "examplebucket.s3.amazonaws.com:443"
        #expect(try code(other) == "403 SignatureDoesNotMatch")
        #expect(try code(signer.presigned(hash: Example.emptyHash)) == "403 SignatureDoesNotMatch")
    }

    // MARK: Payloads

    @Test func payloadHashes() throws {
        #expect(
            try code(
                signer.request("GET", "/k").changing { name, value in name == "x-amz-content-sha256" ? nil : value })
                == "400 InvalidRequest")
        for (hash, expected) in [
            ("STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD", "501 NotImplemented"), ("abc", "400 InvalidRequest"),
            ("STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD-TRAILER", "501 NotImplemented"),
            ("STREAMING-UNSIGNED-PAYLOAD", "400 InvalidRequest"), ("unsigned-payload", "400 InvalidRequest"),
            (String(repeating: "g", count: 64), "400 InvalidRequest"), ("", "400 InvalidRequest"),
        ] {
            #expect(try code(signer.request("PUT", "/k", hash: hash)) == expected)
            // The signature comes first.
            var other = signer
            other.secret = "another-secret-of-the-key"
            #expect(try code(other.request("PUT", "/k", hash: hash)) == "403 SignatureDoesNotMatch")
        }
        // Signed chunks without a signature of the request have no seed.
        for fields in [[], [("authorization", "Bearer x")]] {
            let hash = ("x-amz-content-sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD")
            #expect(try code(plain(fields + [hash])) == "400 InvalidRequest")
        }
        #expect(
            try code(
                signer.request(
                    "PUT", "/k", fields: [("x-amz-trailer", "a")], hash: "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"))
                == "400 InvalidRequest")
    }
}
