import TestSupport

/// Random conditions and rulesets. Many are odd on purpose: wrong types, missing keys, nested logic.
struct RandomRules {
    var random: SeededGenerator

    static let words = ["alice", "bob", "a", "A", "image/png", "image/", "x.jpg", "", "admin", "owner", "a/b", "é"]
    static let patterns = [
        "image/.*", ".*\\\\.jpg", "[a-z]+", "(alice|bob)", "^a.*$", "[^/]*", "(?i)ALICE", "a{1,3}", ".*@x\\\\.org",
        "\\\\w+",
        "(a|ab)(c|bcd)?", "", ".", "[A-Za-z0-9._-]{1,5}",
    ]
    static let claims = ["admin", "role", "roles", "email"]
    static let keys = ["owner", "kind", "x"]

    private mutating func pick(_ choices: [String]) -> String { random.pick(choices) }
    private mutating func one(in count: Int) -> Bool { random.below(count) == 0 }
    private mutating func quoted() -> String { "'" + pick(Self.words) + "'" }

    // MARK: Rulesets

    /// A ruleset of a few blocks.
    mutating func ruleset() -> String {
        let blocks = (0..<1 + random.below(3)).map { _ in block() }
        return """
            rules_version = '2';
            service firebase.storage {
              match /b/{bucket}/o {
                function f(x) { return \(condition(2, ["x"])); }
                function g(x, y) { let z = \(any(1, ["x", "y"])); return \(condition(2, ["x", "y", "z"])); }
                \(blocks.joined(separator: "\n    "))
              }
            }

            """
    }

    /// A ruleset of one statement for each object.
    mutating func statement() -> String {
        """
        rules_version = '2';
        service firebase.storage {
          match /b/{bucket}/o/{rest=**} { allow read, write: if \(condition(2, ["rest"])); }
        }

        """
    }

    private mutating func block() -> String {
        let path = pick([
            "/users/{uid}", "/users/{uid}/{rest=**}", "/{rest=**}", "/{x}/{y}", "/public/a", "/a/{rest=**}/b",
        ])
        var captures = ["bucket"]
        for name in ["uid", "rest", "x", "y"] where path.contains("{\(name)") { captures.append(name) }
        let allows = (0..<1 + random.below(2)).map { _ in
            let methods = pick([
                "read", "write", "get", "list", "create", "update, delete", "read, write", "create, get",
            ])
            return "allow \(methods): if \(condition(3, captures));"
        }
        return "match \(path) { \(allows.joined(separator: " ")) }"
    }

    /// A ruleset with one small change.
    mutating func mutated(_ rules: String) -> String {
        let changes = [
            ("==", "!="), ("!=", "=="), (" && ", " || "), (" || ", " && "), ("alice", "bob"), ("null", "true"),
            ("<", "<="),
            ("true", "false"), ("/users/", "/a/"), ("read", "get"), ("{rest=**}", "x"), (".size()", ".size() + 1"),
            ("image/", "a"), ("uid", "token"), ("hasAny", "hasAll"), ("request.resource", "resource"), ("> 0", "> 1"),
        ]
        for _ in 0..<20 {
            let (from, to) = changes[random.below(changes.count)]
            let parts = rules.split(separator: from, omittingEmptySubsequences: false).map(String.init)
            guard parts.count > 1 else { continue }
            let index = 1 + random.below(parts.count - 1)
            return parts[..<index].joined(separator: from) + to + parts[index...].joined(separator: from)
        }
        return rules
    }

    // MARK: Expressions

    mutating func condition(_ depth: Int, _ names: [String]) -> String {
        if depth == 0 { return atom(names) }
        switch random.below(12) {
        case 0, 1, 2: return "(\(condition(depth - 1, names)) && \(condition(depth - 1, names)))"
        case 3, 4: return "(\(condition(depth - 1, names)) || \(condition(depth - 1, names)))"
        case 5: return "!(\(condition(depth - 1, names)))"
        case 6: return "(\(condition(depth - 1, names)) ? \(condition(depth - 1, names)) : \(any(depth - 1, names)))"
        case 7 where names.contains("bucket"):
            return pick(["f(\(any(1, names)))", "g(\(any(1, names)), \(any(1, names)))"])
        default: return atom(names)
        }
    }

