import SecurityRules
import Wire

extension TestCase {
    /// A suite with one case, of the inputs of a decision (``Request/json``).
    package static func text(_ inputs: [(String, JSON)], isAllowed: Bool) -> String {
        func input(_ name: String) -> JSON? { inputs.first { $0.0 == name }?.1 }
        var name = isAllowed ? "allowed" : "denied"
        if case .string(let method) = input("method"), case .string(let path) = input("path") {
            name = "\(method) \(path) is \(name)"
        }
        var text = "cases:\n  - name: \(JSON.string(name).text)\n"
        for (key, value) in inputs {
            if case .null = value, key == "auth" { continue }
            text += "    \(key == "new" ? "request.resource" : key): \(value.text)\n"
        }
        return text + "    expect: \(isAllowed ? "allow" : "deny")\n"
    }
}
