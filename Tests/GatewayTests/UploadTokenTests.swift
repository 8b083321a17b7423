import Buckets
import Identity
import SecurityRules
import Testing
import Wire

import struct Gateway.Caller

@testable import Gateway
@testable import Telemetry

/// The tokens of upload sessions, and what is stored with one.
@Suite struct UploadTokenTests {
    private let token = UploadToken(
        dialect: .ietf, bucket: "photos", id: UploadSessionID(expires: 1_700_000_000))

    private func bytes(_ text: String) -> ArraySlice<UInt8> { Array(text.utf8)[...] }

    @Test func isReadBack() {
        let keys = UploadKeys.random()
        let sealed = keys.seal(token)
        #expect(keys.open(bytes(sealed)) == token)
        #expect(sealed != keys.seal(token))
        #expect(sealed.utf8.count <= UploadToken.maximumLength)
        #expect(UploadKeys.random().open(bytes(sealed)) == nil)
    }

    @Test func everyChangedCharacterIsRejected() {
        let keys = UploadKeys.random()
        let sealed = Array(keys.seal(token).utf8)
        for index in sealed.indices {
            for other in [UInt8(ascii: "A"), UInt8(ascii: "_"), UInt8(ascii: "=")]
            where other != sealed[index] {
                var changed = sealed
                changed[index] = other
                #expect(keys.open(changed[...]) == nil)
            }
            #expect(keys.open(sealed[..<index]) == nil)
            for bit in 0..<8 {
                var changed = sealed
                changed[index] ^= 1 << UInt8(bit)
                #expect(keys.open(changed[...]) == nil)
            }
        }
        #expect(keys.open((sealed + sealed)[...]) == nil)
    }

    @Test func olderKeysOpen() throws {
        let (first, second) = (try LinkKeys.generate(id: "a"), try LinkKeys.generate(id: "b"))
        let old = try UploadKeys(text: first)
        let sealed = bytes(old.seal(token))
        #expect(try UploadKeys(text: "\(second)\n\(first)\n").open(sealed) == token)
        #expect(try UploadKeys(text: second).open(sealed) == nil)
        // The same id with another secret is another key.
        #expect(try UploadKeys(text: LinkKeys.generate(id: "a")).open(sealed) == nil)
        #expect(throws: LinkKeys.Malformed.self) { try UploadKeys(text: "a short") }
    }

