import SecurityRules
import Wire

/// Makes an example smaller and plainer, as long as it stays one. The engine decides, not the solver.
struct Shrinker {
    /// The largest number of decisions.
    private static let maximumTrials = 4_000
    /// Names that are tried in place of others: for callers, for the last segment, and for everything else.
    private static let callers = ["alice"]
    private static let files = ["a.jpg"]
    private static let names = [
        "bob", "carol", "a", "b", "c", "d", "e", "f", "g", "h", "image/png", "text/plain", "video/mp4",
    ]
    private static let known = callers + files + names

    private let holds: (inout ExampleRequest) -> Bool
    private(set) var example: ExampleRequest
    private var trials = 0

    init(_ example: ExampleRequest, holds: @escaping (inout ExampleRequest) -> Bool) {
        self.example = example
        self.holds = holds
    }

    mutating func run() {
        var before: ExampleRequest?
        for _ in 0..<4 where before != example {
            before = example
            shrinkInputs()
            shrinkPath()
            rename()
            shrinkStrings()
            shrinkNumbers()
        }
        makeRealistic()
    }

    /// Makes a change, unless the result is no example any more.
    @discardableResult
    private mutating func attempt(_ change: (inout ExampleRequest) -> Void) -> Bool {
        var changed = example
        change(&changed)
        guard changed != example, trials < Self.maximumTrials else { return false }
        trials += 1
        guard holds(&changed) else { return false }
        example = changed
        return true
    }

    private mutating func shrinkInputs() {
        attempt { $0.bucket = "b" }
        attempt { $0.time = ExampleRequest.defaultTime }
        attempt { $0.documents = [:] }
        attempt { $0.existing = nil }
        attempt { ($0.uid, $0.token) = (nil, [:]) }
        attempt { $0.token = [:] }
        attempt { $0.parameters = [:] }
        if example.incoming != nil { attempt { $0.incoming = [.size: .int(1)] } }
        for path in Array(example.documents.keys) {
            attempt { $0.documents[path] = nil }
            attempt { $0.documents[path] = .absent }
        }
        for field in ObjectField.allCases {
            attempt { $0.existing?[field] = nil }
            attempt { $0.incoming?[field] = nil }
        }
        for key in Array(example.token.keys) { attempt { $0.token[key] = nil } }
        for key in Array(example.parameters.keys) { attempt { $0.parameters[key] = nil } }
        for field in [ObjectField.metadata] {
            for key in keys(example.existing?[field]) { attempt { $0.existing?[field]?.remove(key) } }
            for key in keys(example.incoming?[field]) { attempt { $0.incoming?[field]?.remove(key) } }
        }
        for (path, lookup) in example.documents {
            guard case .present(let fields) = lookup else { continue }
            for key in fields.keys { attempt { $0.documents[path] = $0.documents[path]?.without(key) } }
        }
    }

    private func keys(_ value: Value?) -> [BytewiseString] {
        if case .map(let fields)? = value { Array(fields.keys) } else { [] }
    }

    private mutating func shrinkPath() {
        var index = example.segments.count - 1
        while index >= 0 {
            if example.segments.count > 1, index < example.segments.count {
                let index = index
                attempt { $0.segments.remove(at: index) }
            }
            index -= 1
        }
    }

    // MARK: Strings

    /// The strings that are not names of keys.
    private var strings: [String] {
        var found: [String] = []
        var copy = example
        copy.mapStrings { text in
            if !found.contains(text) { found.append(text) }
            return text
        }
        return found
    }

    private mutating func rename() {
        for text in strings where !Self.known.contains(text) {
            let isLast = example.method != .list && example.segments.count > 1 && text == example.segments.last
            let preferred = text == example.uid ? Self.callers : isLast ? Self.files : []
            for name in preferred + Self.names where !strings.contains(name) {
                if attempt({ $0.mapStrings { $0 == text ? name : $0 } }) { break }
            }
        }
    }

