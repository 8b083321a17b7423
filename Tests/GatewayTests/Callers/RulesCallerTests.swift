import SecurityRules
import Testing
import Wire

import struct Gateway.Caller

@testable import Gateway
@testable import Identity

@Suite struct RulesCallerTests {
    private func principal(_ claims: String?) throws -> Principal {
        Principal(
            kind: .token, uid: "alice", claims: try claims.map { try JSONDocument(Array($0.utf8)) },
            source: "example", group: "example", expires: .max)
    }

    /// Whether rules with this condition allow the caller.
    private func isTrue(_ condition: String, of caller: SecurityRules.Caller) throws -> Bool {
        let rules = try Ruleset.load(
            source: """
                rules_version = '2';
                service firebase.storage {
                  match /b/{bucket}/o/{name} { allow get: if \(condition); }
                }
                """)
        let time = try #require(Timestamp(rfc3339: "2026-01-01T00:00:00Z"))
        return rules.decide(
            Request(.get, bucket: "photos", object: "a", caller: caller, time: time)
        ).isAllowed
    }

    @Test(arguments: [
        "request.auth.uid == 'alice'",
        "request.auth.token.a == [1, 2, 2.5, 1000, 9223372036854775808.0]",
        "request.auth.token.a[0] is int && request.auth.token.a[2] is float",
        "request.auth.token.b == {'c': null, 'd': true, 'e': false}",
        "request.auth.token['\u{e9}\"'] == 'x\u{e9}'",
    ])
    func claimsBecomeValues(condition: String) throws {
        let principal = try principal(
            #"""
            {"a": [1, 2.0, 2.5, 1e3, 9223372036854775808], "\u00e9\"": "x\u00e9",
             "b": {"c": null, "d": true, "e": false}}
            """#)
        #expect(try isTrue(condition, of: principal.auth))
    }

    /// Otherwise a token could claim a certificate that the connection has not shown.
    @Test func aTokensOwnCertificateIsLeftOut() throws {
        let spoofed = try principal(#"{"certificate": {"uid": "a"}, "x": {"certificate": 1}}"#)
        #expect(try isTrue("!('certificate' in request.auth.token)", of: spoofed.auth))
        #expect(try isTrue("request.auth.token == {'x': {'certificate': 1}}", of: spoofed.auth))
        #expect(try isTrue("request.auth.token == {}", of: try principal(nil).auth))
    }

    @Test func aPrincipalIsConvertedOnce() throws {
        let principal = try principal(#"{"a": 1}"#)
        #expect(principal.derived.object == nil)
        _ = principal.auth
        let object = principal.derived.object
        let kept = try #require(object)
        _ = principal.auth
        var caller = Caller(peer: "192.0.2.1:1", isSecure: true)
        #expect(caller.auth == nil)
        caller.identify(principal)
        #expect(caller.auth != nil && caller.principal === principal)
        #expect(principal.derived.object === kept)
    }
}
