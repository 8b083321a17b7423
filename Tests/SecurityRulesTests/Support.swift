import Testing

@testable import SecurityRules

/// Noon of 1 May 2024.
let noon = Timestamp(seconds: 1_714_564_800)!

/// A ruleset of version 2 with one condition for every method of every object.
func rules(_ condition: String, functions: String = "") throws(RulesetError) -> Ruleset {
    try Ruleset.load(
        source: """
            rules_version = '2';
            service firebase.storage {
              \(functions)
              match /b/{bucket}/o/{path=**} {
                allow read, write: if \(condition);
              }
            }
            """)
}

/// An object with all properties.
func everything(name: String = "dir/cat.png") -> ObjectFacts {
    var facts = ObjectFacts(name: name, bucket: "photos")
    facts.set(.generation, .known(17))
    facts.set(.metageneration, .known(2))
    facts.set(.size, .known(1024))
    facts.set(.timeCreated, .known(.timestamp(noon)))
    facts.set(.updated, .known(.timestamp(noon)))
    facts.set(.md5Hash, .known("1B2M2Y8AsgTpgAmY7PhCfg=="))
    facts.set(.crc32c, .known("AAAAAA=="))
    facts.set(.etag, .known("CAE="))
    facts.set(.contentType, .known("image/png"))
    facts.set(.metadata, .known(["owner": "alice"]))
    return facts
}

let alice = Caller(
    uid: "alice",
    token: [
        "email": "alice@example.com", "email_verified": true, "admin": true, "level": 3,
        "roles": ["editor", "viewer"],
    ])

/// Alice writes dir/cat.png over an object with all properties.
func request(_ method: Method = .create, object: String = "dir/cat.png") -> Request {
    var incoming = ObjectFacts(name: object, bucket: "photos")
    incoming.set(.size, .known(2048))
    incoming.set(.contentType, .known("image/png"))
    incoming.set(.md5Hash, .known("md5"))
    incoming.set(.crc32c, .known("crc"))
    incoming.set(.metadata, .known(["owner": "alice", "team": "red"]))
    let writes = method == .create || method == .update
    var request = Request(
        method, bucket: "photos", object: object, caller: alice, time: noon,
        existing: .object(everything(name: object)), incoming: writes ? incoming : nil)
    request.setParameters(["alt": "media"])
    request.setDocument(
        document("/databases/(default)/documents/users/alice"),
        .present(["role": "admin", "age": 7]))
    request.setDocument(document("/databases/(default)/documents/users/bob"), .absent)
    request.setDocument(
        document("/databases/(default)/documents/users/carol"), .present(["role": "guest"]))
    request.setDocument(document("/databases/(default)/documents/users/broken"), .failed)
    return request
}

/// Parses a document path with slashes.
func document(_ text: String) -> DocumentPath { DocumentPath(text)! }

/// The result of a condition: `true`, `false`, another value, or `error: …`.
func outcome(_ condition: String, functions: String = "", _ request: Request = request()) -> String {
    do {
        let explanation = try rules(condition, functions: functions).explain(request)
        guard let rule = explanation.blocks.first?.rules.first else { return "no rule" }
        return rule.outcome.description
    } catch {
        return "load: " + error.diagnostics.map(\.message).joined(separator: " | ")
    }
}

/// The errors and warnings of a ruleset: severity, position and message, such as `E 2:13 Unexpected token.`.
func diagnostics(_ source: String) -> [String] {
    let found: [Diagnostic]
    do {
        found = try Ruleset.load(source: source, fileName: "f").diagnostics
    } catch { found = error.diagnostics }
    return found.map {
        let position = $0.range.map { "\($0.lowerBound.line):\($0.lowerBound.column) " } ?? ""
        return "\($0.severity == .error ? "E" : "W") \(position)\($0.message)"
    }
}

/// Evaluates the left side of each line and compares it with the right side. An error is compared by the beginning
/// of its last sentence.
func check(
    _ table: String, functions: String = "", _ request: Request = request(),
    _ location: SourceLocation = #_sourceLocation
) {
    for line in table.split(separator: "\n") {
        let sides = line.components(" → ")
        guard sides.count == 2 else {
            Issue.record("no arrow in \(line)", sourceLocation: location)
            continue
        }
        let found = outcome("debug(\(sides[0]))", functions: functions, request)
        let isRight =
            sides[1].hasPrefix("error")
            ? found.hasPrefix("Error: ") && found.contains(sides[1].dropFirst("error ".count))
            : found == sides[1]
        #expect(isRight, "\(sides[0]) is \(found), not \(sides[1])", sourceLocation: location)
    }
}
