import SecurityRules
import Wire

/// Random requests from the paths and texts of rules. They find simple examples where the solver did not decide in time.
package struct RequestSampler {
    private static let types = ["image/png", "image/jpeg", "application/pdf", "video/mp4", "audio/mpeg", "text/plain"]

    private var texts: [String]
    /// The collections of documents that are looked up.
    private var collections: [String]
    private var numbers: [Int64] = [0, 1, 1000]
    /// For each match block, the segments behind the bucket's `o`: nil for a capture; a glob is left out.
    private var paths: [[String?]]
    private var state: UInt64

    /// - Parameter seed: Equal seeds give equal requests.
    package init(_ rules: [AnalyzedRules], seed: UInt64) {
        var words: Set<BytewiseString> = [
            "alice", "bob", "a", "a.jpg", "image/png", "application/pdf", "video/mp4", "true", "", "users",
        ]
        var collections: Set<BytewiseString> = []
        paths = []
        for one in rules {
            Self.collect(Array(one.rules.source.utf8), &words, &collections, &numbers)
            paths += one.resolved.blocks.map(Self.path)
        }
        for word in words {
            let bytes = Array(word.utf8)
            guard let dot = bytes.lastIndex(of: UInt8(ascii: ".")) else { continue }
            words.insert(BytewiseString(String(decoding: bytes[(dot + 1)...], as: UTF8.self)))
        }
        texts = words.sorted().map(\.text)
        self.collections = collections.sorted().map(\.text)
        state = seed
    }

    /// Adds the words of a text, those behind `documents`, and its numbers with those next to them.
    private static func collect(
        _ source: [UInt8], _ words: inout Set<BytewiseString>, _ collections: inout Set<BytewiseString>,
        _ numbers: inout [Int64]
    ) {
        let marks = Array("_-.@".utf8)
        var (word, last): ([UInt8], [UInt8]) = ([], [])
        var number: Int64 = 0
        for byte in source + [0] {
            let isDigit = (UInt8(ascii: "0")...UInt8(ascii: "9")).contains(byte)
            let isLetter = (UInt8(ascii: "a")...UInt8(ascii: "z")).contains(byte | 0x20)
            if isDigit || isLetter || marks.contains(byte) {
                word.append(byte)
                if isDigit, number < 1 << 40 { number = number * 10 + Int64(byte - UInt8(ascii: "0")) }
                continue
            }
            if !word.isEmpty, word.count < 40 {
                let text = BytewiseString(String(decoding: word, as: UTF8.self))
                words.insert(text)
                if last == Array("documents".utf8) { collections.insert(text) }
                last = word
            }
            if (1...(1 << 42)).contains(number) {
                numbers += [number - 1, number, number << 10, number << 20, (number << 20) - 1]
            }
            (word, number) = ([], 0)
        }
    }

    private static func path(_ block: ResolvedRules.Block) -> [String?] {
        var path: [String?] = []
        for segment in block.segments.dropFirst(3) {
            switch segment {
            case .literal(let text): path.append(text)
            case .single: path.append(nil)
            case .glob: break
            }
        }
        return path
    }

    // MARK: Values

    private mutating func below(_ count: Int) -> Int {
        state = state &* 6_364_136_223_846_793_005 &+ 1_442_695_040_888_963_407
        return Int((state >> 33) % UInt64(count))
    }

    private mutating func text() -> String { texts[below(texts.count)] }

    private mutating func value() -> Value {
        switch below(6) {
        case 0: .bool(true)
        case 1: .int(numbers[below(numbers.count)])
        case 2: .list([.string(text()), .string(text())])
        case 3: .map([BytewiseString(text()): .bool(true)])
        default: .string(text())
        }
    }

    /// Up to two fields.
    private mutating func fields(_ value: (inout RequestSampler) -> Value) -> [Value.Key: Value] {
        var fields: [Value.Key: Value] = [:]
        for _ in 0..<2 { fields[BytewiseString(text())] = value(&self) }
        return fields
    }

    private mutating func object() -> [ObjectField: Value] {
        var object: [ObjectField: Value] = [.size: .int(numbers[below(numbers.count)])]
        object[.contentType] = .string(Self.types[below(Self.types.count)])
        if below(2) == 0 { object[.metadata] = .map(fields { .string($0.text()) }) }
        return object
    }

    /// A request on a path that a match of the rules may match.
    package mutating func next(_ method: Method) -> ExampleRequest {
        var request = ExampleRequest(method)
        let path = paths.isEmpty ? [nil] : paths[below(paths.count)]
        let owner = text()
        request.segments = path.map { segment in
            let text = segment ?? (below(2) == 0 ? owner : text())
            return text.isEmpty ? "a" : text
        }
        while request.segments.count < 7, below(2) == 0 { request.segments.append("x\(below(3))") }
        if request.segments.isEmpty, method != .list { request.segments = ["x"] }
        if below(4) > 0 {
            request.uid = below(2) == 0 ? owner : text()
            for _ in 0..<below(4) { request.token[BytewiseString(text())] = value() }
        }
        if method != .list, below(3) > 0 { request.existing = object() }
        if request.incoming != nil { request.incoming = object() }
        for name in [request.uid ?? "x", owner] {
            for collection in collections where below(4) > 0 {
                guard let path = DocumentPath("/databases/(default)/documents/\(collection)/\(name)") else { continue }
                request.documents[path] = .present(fields { $0.value() })
            }
        }
        return request
    }
}