    @Test(arguments: [
        "/b/photos/u/", "/tus/", "PATCH http://127.0.0.1:1/b/a/u/", "/b/a%2Fu%2F", "upload_id=",
    ])
    func isNotLogged(_ before: String) throws {
        let sealed = UploadKeys.random().seal(token)
        let redacted = LogRedaction.redacted("\(before)\(sealed)".utf8.span)
        let text = String(decoding: try #require(redacted), as: UTF8.self)
        #expect(!text.contains(sealed.prefix(40)) && text.contains("<redacted>"))
        // A damaged one neither.
        let damaged =
            "\(before)\(sealed.prefix(3))%5E\(sealed.dropFirst(4).dropLast(20))^\(sealed.suffix(9))"
        let hidden = LogRedaction.redacted(damaged.utf8.span) ?? Array(damaged.utf8)
        #expect(!String(decoding: hidden, as: UTF8.self).contains(sealed.suffix(9)))
        var line = LogLine()
        line.quoted("\(before)\(sealed)")
        line.word("\(before)\(sealed)")
        #expect(!String(decoding: line.bytes, as: UTF8.self).contains(sealed.prefix(40)))
    }

    @Test func theContextIsReadBack() throws {
        let claims = #"""
            {"n":7,"f":1.5,"t":true,"z":null,"s":"\u00fc\"\u0001","a":[1,"x"],"big":1e300,
            "m":{"k":"v","deep":{"x":[null]}}}
            """#
        var caller = Caller(peer: "127.0.0.1:1", isSecure: false)
        caller.identify(
            Principal(
                kind: .token, uid: "alice", claims: try JSONDocument(Array(claims.utf8)),
                source: "i", group: "g", expires: .max))
        var context = UploadContext(
            .ietf, owner: CallerLimits.Key(group: "g", source: "i", caller: "alice"),
            caller: SavedCaller(caller))
        context.parameters = ["x": "y"]
        context.conditions.ifMatch = .tags(["1", "2"])
        context.conditions.ifNoneMatch = .any
        context.conditions.generation = 5
        context.digests.md5 = [UInt8](repeating: 1, count: 16)
        context.digests.crc32c = .max
        for algorithm in DigestAlgorithm.allCases {
            context.digests.others[algorithm] = [UInt8](repeating: 2, count: 64)
        }
        context.metadata = "a YQ==,b"
        let read = try #require(UploadContext(json: context.json, bucket: "b", name: "n"))
        #expect(read.json == context.json && read.metadata == context.metadata)
        #expect(read.conditions == context.conditions && read.digests == context.digests)
        #expect(read.owner == context.owner && read.parameters == context.parameters)
        #expect(read.caller?.principal.identity == caller.principal?.identity)
        #expect(!read.conditions.comparesS3Tags)
        context.conditions.comparesS3Tags = true
        #expect(UploadContext(json: context.json, bucket: "b", name: "n")?.conditions == context.conditions)
        // Rules see the same.
        let rules = try Ruleset.load(
            source: """
                rules_version = '2';
                service firebase.storage { match /b/{b}/o/{n} {
                  allow create: if request.auth.uid == 'alice' && request.auth.token.n == 7
                    && request.auth.token.f == 1.5 && request.auth.token.t
                    && request.auth.token.z == null && request.auth.token.a == [1, 'x']
                    && request.auth.token.m.deep.x == [null] && request.auth.token.s.size() == 3
                    && request.auth.token.big > 1000000000.5;
                } }
                """)
        let access = RequestedAccess(.create, bucket: "b", name: "n")
        var saved = Caller(peer: "127.0.0.1:1", isSecure: false)
        saved.become(read.caller)
        for caller in [caller, saved] {
            #expect(RulesPolicy(rules).decide(AuthorizationRequest(access, caller)) == .allow)
        }
    }

    @Test func aLinkIsReadBack() throws {
        var link = SignedLink(
            .put, bucket: "b", name: "n", issued: 1, expires: 2, size: .max, contentType: "a/b")
        link.pin = .version(3, 4)
        link.isDeadline = true
        var context = UploadContext(
            .ietf, owner: CallerLimits.Key(group: "links", caller: "127.0.0.1"), caller: nil)
        context.link = LinkGrant(link: link, key: "k")
        let read = try #require(UploadContext(json: context.json, bucket: "b", name: "n"))
        #expect(read.link?.link == link && read.link?.key == "k" && read.caller == nil)
        for other in ["", "{}", "[]", #"{"dialect":"x","group":"","source":"","caller":""}"#] {
            #expect(UploadContext(json: Array(other.utf8), bucket: "b", name: "n") == nil)
        }
    }
}

/// What follows from the interop version that a client announces.
@Suite struct UploadDraftTests {
    private func draft(_ fields: (StaticString, String)...) -> (UploadDraft, HeaderFields) {
        var header = HeaderFields()
        for (name, value) in fields { header.append(name, value) }
        return (UploadDraft(header), header)
    }

    private func version(_ text: String) -> UploadDraft {
        draft(("upload-draft-interop-version", text)).0
    }

    @Test func knownVersions() {
        for number in 3...8 { #expect(version("\(number)").version == number) }
        for text in ["2", "9", "", "x", "3.0", "3, 3", "-3", "?1"] {
            #expect(version(text).version == nil)
        }
        #expect(version(" 6;a=1 ").version == 6)
        #expect(
            (3...8).map { version("\($0)").requiresType } == [
                false, false, false, true, true, true,
            ])
        #expect(
            (3...8).map { version("\($0)").appendsAreLast } == [
                true, true, true, true, false, false,
            ])
        #expect(version("9").requiresType && !version("9").appendsAreLast)
    }

    @Test(arguments: [("?1", true), ("?0", false), (" ?0 ", false), ("?1;a=1;b", true)])
    func completeness(_ text: String, _ expected: Bool) throws {
        let (new, fields) = draft(("upload-complete", text))
        #expect(try new.isLast(fields) == expected)
        let (old, inverted) = draft(
            ("upload-draft-interop-version", "3"), ("upload-incomplete", text))
        #expect(try old.isLast(inverted) == !expected)
        // Version 3 has the one field, and every other version the other.
        for (version, name) in [("3", "upload-complete"), ("8", "upload-incomplete")]
            as [(String, StaticString)]
        {
            let (other, wrong) = draft(("upload-draft-interop-version", version), (name, text))
            #expect(throws: Problem.self) { try other.isLast(wrong) }
        }
    }

    @Test(arguments: ["1", "?2", "?", "?1 ?1", "?0, ?0", "true", ""])
    func malformedCompleteness(_ text: String) throws {
        let (new, fields) = draft(("upload-complete", text))
        #expect(throws: Problem.self) { try new.isLast(fields) }
        let (old, inverted) = draft(("upload-incomplete", text))
        #expect(throws: Problem.self) { try old.isLast(inverted) }
        let (two, both) = draft(("upload-complete", "?0"), ("upload-complete", "?0"))
        #expect(throws: Problem.self) { try two.isLast(both) }
        #expect(try new.isLast(HeaderFields()) == nil)
    }

    @Test func limits() {
        var report = UploadReport(offset: 5, expires: 100, maximumSize: .max)
        for (number, text) in [
            ("8", "max-size=999999999999999, max-age=40"),
            ("6", "max-size=999999999999999, expires=40"),
        ] {
            var fields = HeaderFields()
            version(number).append(report, now: 60, to: &fields)
            #expect(fields["upload-limit"] == text && fields["upload-complete"] == "?0")
            #expect(fields["upload-offset"] == "5")
        }
        report.isComplete = true
        var fields = HeaderFields()
        version("3").append(report, now: 200, to: &fields)
        #expect(fields["upload-incomplete"] == "?0" && !fields.contains("upload-complete"))
        #expect(fields["upload-limit"]?.hasSuffix("=0") == true)
    }
}
