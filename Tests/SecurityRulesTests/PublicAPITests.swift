import SecurityRules
import Testing

/// What a user of the library can write, who can import no other module of the package.
@Suite("The public API")
struct PublicAPITests {
    @Test func namesThatAreKnownAtRunTimeAreKeys() throws {
        let rules = try Ruleset.load(
            source: """
                rules_version = '2';
                service firebase.storage {
                  match /b/{bucket}/o { match /{name} { allow get: if request.auth.token[name]; } }
                }
                """, fileName: "storage.rules")
        for name in ["e\u{301}", "\u{e9}"] {
            let caller = Caller(uid: "alice", token: [Value.Key(name): true])
            let time = try #require(Timestamp(seconds: 1_000_000_000))
            for object in ["e\u{301}", "\u{e9}"] {
                let request = Request(
                    .get, bucket: "photos", object: object, caller: caller, time: time)
                let isSame = Array(name.utf8) == Array(object.utf8)
                #expect((rules.decide(request) == .allowed) == isSame)
            }
        }
    }
}
