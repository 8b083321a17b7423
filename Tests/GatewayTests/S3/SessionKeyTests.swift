import Identity
import Testing
import Wire

import struct Gateway.Caller

@testable import Gateway

/// Temporary credentials.
@Suite struct SessionKeyTests {
    static func caller(_ claims: String = #"{"iss":"https://a","n":7}"#) throws -> SavedCaller {
        var caller = Caller(peer: "127.0.0.1:1", isSecure: true)
        caller.identify(
            Principal(
                kind: .token, uid: "bob", claims: try JSONDocument(Array(claims.utf8)), source: "issuer", group: "pods",
                expires: Example.time + 60))
        return try #require(SavedCaller(caller))
    }

    private func signer(_ credentials: S3SessionCredentials) -> RequestSigner {
        RequestSigner(id: credentials.accessKeyID, secret: credentials.secretAccessKey)
    }

    private func request(_ credentials: S3SessionCredentials, token: String? = nil) -> S3SignedRequest {
        signer(credentials).request(
            "GET", "/k", fields: [("x-amz-security-token", token ?? credentials.sessionToken)])
    }

    private func code(_ verifier: S3Verifier, _ request: S3SignedRequest, now: Int64 = Example.time) -> String? {
        Refusal.of { try verifier.verify(request, now: now) }.map { "\($0.status) \($0.code)" }
    }

    @Test func theCallerIsThatOfTheToken() throws {
        let keys = S3SessionKeys.random()
        let caller = try Self.caller()
        let credentials = try keys.issue(caller, now: Example.time, expires: Example.time + 3600)
        #expect(credentials.accessKeyID.hasPrefix("ASIA") && credentials.accessKeyID.utf8.count == 20)
        #expect(credentials.secretAccessKey.utf8.count == 40 && credentials.expiration == Example.time + 3600)
        let verifier = try Example.verifier(sessionKeys: keys)
        // The second request uses the kept key.
        for _ in 0..<2 {
            let found = try verifier.verify(request(credentials), now: Example.time + 899)
            guard case .session(let saved) = found.signer else {
                Issue.record("another signer")
                return
            }
            #expect(saved.json == caller.json && saved.principal.kind == .token && saved.principal.source == "issuer")
        }
        let encoded = PercentEncoding.encodeSegment(credentials.sessionToken)
        let presigned = signer(credentials).presigned(more: [("X-Amz-Security-Token", encoded)])
        let found = try verifier.verify(presigned, now: Example.time)
        #expect(found.uid == "bob" && found.isPresigned && found.hoisted.isEmpty)
    }

