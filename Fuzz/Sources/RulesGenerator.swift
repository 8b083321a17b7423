@testable import SecurityRules

/// Generates rulesets and requests from bytes. Each byte is a choice. After the last byte, every choice is the first
/// one.
struct RulesGenerator {
    private let bytes: [UInt8]
    private var index = 0
    private var depth = 0
    /// The functions that may be called here, with their numbers of arguments.
    private var functions: [(name: String, count: Int)] = []
    private var variables = ["a", "rest"]

    init(_ bytes: [UInt8]) { self.bytes = bytes }

    private mutating func choose(_ count: Int) -> Int {
        guard index < bytes.count else { return 0 }
        index += 1
        return Int(bytes[index - 1]) % count
    }

    private mutating func pick(_ choices: [String]) -> String { choices[choose(choices.count)] }

    // MARK: Rulesets

    mutating func ruleset() -> String {
        var text = "rules_version = '2';\nservice firebase.storage {\n"
        for number in 0..<choose(4) { text += function(number) }
        for _ in 0...choose(3) { text += block() }
        return text + "}\n"
    }

    private mutating func function(_ number: Int) -> String {
        let count = choose(3)
        let outer = variables
        variables = (0..<count).map { "p\($0)" }
        let parameters = variables.joined(separator: ", ")
        var lets = ""
        for number in 0..<choose(3) {
            lets += "let l\(number) = \(expression()); "
            variables.append("l\(number)")
        }
        let text = "function f\(number)(\(parameters)) { \(lets)return \(expression()); }\n"
        variables = outer
        functions.append(("f\(number)", count))
        return text
    }

    private mutating func block() -> String {
        let path = pick([
            "/b/{a}/o/{rest=**}", "/b/{a}/o/dir/{rest}", "/{a=**}/{rest}",
            "/b/{a}/{rest=**}/cat.png", "/b/{a}/o/{rest}/cat.png",
        ])
        var text = "match \(path) {\n"
        for _ in 0...choose(2) {
            text +=
                "allow \(pick(["read, write", "write", "create", "get, list", "update"])): if \(expression());\n"
        }
        return text + "}\n"
    }

    // MARK: Expressions

    mutating func expression() -> String {
        depth += 1
        defer { depth -= 1 }
        guard depth < 7, index < bytes.count else { return leaf() }
        switch choose(16) {
        case 0, 1: return "(\(expression()) && \(expression()))"
        case 2, 3: return "(\(expression()) || \(expression()))"
        case 4:
            let sign = pick(["==", "!=", "<", "<=", ">", ">=", "in", "+", "-", "*", "/", "%"])
            return "(\(expression()) \(sign) \(expression()))"
        case 5: return "!\(expression())"
        case 6: return "(\(expression()) ? \(expression()) : \(expression()))"
        case 7: return "\(value()).\(method())"
        case 8: return call()
        case 9: return "\(value())[\(expression())]"
        case 10: return "\(value())[\(expression()):\(expression())]"
        case 11: return "[\(expression()), \(expression())]"
        case 12: return "{'a': \(expression()), 'b': \(expression())}"
        case 13: return "(\(expression()) is \(pick(TypeName.allCases.map(\.rawValue))))"
        case 14: return document()
        default: return leaf()
        }
    }

    private mutating func value() -> String {
        let inner = choose(2) == 0 ? leaf() : expression()
        return "(\(inner))"
    }

    private mutating func leaf() -> String {
        let leaves = [
            "true", "false", "null", "1", "2.5", "'a'", "'image/.*'", "b'xy'", "[]", "{}", "/x/y",
            "request",
            "resource", "request.resource", "request.auth", "request.auth.uid",
            "request.auth.token.email",
            "request.resource.size", "request.resource.contentType", "request.resource.md5Hash",
            "resource.size",
            "resource.metadata", "request.resource.metadata.owner", "request.time", "request.path",
            "request.method", "resource.name", "request.params", "nothing", "9223372036854775807",
            "duration.value(1, 's')", "latlng.value(1, 2)", "['a', 'b'].toSet()",
        ]
        return pick(leaves + variables)
    }

