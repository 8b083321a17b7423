import SecurityRules
import Wire
import YAML

/// Reads a suite in Sluice's own format, which `docs/writing-rules.md` describes.
struct SuiteReader {
    private static let suiteKeys = ["bucket", "time", "documents", "cases", "analysis"]
    private static let caseKeys = [
        "name", "method", "path", "bucket", "object", "auth", "time", "resource",
        "request.resource", "params", "documents", "expect", "because",
    ]

    private let fileName: String
    private let now: Timestamp
    private var reader: NodeReader
    private var bucket: String?
    private var time: Timestamp?
    private var documents = DocumentMocks()

    init(fileName: String, now: Timestamp) {
        self.fileName = fileName
        self.now = now
        reader = NodeReader(fileName: fileName)
    }

    mutating func read(_ root: Node) throws(SuiteError) -> TestSuite {
        var cases: [TestCase] = []
        if let members = reader.members(root, "a suite", known: Self.suiteKeys) {
            bucket = members["bucket"].flatMap { reader.string($0, "bucket") }
            time = members["time"].flatMap { reader.time($0, "time") }
            if let node = members["documents"] { documents = self.documents(node) }
            // An analysis may have found nothing.
            if let nodes = members["cases"]?.sequence, !nodes.isEmpty || members["analysis"] != nil {
                for (index, node) in nodes.enumerated() {
                    testCase(node, index).map { cases.append($0) }
                }
            } else {
                reader.fail("a suite needs 'cases', a list of them", members["cases"]?.mark ?? root.mark)
            }
        }
        guard reader.findings.isEmpty else { throw SuiteError(findings: reader.findings) }
        return TestSuite(fileName: fileName, cases: cases)
    }

    private mutating func testCase(_ node: Node, _ index: Int) -> TestCase? {
        guard let members = reader.members(node, "a case", known: Self.caseKeys) else { return nil }
        guard let method = method(members, node), let path = path(members, method, node) else { return nil }
        guard let expects = members["expect"] else {
            reader.fail("a case needs 'expect': allow or deny", node.mark)
            return nil
        }
        let expectation = reader.word(expects, "expect", of: ["allow", "deny"])
        var request = Request(
            method, bucket: path.bucket, object: path.object, caller: members["auth"].flatMap { reader.caller($0) },
            time: members["time"].flatMap { reader.time($0, "time") } ?? time ?? now,
            existing: existing(method, path, members["resource"]))
        request.incoming = incoming(method, path, members)
        if let params = members["params"] {
            request.setParameters(parameters(params))
        }
        let name = members["name"].flatMap { reader.string($0, "name") }
        return TestCase(
            name: name ?? "case \(index + 1)", index: index, location: location(node),
            request: request,
            documents: members["documents"].map { documents($0) } ?? documents,
            expectsAllow: expectation == "allow",
            because: members["because"].flatMap { because($0) })
    }

    private func location(_ node: Node) -> String {
        node.mark.map { "\(fileName):\($0.line):\($0.column)" } ?? fileName
    }

    /// Query parameters. All values are strings, even if they look like numbers.
    private mutating func parameters(_ node: Node) -> [BytewiseString: Value] {
        var parameters: [BytewiseString: Value] = [:]
        for (key, value) in reader.entries(node, "params") {
            parameters[key.string] = reader.string(value, "a parameter").map(Value.string)
        }
        return parameters
    }

    private mutating func method(_ members: [BytewiseString: Node], _ node: Node) -> Method? {
        guard let method = members["method"] else {
            reader.fail("a case needs 'method'", node.mark)
            return nil
        }
        return reader.word(method, "method", of: Method.allCases.map(\.name)).flatMap(Method.init(name:))
    }

    private mutating func path(
        _ members: [BytewiseString: Node], _ method: Method, _ node: Node
    ) -> ObjectPath? {
        if let whole = members["path"] {
            for key in ["bucket", "object"] where members[key] != nil {
                reader.fail("'path' says the \(key) already", members[key]?.mark)
            }
            guard let text = reader.string(whole, "path") else { return nil }
            guard let path = ObjectPath(text, for: method) else {
                reader.fail("path must be like /b/BUCKET/o/NAME", whole.mark)
                return nil
            }
            return path
        }
        guard let object = members["object"].flatMap({ reader.string($0, "object") }),
            let bucket = members["bucket"].flatMap({ reader.string($0, "bucket") }) ?? bucket
        else {
            reader.fail("a case needs 'path', or 'bucket' and 'object'", node.mark)
            return nil
        }
        guard let path = ObjectPath("/b/\(bucket)/o/\(object)", for: method) else {
            reader.fail("'\(bucket)' is no bucket", members["bucket"]?.mark ?? node.mark)
            return nil
        }
        return path
    }

    private mutating func existing(
        _ method: Method, _ path: ObjectPath, _ node: Node?
    ) -> Request.Existing {
        guard let node, !node.isNull else { return .absent }
        if method == .list { reader.fail("for list, resource is always null", node.mark) }
        return .object(reader.object(node, "resource", path, isIncoming: false))
    }

    /// The new object. For update, the given properties override the stored object's.
    private mutating func incoming(
        _ method: Method, _ path: ObjectPath, _ members: [BytewiseString: Node]
    ) -> ObjectFacts? {
        let node = members["request.resource"].flatMap { $0.isNull ? nil : $0 }
        guard method == .create || method == .update else {
            if let node {
                reader.fail("only create and update have a request.resource", node.mark)
            }
            return nil
        }
        var facts = reader.unchanged(method == .update ? members["resource"] : nil, path)
        if let node { reader.set(node, "request.resource", in: &facts, isIncoming: true) }
        return facts
    }

    /// The documents of a case, added to the suite's.
    private mutating func documents(_ node: Node) -> DocumentMocks {
        var mocks = documents
        for (key, value) in reader.entries(node, "documents") {
            guard let path = DocumentMocks.whole(key.string) else {
                reader.fail(DocumentMocks.fault(of: key.string), key.mark)
                continue
            }
            mocks.set(path, reader.document(value))
        }
        return mocks
    }

    private mutating func because(_ node: Node) -> TestCase.Reason? {
        guard let scalar = node.scalar, !node.isNull else {
            reader.fail("because must be a text or the number of a line", node.mark)
            return nil
        }
        return scalar.isPlain ? Int(scalar.string).map { .line($0) } ?? .text(scalar.string) : .text(scalar.string)
    }
}
