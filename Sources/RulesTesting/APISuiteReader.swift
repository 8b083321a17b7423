import SecurityRules
import Wire
import YAML

/// Reads the body of a request to `projects.test` of the Firebase Rules API, or only its `testSuite`.
///
/// `resource`, `request.resource` and `request.auth` have exactly the given values; one that is not given is null.
struct APISuiteReader {
    private static let caseKeys = [
        "expectation", "request", "resource", "functionMocks", "pathEncoding", "expressionReportLevel", "name",
    ]

    private let fileName: String
    private let now: Timestamp
    var reader: NodeReader

    init(fileName: String, now: Timestamp) {
        self.fileName = fileName
        self.now = now
        reader = NodeReader(fileName: fileName)
    }

    mutating func read(_ root: Node) throws(SuiteError) -> TestSuite {
        var suite = TestSuite(fileName: fileName, cases: [])
        let members = reader.members(root, "a request", known: ["source", "testSuite", "testCases"]) ?? [:]
        suite.source = members["source"].flatMap { source($0) }
        var list = members["testCases"]
        if let node = members["testSuite"] {
            list = reader.members(node, "testSuite", known: ["testCases"])?["testCases"] ?? list
        }
        if let nodes = list?.sequence, !nodes.isEmpty {
            for (index, node) in nodes.enumerated() {
                testCase(node, index).map { suite.cases.append($0) }
            }
        } else {
            reader.fail("a testSuite needs 'testCases', a list of them", list?.mark ?? root.mark)
        }
        guard reader.findings.isEmpty else { throw SuiteError(findings: reader.findings) }
        return suite
    }

    private mutating func source(_ node: Node) -> (text: String, fileName: String)? {
        let keys = ["files", "language"]
        guard let files = reader.members(node, "source", known: keys)?["files"]?.sequence,
            files.count == 1
        else {
            reader.fail("source must have one file", node.mark)
            return nil
        }
        let known = ["name", "content", "fingerprint"]
        guard let file = reader.members(files[0], "a file", known: known),
            let text = file["content"].flatMap({ reader.string($0, "content") })
        else {
            reader.fail("a file needs its content", files[0].mark)
            return nil
        }
        return (text, file["name"].flatMap { reader.string($0, "name") } ?? "storage.rules")
    }

    private mutating func testCase(_ node: Node, _ index: Int) -> TestCase? {
        guard let members = reader.members(node, "a test case", known: Self.caseKeys) else {
            return nil
        }
        guard
            let expectation = members["expectation"].flatMap({
                reader.word($0, "expectation", of: ["ALLOW", "DENY"])
            }), let requestNode = members["request"]
        else {
            reader.fail("a test case needs 'expectation' and 'request'", node.mark)
            return nil
        }
        let encoding = members["pathEncoding"].flatMap {
            reader.word($0, "pathEncoding", of: ["ENCODING_UNSPECIFIED", "URL_ENCODED", "PLAIN"])
        }
        let level = members["expressionReportLevel"].flatMap {
            reader.word(
                $0, "expressionReportLevel",
                of: ["LEVEL_UNSPECIFIED", "NONE", "FULL", "VISITED"])
        }
        var notes: [String] = []
        guard var request = request(requestNode, isPlain: encoding == "PLAIN", &notes) else {
            return nil
        }
        request.existing =
            members["resource"].flatMap { object($0) }.map { .object($0) } ?? .absent
        let name = members["name"].flatMap { reader.string($0, "name") }
        let documents = members["functionMocks"].map { mocks($0, &notes) }
        return TestCase(
            name: name ?? "case \(index + 1)", index: index,
            location: node.mark.map { "\(fileName):\($0.line):\($0.column)" } ?? fileName,
            request: request, documents: documents ?? .init(),
            expectsAllow: expectation == "ALLOW",
            reportLevel: level.flatMap(TestCase.ReportLevel.init) ?? .none, notes: notes)
    }

    private mutating func request(_ node: Node, isPlain: Bool, _ notes: inout [String]) -> Request? {
        var members: [BytewiseString: Node] = [:]
        for (key, value) in reader.entries(node, "request") { members[key.string] = value }
        guard let methodNode = members["method"], let pathNode = members["path"] else {
            reader.fail("request needs 'method' and 'path'", node.mark)
            return nil
        }
        guard
            let method = reader.word(methodNode, "method", of: Method.allCases.map(\.name)).flatMap(Method.init(name:)),
            let text = reader.string(pathNode, "path")
        else { return nil }
        let path = isPlain ? text : Self.percentDecoded(text)
        if path == nil {
            notes.append("The path is used undecoded: its percent-encoding is invalid.")
        }
        var caller: Caller?
        if let auth = members["auth"], !auth.isNull {
            caller = Caller(properties: reader.map(auth, isTyped: false))
        }
        var request = Request(
            method, path: path ?? text, caller: caller,
            time: members["time"].flatMap { reader.time($0, "time") } ?? now,
            incoming: members["resource"].flatMap { object($0) })
        if let params = members["params"], !params.isNull {
            request.setParameters(reader.map(params, isTyped: false))
        }
        let known: Set<BytewiseString> = ["auth", "method", "path", "params", "resource", "time"]
        notes += members.keys.filter { !known.contains($0) }.sorted().map {
            "Requests to storage have no '\($0)': it is ignored."
        }
        return request
    }

    /// Reads an object with exactly the given properties.
    private mutating func object(_ node: Node) -> ObjectFacts? {
        if node.isNull { return nil }
        var facts = ObjectFacts()
        for (key, node) in reader.entries(node, "resource") {
            var value = reader.value(node, isTyped: false)
            if ["timeCreated", "updated"].contains(key.string) {
                if case .string(let text) = value, let time = Timestamp(rfc3339: text) {
                    value = .timestamp(time)
                } else if node.mapping?.contains(where: { $0.key.scalar?.string == "seconds" })
                    == true
                {
                    value = reader.time(node, key.string).map(Value.timestamp) ?? .null
                }
            }
            facts.set(property: key.string, value)
        }
        return facts
    }

    /// Decodes percent-encoding; nil if it is invalid. `%2F` becomes a slash, as in the gateway's URLs.
    private static func percentDecoded(_ text: String) -> String? {
        var bytes: [UInt8] = []
        var rest = Array(text.utf8)[...]
        while let byte = rest.popFirst() {
            guard byte == UInt8(ascii: "%") else {
                bytes.append(byte)
                continue
            }
            let digits = rest.prefix(2).compactMap { Character(Unicode.Scalar($0)).hexDigitValue }
            guard digits.count == 2 else { return nil }
            rest = rest.dropFirst(2)
            bytes.append(UInt8(digits[0] << 4 | digits[1]))
        }
        return String(validating: bytes, as: UTF8.self)
    }
}
