import SecurityRules
import Wire
import YAML

extension APISuiteReader {
    private static let functions = ["firestore.get", "firestore.exists"]

    /// Reads the mocks of `firestore.get` and `firestore.exists`.
    mutating func mocks(_ node: Node, _ notes: inout [String]) -> DocumentMocks {
        var mocks = DocumentMocks()
        guard let nodes = node.sequence else {
            reader.fail("functionMocks must be a list", node.mark)
            return mocks
        }
        for node in nodes {
            let keys = ["function", "args", "result"]
            guard let members = reader.members(node, "a mock", known: keys),
                let function = members["function"].flatMap({ reader.string($0, "function") })
            else { continue }
            guard Self.functions.contains(function) else {
                let near = Ruleset.suggestion(for: function, among: Self.functions)
                let hint = near.map { "; did you mean '\($0)'?" } ?? ""
                notes.append("Rules for storage have no function '\(function)' to be mocked\(hint)")
                continue
            }
            guard let target = target(members["args"], node),
                let lookup = lookup(members["result"], node)
            else { continue }
            mocks.set(target.exact, function == "firestore.get" ? .get : .exists, lookup)
        }
        return mocks
    }

    /// The document that a mock applies to.
    private enum Target {
        case any
        case document(DocumentPath)

        var exact: DocumentPath? { if case .document(let path) = self { path } else { nil } }
    }

    private mutating func target(_ args: Node?, _ mock: Node) -> Target? {
        guard let list = args?.sequence, list.count == 1,
            let arg = reader.members(list[0], "an argument", known: ["exactValue", "anyValue"]), arg.count == 1
        else {
            reader.fail("a mock needs 'args': one, of 'exactValue' or 'anyValue'", args?.mark ?? mock.mark)
            return nil
        }
        guard let exact = arg["exactValue"] else { return .any }
        guard let text = reader.string(exact, "exactValue") else { return nil }
        guard let path = DocumentMocks.whole(text) else {
            reader.fail(DocumentMocks.fault(of: text), exact.mark)
            return nil
        }
        return .document(path)
    }

    /// Converts a mock's result to the result of a lookup.
    private mutating func lookup(_ result: Node?, _ mock: Node) -> Lookup? {
        guard let result,
            let members = reader.members(result, "a result", known: ["value", "undefined"]),
            members.count == 1
        else {
            reader.fail(
                "a mock needs 'result': 'value' or 'undefined'", result?.mark ?? mock.mark)
            return nil
        }
        guard let value = members["value"].map({ reader.value($0, isTyped: false) }) else {
            return .failed
        }
        switch value {
        case .null, .bool(false): return .absent
        case .map(let document):
            guard case .map(let fields)? = document["data"] else { return .present([:]) }
            return .present(fields)
        default: return .present([:])
        }
    }
}