    @Test func expiry() throws {
        let keys = S3SessionKeys.random()
        let credentials = try keys.issue(try Self.caller(), now: Example.time, expires: Example.time + 10)
        let verifier = try Example.verifier(sessionKeys: keys)
        #expect(code(verifier, request(credentials), now: Example.time + 9) == nil)
        #expect(code(verifier, request(credentials), now: Example.time + 10) == "400 ExpiredToken")
        #expect(
            code(try Example.verifier(sessionKeys: keys), request(credentials), now: Example.time + 10)
                == "400 ExpiredToken")
    }

    @Test func othersAreRejected() throws {
        let keys = S3SessionKeys.random()
        let credentials = try keys.issue(try Self.caller(), now: Example.time, expires: Example.time + 3600)
        let another = try keys.issue(try Self.caller(), now: Example.time, expires: Example.time + 3600)
        let verifier = try Example.verifier(sessionKeys: keys)
        // Forged, of another key, of another access key, or none.
        #expect(code(verifier, request(credentials, token: "")) == "400 InvalidToken")
        #expect(code(verifier, request(credentials, token: "abc")) == "400 InvalidToken")
        #expect(code(verifier, request(credentials, token: another.sessionToken)) == "400 InvalidToken")
        #expect(code(verifier, request(credentials, token: credentials.sessionToken + "A")) == "400 InvalidToken")
        #expect(code(verifier, request(credentials, token: String(repeating: "A", count: 5000))) == "400 InvalidToken")
        #expect(code(try Example.verifier(sessionKeys: .random()), request(credentials)) == "400 InvalidToken")
        #expect(code(try Example.verifier(), request(credentials)) == "400 InvalidToken")
        #expect(code(verifier, signer(credentials).request("GET", "/k")) == "403 InvalidAccessKeyId")
        let long = RequestSigner().request("GET", "/k", fields: [("x-amz-security-token", credentials.sessionToken)])
        #expect(code(verifier, long) == "400 InvalidToken")
        var wrong = signer(credentials)
        wrong.secret = another.secretAccessKey
        let unsigned = wrong.request("GET", "/k", fields: [("x-amz-security-token", credentials.sessionToken)])
        #expect(code(verifier, unsigned) == "403 SignatureDoesNotMatch")
        // The token must be signed.
        let bare = signer(credentials).request(
            "GET", "/k", unsigned: [("x-amz-security-token", credentials.sessionToken)])
        #expect(code(verifier, bare) == "403 AccessDenied")
        // A kept key does not stand for another token.
        #expect(code(verifier, request(credentials)) == nil)
        #expect(code(verifier, request(credentials, token: another.sessionToken)) == "400 InvalidToken")
        #expect(code(verifier, signer(credentials).request("GET", "/k")) == "403 InvalidAccessKeyId")
    }

    @Test func everyChangedCharacterIsRejected() throws {
        let keys = S3SessionKeys.random()
        let credentials = try keys.issue(try Self.caller(), now: Example.time, expires: Example.time + 3600)
        let token = Array(credentials.sessionToken.utf8)
        let id = Array(credentials.accessKeyID.utf8)[...]
        #expect(try keys.open(token, accessKeyID: id, now: Example.time).caller.principal.uid == "bob")
        for index in token.indices {
            var changed = token
            changed[index] = changed[index] == UInt8(ascii: "A") ? UInt8(ascii: "B") : UInt8(ascii: "A")
            #expect(Refusal.of { try keys.open(changed, accessKeyID: id, now: Example.time) }?.code == "InvalidToken")
            let cut = Array(token[..<index])
            #expect(Refusal.of { try keys.open(cut, accessKeyID: id, now: Example.time) }?.code == "InvalidToken")
        }
    }

    @Test("The token is not in the error") func redaction() throws {
        let keys = S3SessionKeys.random()
        let credentials = try keys.issue(try Self.caller(), now: Example.time, expires: Example.time + 3600)
        let verifier = try Example.verifier(sessionKeys: keys)
        var wrong = signer(credentials)
        wrong.secret = "another-secret-of-the-key"
        let token = PercentEncoding.encodeSegment(credentials.sessionToken)
        for request in [
            wrong.request("GET", "/k", fields: [("x-amz-security-token", credentials.sessionToken)]),
            wrong.presigned(more: [("X-Amz-Security-Token", token)]),
        ] {
            let found = try #require(Refusal.of { try verifier.verify(request, now: Example.time) })
            #expect(found.code == "SignatureDoesNotMatch")
            let all = found.members.values.joined() + found.detail + found.cause
            #expect(all.replacing(credentials.sessionToken, with: "") == all)
            let canonical = found.members["CanonicalRequest"] ?? ""
            #expect(canonical.replacing("REDACTED", with: "") != canonical)
        }
    }

    @Test func removedKeysAndIssuers() throws {
        let first = try LinkKeys.generate(id: "a")
        let second = try LinkKeys.generate(id: "b")
        let old = try S3SessionKeys(text: first)
        let credentials = try old.issue(try Self.caller(), now: Example.time, expires: Example.time + 3600)
        let verifier = try Example.verifier(sessionKeys: old)
        #expect(code(verifier, request(credentials)) == nil)
        verifier.replace(try S3SessionKeys(text: "\(second)\n\(first)\n"))
        #expect(code(verifier, request(credentials)) == nil)
        verifier.replace(try S3SessionKeys(text: second))
        #expect(code(verifier, request(credentials)) == "400 InvalidToken")
        verifier.replace(try S3SessionKeys(text: try LinkKeys.generate(id: "a")))
        #expect(code(verifier, request(credentials)) == "400 InvalidToken")
        verifier.replace(nil as S3SessionKeys?)
        #expect(code(verifier, request(credentials)) == "400 InvalidToken")
        let removed = try Example.verifier(sessionKeys: old) { $0.source != "issuer" }
        #expect(code(removed, request(credentials)) == "400 InvalidToken")
        #expect(throws: LinkKeys.Malformed.self) { try S3SessionKeys(text: "a short") }
    }

    @Test func largeClaims() throws {
        let keys = S3SessionKeys.random()
        func issue(_ count: Int) throws -> S3SessionCredentials {
            let claims = #"{"a":"\#(String(repeating: "x", count: count))"}"#
            return try keys.issue(try Self.caller(claims), now: Example.time, expires: Example.time + 60)
        }
        #expect(try issue(2700).sessionToken.utf8.count <= S3SessionKeys.maximumToken)
        let found = Refusal.of { try issue(4000) }
        #expect(found?.status == 400 && found?.code == "PackedPolicyTooLarge")
    }

    /// The key is the file's line; a token of the same content with the keys of uploads is none.
    @Test func otherUsesOfTheSameFile() throws {
        let line = try LinkKeys.generate(id: "a")
        let upload = try UploadKeys(text: line).seal(
            UploadToken(dialect: .ietf, bucket: String(repeating: "b", count: 100), id: .init(expires: .max)))
        let keys = try S3SessionKeys(text: line)
        let found = Refusal.of { try keys.open(Array(upload.utf8), accessKeyID: [], now: 0) }
        #expect(found?.code == "InvalidToken")
    }
}
