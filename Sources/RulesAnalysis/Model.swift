import Wire

/// The values that the solver found for the variables of a formula.
struct Model {
    enum Value: Hashable {
        case bool(Bool)
        case int(Int128)
        case string(Characters)
    }

    /// Keys: names of variables, which are ASCII.
    private(set) var values: [String: Value] = [:]
    private let terms: Terms

    /// Reads the result of `get-value`: `((name value) …)`. nil if it is something else.
    init?(_ text: Substring, _ terms: Terms) {
        self.terms = terms
        var reader = ModelReader(text)
        // A formula without variables has no values.
        if reader.isAtEnd { return }
        guard reader.skip("(") else { return nil }
        while reader.skip("(") {
            guard let name = reader.word(), let value = reader.value(), reader.skip(")") else { return nil }
            values[name] = value
        }
        guard reader.skip(")") else { return nil }
    }

    // MARK: Evaluation

    func bool(_ term: Term) -> Bool { if case .bool(let value) = evaluate(term) { value } else { false } }
    func int(_ term: Term) -> Int128 { if case .int(let value) = evaluate(term) { value } else { 0 } }
    func string(_ term: Term) -> String { if case .string(let value) = evaluate(term) { value.text } else { "" } }

    /// The value of a term. Variables that the formula does not have are false, 0 or empty.
    private func evaluate(_ term: Term) -> Value {
        switch terms[term] {
        case .bool(let value): return .bool(value)
        case .int(let value): return .int(value)
        case .string(let value): return .string(value)
        case .variable(let name, let sort):
            if let value = values[name] { return value }
            switch sort {
            case .bool: return .bool(false)
            case .int: return .int(0)
            case .string: return .string(Characters(""))
            }
        case .apply(let operation, let operands): return apply(operation, operands)
        }
    }

    private func apply(_ operation: TermOperator, _ operands: [Term]) -> Value {
        switch operation {
        case .not: return .bool(!bool(operands[0]))
        case .and: return .bool(operands.allSatisfy(bool))
        case .or: return .bool(operands.contains(where: bool))
        case .ifThenElse: return evaluate(operands[bool(operands[0]) ? 1 : 2])
        case .equal: return .bool(evaluate(operands[0]) == evaluate(operands[1]))
        case .less: return .bool(int(operands[0]) < int(operands[1]))
        case .lessOrEqual: return .bool(int(operands[0]) <= int(operands[1]))
        case .add: return .int(int(operands[0]) &+ int(operands[1]))
        case .multiply: return .int(int(operands[0]) &* int(operands[1]))
        case .quotient, .remainder:
            let (a, b) = (int(operands[0]), int(operands[1]))
            guard b > 0 else { return .int(0) }
            let rest = ((a % b) + b) % b
            return .int(operation == .remainder ? rest : (a - rest) / b)
        case .concatenation: return .string(Characters(operands.flatMap { characters($0).scalars }))
        case .length: return .int(Int128(characters(operands[0]).scalars.count))
        case .matches(let regex): return .bool(regex.matches(characters(operands[0]).scalars))
        case .function(let name, _):
            guard let mapping = LetterCase(rawValue: name) else { return .int(0) }
            return .string(Characters(characters(operands[0]).scalars.map(mapping.apply)))
        }
    }

    private func characters(_ term: Term) -> Characters {
        if case .string(let value) = evaluate(term) { value } else { Characters("") }
    }
}

/// Reads the tokens of a model.
private struct ModelReader {
    private let bytes: [UInt8]
    private var index = 0

    init(_ text: Substring) { bytes = Array(text.utf8) }

    private mutating func skipSpace() {
        while index < bytes.count, bytes[index] <= 0x20 { index += 1 }
    }

    var isAtEnd: Bool {
        mutating get {
            skipSpace()
            return index == bytes.count
        }
    }

    mutating func skip(_ token: String) -> Bool {
        skipSpace()
        guard bytes[index...].starts(with: token.utf8) else { return false }
        index += token.utf8.count
        return true
    }

    mutating func word() -> String? {
        skipSpace()
        let start = index
        while index < bytes.count, bytes[index] > 0x20, !"()\"".utf8.contains(bytes[index]) { index += 1 }
        return index == start ? nil : String(decoding: bytes[start..<index], as: UTF8.self)
    }

    mutating func value() -> Model.Value? {
        if skip("(") {
            guard skip("-"), let digits = word(), let value = Int128(digits), skip(")") else { return nil }
            return .int(-value)
        }
        if skip("\"") { return string().map(Model.Value.string) }
        guard let word = word() else { return nil }
        if word == "true" { return .bool(true) }
        if word == "false" { return .bool(false) }
        return Int128(word).map(Model.Value.int)
    }

    /// A string after its opening quotation mark, with the escapes `\u{…}` and `""`.
    private mutating func string() -> Characters? {
        var scalars: [UInt32] = []
        while index < bytes.count {
            let byte = bytes[index]
            index += 1
            if byte == UInt8(ascii: "\"") {
                guard index < bytes.count, bytes[index] == byte else { return Characters(scalars) }
                index += 1
            } else if byte == UInt8(ascii: "\\"), bytes[index...].starts(with: "u{".utf8),
                let end = bytes[index...].firstIndex(of: UInt8(ascii: "}"))
            {
                let digits = String(decoding: bytes[(index + 2)..<end], as: UTF8.self)
                guard let value = UInt32(digits, radix: 16) else { return nil }
                scalars.append(value)
                index = end + 1
                continue
            }
            scalars.append(UInt32(byte))
        }
        return nil
    }
}
