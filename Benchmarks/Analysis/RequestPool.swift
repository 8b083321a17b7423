import RulesAnalysis
import SecurityRules
import Wire

/// Random requests from the texts of a rules file, to look for what the analysis has missed.
struct RequestPool {
    private var texts: [String]
    private var numbers: [Int64] = [0, 1, 1000]
    private var state: UInt64 = 7

    init(_ sources: [String]) {
        var words: Set<String> = [
            "alice", "bob", "a", "a.jpg", "image/png", "application/pdf", "video/mp4", "true", "", "users",
        ]
        for source in sources {
            var word: [UInt8] = []
            var digits: Int64 = 0
            for byte in source.utf8 {
                let isWord = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.@".utf8.contains(byte)
                if isWord {
                    word.append(byte)
                    if (48...57).contains(byte), digits < 1 << 40 { digits = digits * 10 + Int64(byte - 48) }
                    continue
                }
                if !word.isEmpty, word.count < 40 { words.insert(String(decoding: word, as: UTF8.self)) }
                if digits > 0 {
                    numbers += [digits - 1, digits, digits * 1024 * 1024, digits * 1024 * 1024 - 1, digits * 1024]
                }
                (word, digits) = ([], 0)
            }
            for part in words where part.utf8.contains(46) {
                words.insert(String(part.split(separator: ".").last ?? ""))
            }
        }
        texts = words.sorted()
    }

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
    private mutating func fields(_ value: (inout RequestPool) -> Value) -> [Value.Key: Value] {
        var fields: [Value.Key: Value] = [:]
        for _ in 0..<2 { fields[BytewiseString(text())] = value(&self) }
        return fields
    }

    /// A request on a path that a match of the rules may match.
    mutating func request(_ method: Method, _ paths: [[String?]]) -> ExampleRequest {
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
            for collection in texts where below(4) == 0 {
                guard let path = DocumentPath("/databases/(default)/documents/\(collection)/\(name)") else { continue }
                request.documents[path] = .present(fields { $0.value() })
            }
        }
        return request
    }

    private mutating func object() -> [ObjectField: Value] {
        var object: [ObjectField: Value] = [.size: .int(numbers[below(numbers.count)])]
        let types = ["image/png", "image/jpeg", "application/pdf", "video/mp4", "audio/mpeg", "text/plain"]
        object[.contentType] = .string(types[below(types.count)])
        if below(2) == 0 { object[.metadata] = .map(fields { .string($0.text()) }) }
        return object
    }
}
