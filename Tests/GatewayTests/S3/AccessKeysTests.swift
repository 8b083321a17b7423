import Identity
import Testing
import Wire

@testable import Gateway

@Suite struct AccessKeysTests {
    private let secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"

    @Test func parsesAFile() throws {
        let keys = try AccessKeys(
            text: "# comment\nA.1-x \(secret)\talice@example.com\r\n   B_2  \(secret)#  ü/bob   writers # comment\n\t\n"
        )
        #expect(keys.count == 2)
        let alice = try #require(keys.find("A.1-x"))
        #expect(alice.secret == Array(secret.utf8) && alice.id == "A.1-x")
        #expect(alice.principal.uid == "alice@example.com" && alice.principal.group == "s3")
        #expect(alice.principal.source == "s3" && alice.principal.kind == .accessKey && alice.principal.expires == .max)
        #expect(alice.principal.kind.rawValue == "access-key")
        let bob = try #require(keys.find("B_2"))
        #expect(
            bob.secret == Array("\(secret)#".utf8) && bob.principal.uid == "ü/bob" && bob.principal.group == "writers")
        #expect(keys.find("b_2") == nil && keys.find("") == nil)
        #expect(keys.isConfigured(alice.principal) && !AccessKeys().isConfigured(alice.principal))
        let other = Principal(kind: .token, uid: "alice@example.com", source: "s3", group: "s3", expires: .max)
        #expect(!keys.isConfigured(other))
    }

    @Test(arguments: ["", "\n\n", "# nothing\n"]) func mayBeEmpty(text: String) throws {
        #expect(try AccessKeys(text: text).count == 0)
    }

    @Test("Errors have the line, and nothing of a secret") func errors() {
        let good = "A \(secret) alice"
        for (line, what) in [
            ("A \(secret)", "expected ID SECRET UID"), ("\(secret)", "expected"), ("A \(secret) u g more", "found 5"),
            ("a/b \(secret) u", "the id has"), ("\(secret)= \(secret) u", "the id has"),
            ("B \(secret.prefix(15)) u", "16 to 256"),
            ("B \(secret)ü u", "visible"), ("B \(secret) \(String(repeating: "u", count: 2049))", "the uid"),
            ("B \(secret) a\u{1}", "the uid"), ("B \(secret) u g/h", "the group"), ("A \(secret)2 bob", "a second key"),
        ] {
            do {
                _ = try AccessKeys(text: "\n\(good)\n\(line)\n")
                Issue.record("\(line) was accepted")
            } catch {
                let text = error.description
                #expect(text.hasPrefix("line 3: ") && text.contains(what), "\(text)")
                #expect(!text.contains(secret.prefix(8)))
            }
        }
    }

    @Test func generates() throws {
        let line = try AccessKeys.generate(uid: "alice", group: "team")
        let words = line.split(separator: " ")
        #expect(words.count == 4 && words[0].utf8.count == 20 && words[0].hasPrefix("SLUICE"))
        #expect(words[1].utf8.count == 40 && words[2] == "alice" && words[3] == "team")
        let keys = try AccessKeys(text: line + "\n" + AccessKeys.generate(uid: "alice"))
        #expect(keys.count == 2 && keys.find(String(words[0]))?.principal.group == "team")
        for uid in ["", "a b", "#a", "a\nb", "a\tb"] {
            #expect(throws: AccessKeys.Malformed.self) { try AccessKeys.generate(uid: uid) }
        }
        #expect(throws: AccessKeys.Malformed.self) { try AccessKeys.generate(uid: "a", group: "#x") }
    }
}