    private mutating func atom(_ names: [String]) -> String {
        let (a, b, number, other) = (string(names), string(names), integer(names), integer(names))
        let list = list(names)
        switch random.below(22) {
        case 0:
            return pick([
                "request.auth != null", "request.auth == null", "true", "false", "resource == null", "resource != null",
            ])
        case 1: return "\(a) == \(b)"
        case 2: return "\(a) != \(b)"
        case 3: return "\(number) \(pick(["<", "<=", ">", ">="])) \(other)"
        case 4: return "\(number) == \(other)"
        case 5: return "\(a).matches('\(pick(Self.patterns))')"
        case 6: return "\(a) in \(list)"
        case 7: return "\(list).\(pick(["hasAny", "hasAll", "hasOnly"]))(\(self.list(names)))"
        case 8:
            return
                "\(any(1, names)) is \(pick(["string", "int", "map", "list", "bool", "number", "path", "null", "timestamp"].filter { $0 != "null" }))"
        case 9: return "\(quoted()) in \(map(names))"
        case 10: return "\(any(1, names)) == \(any(1, names))"
        case 11: return "request.time \(pick(["<", ">"])) timestamp.date(20\(10 + random.below(30)), 1, 1)"
        case 12: return "\(map(names)).\(pick(["keys().hasOnly", "keys().hasAll", "keys().hasAny"]))(['owner', 'x'])"
        case 13:
            return
                "request.resource.metadata.diff(resource.metadata).\(pick(["affectedKeys", "addedKeys", "removedKeys", "changedKeys", "unchangedKeys"]))().\(pick(["hasOnly", "hasAny", "hasAll"]))(['owner'])"
        case 14: return "request.auth.token.\(pick(Self.claims))"
        case 15: return "\(map(names)) == \(map(names))"
        case 16: return "firestore.exists(/databases/(default)/documents/users/$(\(a)))"
        case 17: return "firestore.get(/databases/(default)/documents/users/$(\(a))).data.\(pick(Self.claims)) == \(b)"
        case 18: return "request.method == '\(pick(["get", "create", "delete"]))'"
        case 19: return "request.path[\(random.below(5))] == \(quoted())"
        case 20: return "request.path == \(pick(["/b/$(bucket)/o/users/alice", "/b/x/o/$(\(a))"]))"
        default: return names.isEmpty ? "true" : "\(pick(names)) == \(any(1, names))"
        }
    }

    mutating func string(_ names: [String]) -> String {
        let name = names.isEmpty ? "'a'" : pick(names)
        switch random.below(18) {
        case 0, 1, 2: return quoted()
        case 3: return "request.auth.uid"
        case 4: return "request.auth.token.\(pick(Self.claims))"
        case 5: return "request.resource.contentType"
        case 6: return "resource.contentType"
        case 7: return "request.resource.metadata.\(pick(Self.keys))"
        case 8: return "resource.metadata.\(pick(Self.keys))"
        case 9, 10, 11: return name
        case 12: return "(\(quoted()) + \(name))"
        case 13:
            return
                "\(pick(["request.resource", "resource"])).\(pick(["name", "bucket", "md5Hash", "etag", "cacheControl"]))"
        case 14: return "request.auth.uid.\(pick(["lower()", "upper()"]))"
        case 15: return "\(map(names)).get('\(pick(Self.keys))', \(any(0, names)))"
        case 16: return "request.params.\(pick(Self.keys))"
        default:
            return pick([
                "string(1)", "string(\(name))", "request.resource.name.split('/')[\(random.below(3))]",
                "\(name).trim()",
            ])
        }
    }

    mutating func integer(_ names: [String]) -> String {
        switch random.below(12) {
        case 0, 1: return "\(random.below(6))"
        case 2, 3: return "request.resource.size"
        case 4: return "resource.size"
        case 5: return "\(string(names)).size()"
        case 6: return "(\(integer(names)) \(pick(["+", "-", "*", "/", "%"])) \(random.below(4)))"
        case 7: return "\(random.below(5)).5"
        case 8: return "request.auth.token.\(pick(Self.claims))"
        case 9: return pick(["request.time.dayOfWeek()", "request.time.hours()", "int('7')", "-3", "math.abs(-2)"])
        case 10: return "\(list(names)).size()"
        default: return "resource.\(pick(["generation", "metageneration"]))"
        }
    }

    mutating func list(_ names: [String]) -> String {
        switch random.below(6) {
        case 0, 1: return "[\((0..<random.below(4)).map { _ in quoted() }.joined(separator: ", "))]"
        case 2: return "[\(any(0, names)), \(any(0, names))]"
        case 3, 4: return "request.auth.token.\(pick(["roles", "role"]))"
        default: return "\(map(names)).keys()"
        }
    }

    mutating func map(_ names: [String]) -> String {
        pick([
            "request.resource.metadata", "resource.metadata", "request.auth.token", "request.params", "resource",
            "request.resource",
            "{'owner': 'alice'}", "request.auth", "{}",
        ])
    }

    mutating func any(_ depth: Int, _ names: [String]) -> String {
        switch random.below(9) {
        case 0: return pick(["null", "true", "1", "2.0", "request.time", "request", "resource.timeCreated"])
        case 1: return integer(names)
        case 2 where depth > 0: return list(names)
        case 3 where depth > 0: return map(names)
        case 4 where !names.isEmpty: return pick(names)
        case 5: return "request.auth.token.\(pick(Self.claims))"
        default: return string(names)
        }
    }
}

extension SeededGenerator {
    mutating func below(_ count: Int) -> Int { Int(next() % UInt64(count)) }
    mutating func pick<Element>(_ choices: [Element]) -> Element { choices[below(choices.count)] }
}