    private mutating func shrinkStrings() {
        for text in strings where !Self.known.contains(text) && text.utf8.count < 400 {
            var scalars = Array(text.unicodeScalars)
            var current = text
            var index = 0
            func string(_ scalars: [Unicode.Scalar]) -> String {
                var text = ""
                text.unicodeScalars.append(contentsOf: scalars)
                return text
            }
            while index < scalars.count {
                var shorter = scalars
                shorter.remove(at: index)
                let (old, new) = (current, string(shorter))
                if attempt({ $0.mapStrings { $0 == old ? new : $0 } }) {
                    (scalars, current) = (shorter, new)
                    continue
                }
                let isPlain = scalars[index].isASCII && scalars[index].value > 0x20 && scalars[index].value < 0x7F
                for plain in isPlain ? [] : ["a", "1"] as [Unicode.Scalar] {
                    var plainer = scalars
                    plainer[index] = plain
                    let (old, new) = (current, string(plainer))
                    if attempt({ $0.mapStrings { $0 == old ? new : $0 } }) {
                        (scalars, current) = (plainer, new)
                        break
                    }
                }
                index += 1
            }
        }
    }

    // MARK: Numbers

    private mutating func shrinkNumbers() {
        for field in ObjectField.allCases {
            if case .int(let value)? = example.incoming?[field] {
                smallest(value) { $0.incoming?[field] = .int($1) }
            }
            if case .int(let value)? = example.existing?[field] {
                smallest(value) { $0.existing?[field] = .int($1) }
            }
        }
        for (key, value) in example.token {
            if case .int(let value) = value { smallest(value) { $0.token[key] = .int($1) } }
        }
    }

    /// Looks for a small number by halving.
    private mutating func smallest(_ value: Int64, _ change: (inout ExampleRequest, Int64) -> Void) {
        if value == 1 || attempt({ change(&$0, 1) }) || value == 0 || attempt({ change(&$0, 0) }) || value < 0 {
            return
        }
        var (low, high) = (Int64(0), value)
        while high - low > 1 {
            let middle = low + (high - low) / 2
            if attempt({ change(&$0, middle) }) { high = middle } else { low = middle }
        }
    }

    // MARK: What objects have

    /// Adds a name of a file, and the properties that every object has.
    private mutating func makeRealistic() {
        if example.method != .list, let last = example.segments.last {
            let isFile = Self.files.contains(last)
            attempt { $0.segments = isFile ? $0.segments.dropLast() + ["bob", last] : $0.segments + Self.files }
        }
        if [.get, .update, .delete].contains(example.method), example.existing == nil { attempt { $0.existing = [:] } }
        if example.incoming != nil, example.incoming?[.size] == nil { attempt { $0.incoming?[.size] = .int(1) } }
        if example.existing != nil, example.existing?[.size] == nil { attempt { $0.existing?[.size] = .int(1) } }
    }
}

extension Value {
    fileprivate mutating func remove(_ key: BytewiseString) {
        guard case .map(var fields) = self else { return }
        fields[key] = nil
        self = .map(fields)
    }

    fileprivate func mappingStrings(_ body: (String) -> String) -> Value {
        switch self {
        case .string(let text): .string(body(text))
        case .list(let values): .list(values.map { $0.mappingStrings(body) })
        case .map(let fields): .map(fields.mapValues { $0.mappingStrings(body) })
        default: self
        }
    }
}

extension Lookup {
    fileprivate func without(_ key: BytewiseString) -> Lookup {
        guard case .present(var fields) = self else { return self }
        fields[key] = nil
        return .present(fields)
    }
}

extension ExampleRequest {
    /// Replaces each string that is a value. Segments and documents stay what they can be.
    fileprivate mutating func mapStrings(_ body: (String) -> String) {
        let changed = segments.map(body)
        if changed.allSatisfy({ !$0.isEmpty && !$0.utf8.contains(UInt8(ascii: "/")) }) { segments = changed }
        uid = uid.map(body)
        let renamed = body(bucket)
        if !renamed.isEmpty, !renamed.utf8.contains(UInt8(ascii: "/")) { bucket = renamed }
        token = token.mapValues { $0.mappingStrings(body) }
        existing = existing?.mapValues { $0.mappingStrings(body) }
        incoming = incoming?.mapValues { $0.mappingStrings(body) }
        parameters = parameters.mapValues { $0.mappingStrings(body) }
        documents = Dictionary(
            documents.map { path, lookup in
                let texts = path.segments.enumerated().map { index, bytes in
                    let text = String(decoding: bytes, as: UTF8.self)
                    return index < 3 ? text : body(text)
                }
                let path = DocumentPath("/" + texts.joined(separator: "/")) ?? path
                guard case .present(let fields) = lookup else { return (path, lookup) }
                return (path, .present(fields.mapValues { $0.mappingStrings(body) }))
            }, uniquingKeysWith: { first, _ in first })
    }
}
