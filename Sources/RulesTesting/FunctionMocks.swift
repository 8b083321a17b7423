import SecurityRules
import YAML

extension APISuiteReader {
    /// What one function gives for a document.
    private enum Answer {
        case value(Value)
        case undefined
    }

    /// The documents that mocks of `firestore.get` and `firestore.exists` describe.
    ///
    /// Both functions look at one document: where it is got, it exists, and where it is only said to exist, it has no
    /// fields.
    mutating func mocks(_ node: Node) -> DocumentMocks {
        var gets: [String?: Answer] = [:]
        var exists: [String?: Answer] = [:]
        guard let nodes = node.sequence else {
            reader.fail("functionMocks must be a list", node.mark)
            return DocumentMocks()
        }
        for node in nodes {
            let keys = ["function", "args", "result"]
            guard let members = reader.members(node, "a mock", known: keys),
                let function = members["function"].flatMap({
                    reader.word($0, "function", of: ["firestore.get", "firestore.exists"])
                }), let target = target(members["args"], node),
                let answer = answer(members["result"], node)
            else { continue }
            if function == "firestore.get" {
                gets[target.exact] = answer
            } else {
                exists[target.exact] = answer
            }
        }
        var mocks = DocumentMocks()
        for path in Set(gets.keys).union(exists.keys) {
            let lookup = Self.lookup(
                get: gets[path] ?? gets[nil], exists: exists[path] ?? exists[nil])
            if let path { mocks[path] = lookup } else { mocks.others = lookup }
        }
        return mocks
    }

    private static func lookup(get: Answer?, exists: Answer?) -> Lookup {
        switch (get, exists) {
        case (.value(.map(let document)), _):
            guard case .map(let fields)? = document["data"] else { return .present([:]) }
            return .present(fields)
        case (.value(.null), _): return .absent
        case (.value, _): return .present([:])
        case (_, .value(.bool(true))): return .present([:])
        case (_, .value(.bool(false))): return .absent
        default: return .failed
        }
    }

    /// The document that a mock is for.
    private enum Target {
        case any
        case document(String)

        var exact: String? { if case .document(let path) = self { path } else { nil } }
    }

    private mutating func target(_ args: Node?, _ mock: Node) -> Target? {
        guard let list = args?.sequence, list.count == 1,
            let arg = reader.members(list[0], "an argument", known: ["exactValue", "anyValue"]),
            arg.count == 1
        else {
            reader.fail(
                "a mock needs 'args': one, of 'exactValue' or 'anyValue'", args?.mark ?? mock.mark)
            return nil
        }
        guard let exact = arg["exactValue"] else { return .any }
        return reader.string(exact, "exactValue").map { .document(DocumentMocks.whole($0)) }
    }

    private mutating func answer(_ result: Node?, _ mock: Node) -> Answer? {
        guard let result,
            let members = reader.members(result, "a result", known: ["value", "undefined"]),
            members.count == 1
        else {
            reader.fail("a mock needs 'result': 'value' or 'undefined'", result?.mark ?? mock.mark)
            return nil
        }
        return members["value"].map { .value(reader.value($0, isTyped: false)) } ?? .undefined
    }
}