    private mutating func method() -> String {
        let entry = Library.methods[choose(Library.methods.count)]
        let arguments = entry.parameters.map { _ in choose(3) == 0 ? leaf() : "'a'" }
        return "\(entry.name)(\(arguments.joined(separator: ", ")))"
    }

    private mutating func call() -> String {
        if !functions.isEmpty, choose(2) == 0 {
            let (name, count) = functions[choose(functions.count)]
            return "\(name)(\((0..<count).map { _ in expression() }.joined(separator: ", ")))"
        }
        let function = Function.allCases[choose(Function.allCases.count)]
        let arguments = function.entry.parameters.map { _ in leaf() }
        return "\(function.entry.fullName)(\(arguments.joined(separator: ", ")))"
    }

    private mutating func document() -> String {
        let name = pick([
            "alice", "bob", "carol", "$(request.auth.uid)", "$(request.resource.contentType)",
        ])
        let path = "/databases/(default)/documents/users/\(name)"
        return choose(2) == 0 ? "firestore.exists(\(path))" : "firestore.get(\(path)).data.role"
    }

    mutating func pattern() -> String {
        (0..<choose(6)).map { _ in pick(["a", "/", ".", ".*", ".+", "\\.", "x", "-", "[.]", "é"]) }
            .joined()
    }

    mutating func text() -> String {
        (0..<choose(8)).map { _ in pick(["a", "/", ".", "x", "-", "\n", "é", "b"]) }.joined()
    }

    // MARK: Requests

    mutating func method() -> Method { Method.allCases[choose(Method.allCases.count)] }

    /// A request without unknown inputs.
    static func fullRequest(_ method: Method) -> Request {
        func object(_ size: Int64) -> ObjectFacts {
            var facts = ObjectFacts(name: "dir/cat.png", bucket: "photos")
            facts.set(.size, .known(.int(size)))
            facts.set(.contentType, .known("image/png"))
            facts.set(.md5Hash, .known("md5"))
            facts.set(.crc32c, .known("crc"))
            facts.set(.metadata, .known(["owner": "alice", "a": 1]))
            return facts
        }
        func document(_ name: String) -> DocumentPath {
            let segments = ["databases", "(default)", "documents", "users", name]
            guard let path = DocumentPath(segments.map { .text(Text($0)) }) else {
                preconditionFailure("no segment is empty")
            }
            return path
        }
        guard let time = Timestamp(seconds: 1_714_564_800) else {
            preconditionFailure("2024 is a year")
        }
        let writes = method == .create || method == .update
        var request = Request(
            method, bucket: "photos", object: "dir/cat.png",
            caller: Caller(uid: "alice", token: ["email": "a@example.com", "level": 2]),
            time: time, existing: .object(object(10)),
            incoming: writes ? object(20) : nil)
        request.setDocument(
            document("alice"), .present(["role": true]))
        request.setDocument(
            document("bob"), .absent)
        request.setDocument(
            document("carol"), .present(["role": "guest"]))
        request.setDocument(
            document("image/png"), .failed)
        return request
    }

    /// Makes one more input unknown.
    mutating func forget(in request: inout Request) {
        switch choose(5) {
        case 0: request.existing = .unknown
        case 1: request.incoming?.set(.size, .unknown)
        case 2:
            request.incoming?.set(.md5Hash, .unknown)
            request.incoming?.set(.contentType, .unknown)
        case 3: request.incoming?.set(.metadata, .unknown)
        default:
            let known = request.state.documents.keys.sorted { $0.description < $1.description }
            guard !known.isEmpty else { return }
            request = request.forgetting(known[choose(known.count)])
        }
    }
}

extension Request {
    /// The same request without the lookup of one document.
    fileprivate func forgetting(_ path: DocumentPath) -> Request {
        var other = Request(
            method, path: "/" + (state.path ?? []).map(\.string).joined(separator: "/"), time: time,
            existing: existing, incoming: incoming)
        other.setCaller(Caller(uid: "alice", token: ["email": "a@example.com", "level": 2]))
        for (known, lookup) in state.documents where known != path {
            other.setDocument(known, lookup)
        }
        return other
    }
}
