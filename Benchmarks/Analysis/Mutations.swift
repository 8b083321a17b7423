import SecurityRules
import Wire

/// Small changes of a rules file, as an edit or a mistake makes them.
enum Mutations {
    /// What is replaced, by what.
    private static let changes: [(String, String)] = [
        ("request.auth != null", "true"), (" && ", " || "), ("==", "!="), ("!= null", "== null"),
        ("read", "read, write"),
        ("create", "create, delete"), ("update", "update, get"), ("image/.*", ".*"), ("if ", "if true || "), ("<", ">"),
        ("<", "<="),
        ("1024 * 1024", "1025 * 1024"), ("admin", "user"), ("== true", "!= false"),
        ("if false", "if request.auth != null"),
        ("uid ==", "uid !="), ("request.resource", "resource"), ("}/{", "}/x/{"), ("=**}", "}"), ("} {", "=**} {"),
        ("isOwner(", "!isOwner("), ("(jpeg", "(gif|jpeg"), ("email_verified", "email"), ("allow write", "allow create"),
        ("data.role", "data.name"), ("exists(", "get("),
    ]

    /// Changed copies of a file, all of which load: at most one for each kind of change.
    static func of(_ source: String) -> [Ruleset] {
        var mutated: [Ruleset] = []
        for (index, (from, to)) in changes.enumerated() {
            let ranges = source.ranges(of: from).filter { source[..<$0.lowerBound].contains("service") }
            guard !ranges.isEmpty else { continue }
            // A different occurrence for each kind, the same in each run.
            let range = ranges[(index * 7 + source.utf8.count) % ranges.count]
            let text = source[..<range.lowerBound] + to + source[range.upperBound...]
            if let rules = try? Ruleset.load(source: String(text), fileName: "new: \(from) -> \(to)") {
                mutated.append(rules)
            }
        }
        return mutated
    }
}
