import Identity
import System
import Testing
import Wire

@testable import Gateway

@Suite struct VerifiedURLTests {
    private let signer = RequestSigner()

    /// Authenticates a request as the dialect does.
    /// - Returns: The result, and whether the URL was verified before.
    private func use(
        _ verifier: S3Verifier, _ request: S3SignedRequest, now: Int64 = Example.time
    ) throws -> (found: S3Authentication, isKnown: Bool) {
        var request = request
        switch verifier.find(HTTPMethod(rawValue: request.method), request.target, authority: request.authority) {
        case .verified(let url):
            if let found = try verifier.verify(url, request.fields, now: now) { return (found, true) }
        case .repeated: request.isRepeated = true
        case .new: break
        }
        return (try verifier.verify(request, now: now), false)
    }

    private func areKnown(_ verifier: S3Verifier, _ requests: [S3SignedRequest]) throws -> [Bool] {
        try requests.map { try use(verifier, $0).isKnown }
    }

    @Test func theThirdUseIsKnown() throws {
        let verifier = try Example.verifier()
        let request = signer.presigned(more: [("response-content-type", "text%2Fx"), ("x-amz-meta-a", "1")])
        for isKnown in [false, false, true, true] {
            let (found, wasKnown) = try use(verifier, request)
            #expect(wasKnown == isKnown && found.uid == "alice" && found.accessKeyID == Example.id && found.isPresigned)
            #expect(found.hoisted.map(\.name) == ["x-amz-meta-a"] && found.hoisted.map(\.value) == ["1"])
            guard case .unsigned = found.payload else {
                Issue.record("another payload")
                return
            }
        }
        guard case .verified(let url) = verifier.find(.get, request.target, authority: request.authority) else {
            Issue.record("not kept")
            return
        }
        #expect(
            url.others == request.query.others
                && url.others.all.map(\.name) == ["response-content-type", "x-amz-meta-a"])
    }

    @Test func itCountsAsLongAsItsSignature() throws {
        let verifier = try Example.verifier()
        let request = signer.presigned()
        #expect(try areKnown(verifier, [request, request, request]) == [false, false, true])
        for delay in [Int64(-900), 86_400] {
            #expect(try use(verifier, request, now: Example.time + delay).isKnown)
        }
        for delay in [Int64(-901), 86_401] {
            #expect(Refusal.of { try use(verifier, request, now: Example.time + delay) }?.code == "AccessDenied")
        }
    }

    @Test func anotherRequestIsVerified() throws {
        let verifier = try Example.verifier()
        let request = signer.presigned()
        _ = try areKnown(verifier, [request, request, request])
        func code(_ change: (inout S3SignedRequest) -> Void) -> String? {
            var changed = request
            change(&changed)
            return Refusal.of { try use(verifier, changed) }?.code
        }
        #expect(code { $0.method = "HEAD" } == "SignatureDoesNotMatch")
        #expect(code { $0.authority = "other.s3.amazonaws.com" } == "SignatureDoesNotMatch")
        #expect(code { $0.authority = nil } == "SignatureDoesNotMatch")
        #expect(code { $0 = $0.adding("x-amz-meta-a", "1") } == "AccessDenied")
        #expect(code { $0 = $0.adding("authorization", "Bearer a") } == "InvalidArgument")
        let other = String(decoding: request.target.bytes, as: UTF8.self).replacing("/test.txt", with: "/test.txs")
        #expect(code { $0 = $0.with(target: other) } == "SignatureDoesNotMatch")
        #expect(code { _ in } == nil)
    }

    @Test func aWrongSignatureIsNeverKept() throws {
        let verifier = try Example.verifier()
        var other = signer
        other.secret = "another-secret-of-the-key"
        for _ in 0..<4 {
            #expect(Refusal.of { try use(verifier, other.presigned()) }?.code == "SignatureDoesNotMatch")
        }
    }

    @Test("What a signature covers beside the URL is compared each time")
    func otherFieldsAreVerified() throws {
        let verifier = try Example.verifier()
        for request in [
            signer.presigned(fields: [("range", "bytes=0-1")]), signer.presigned(fields: [("x-amz-meta-a", "1")]),
            signer.presigned(more: [("x-amz-content-sha256", Example.emptyHash)], hash: Example.emptyHash),
            signer.presigned("PUT"), signer.request("GET", "/k?\(String(repeating: "a", count: 300))="),
        ] {
            #expect(try areKnown(verifier, Array(repeating: request, count: 4)) == [false, false, false, false])
        }
        var forwarded = signer.presigned()
        forwarded.forwardedHost = "examplebucket.s3.amazonaws.com"
        forwarded.authority = "internal"
        #expect(try areKnown(verifier, Array(repeating: forwarded, count: 4)) == [false, false, false, false])
    }

    @Test func aChangeOfTheKeysForgetsAll() throws {
        let verifier = try Example.verifier()
        let request = signer.presigned()
        #expect(try areKnown(verifier, [request, request, request]) == [false, false, true])
        verifier.replace(try AccessKeys(text: "\(Example.id) \(Example.secret) bob"))
        #expect(try use(verifier, request).found.uid == "bob")
        _ = try areKnown(verifier, [request, request])
        verifier.replace(AccessKeys())
        #expect(Refusal.of { try use(verifier, request) }?.code == "InvalidAccessKeyId")
    }

    @Test func sessions() throws {
        let keys = S3SessionKeys.random()
        let credentials = try keys.issue(try SessionKeyTests.caller(), now: Example.time, expires: Example.time + 10)
        let isConfigured = Lock(true)
        let verifier = try Example.verifier(sessionKeys: keys) { _ in isConfigured.withLock { $0 } }
        let request = RequestSigner(id: credentials.accessKeyID, secret: credentials.secretAccessKey).presigned(
            more: [("X-Amz-Security-Token", PercentEncoding.encodeSegment(credentials.sessionToken))])
        #expect(try areKnown(verifier, [request, request, request]) == [false, false, true])
        #expect(try use(verifier, request, now: Example.time + 9).isKnown)
        #expect(Refusal.of { try use(verifier, request, now: Example.time + 10) }?.code == "ExpiredToken")
        isConfigured.withLock { $0 = false }
        #expect(Refusal.of { try use(verifier, request) }?.code == "InvalidToken")
    }

    @Test func urlsThatAreUsedOnceDisplaceNone() throws {
        let verifier = try Example.verifier()
        let request = signer.presigned()
        #expect(try areKnown(verifier, [request, request, request]) == [false, false, true])
        for number in 0..<3000 {
            let target = RequestTarget("/\(number)?\(String(repeating: "a", count: 200))")
            _ = verifier.find(.get, target, authority: request.authority)
        }
        #expect(try use(verifier, request).isKnown)
    }
}
