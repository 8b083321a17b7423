import SecurityRules
import YAML

/// A request as it is given on a command line: texts, in JSON or YAML where they are not words.
///
/// What is not given of `resource` and `request.resource` is unknown, so that a decision says what it depends on.
package struct RequestArguments {
    /// The method's name.
    package var method: String
    /// `/b/BUCKET/o/NAME`.
    package var path: String
    /// A user's id, or `{uid, token}`; nil for no caller.
    package var auth: String?
    /// The object that is there; `null` for none.
    package var resource: String?
    /// The object that is written.
    package var incoming: String?
    /// RFC 3339.
    package var time: String?
    /// `KEY=VALUE`.
    package var parameters: [String] = []
    /// `PATH=FIELDS`, `PATH=absent` or `PATH=failed`.
    package var documents: [String] = []

    /// Creates a request without what may be left out.
    package init(method: String, path: String) {
        self.method = method
        self.path = path
    }

    /// The request.
    /// - Throws: ``SuiteError`` naming each flag whose value can't be used.
    package func request(now: Timestamp) throws(SuiteError) -> Request {
        var findings: [String] = []
        guard let method = Method(name: method) else {
            let names = Method.allCases.map(\.name)
            let near = Ruleset.suggestion(for: method, among: names)
            let hint = near.map { "; did you mean '\($0)'?" } ?? ""
            throw SuiteError(findings: [
                "--method: error: must be one of \(names.joined(separator: ", "))\(hint)"
            ])
        }
        guard let path = ObjectPath(path) else {
            throw SuiteError(findings: ["--path: error: must be like /b/BUCKET/o/NAME"])
        }
        func read<Made>(_ text: String?, _ flag: String, _ body: (inout NodeReader, Node) -> Made?)
            -> Made?
        {
            guard let text else { return nil }
            var reader = NodeReader(fileName: flag)
            var made: Made?
            do {
                made = body(&reader, try Node.read(text, fileName: flag))
                findings += reader.findings
            } catch {
                findings += error.findings
            }
            return made
        }
        let caller = read(auth, "--auth") { $0.caller($1) }
        let time = read(time, "--time") { $0.time($1, "the time") } ?? now
        var request = Request(
            method, bucket: path.bucket, object: path.object, caller: caller, time: time,
            existing: method == .list ? .absent : .unknown)
        let existing = read(resource, "--resource") { reader, node in
            node.isNull
                ? Request.Existing.absent
                : .object(reader.object(node, "resource", path, isIncoming: false))
        }
        if let existing { request.existing = existing }
        if method == .create || method == .update {
            request.incoming =
                read(incoming, "--new") { reader, node in
                    reader.arriving(node, path)
                } ?? .unknown(path)
        } else if incoming != nil {
            findings.append("--new: error: only create and update have a request.resource")
        }
        request.setParameters(pairs(parameters, "--param", &findings).mapValues(Value.string))
        for (path, text) in pairs(documents, "--document", &findings) {
            let lookup = read(text, "--document \(path)") { $0.document($1) }
            if let lookup { request.setDocument(DocumentMocks.whole(path), lookup) }
        }
        guard findings.isEmpty else { throw SuiteError(findings: findings) }
        return request
    }

    private func pairs(
        _ texts: [String], _ flag: String, _ findings: inout [String]
    ) -> [String: String] {
        var pairs: [String: String] = [:]
        for text in texts {
            guard let equals = text.firstIndex(of: "=") else {
                findings.append("\(flag): error: wants KEY=VALUE, and got '\(text)'")
                continue
            }
            pairs[String(text[..<equals])] = String(text[text.index(after: equals)...])
        }
        return pairs
    }
}

extension NodeReader {
    /// An object whose body has not arrived: what only the body tells is unknown unless it is given.
    fileprivate mutating func arriving(_ node: Node, _ path: ObjectPath) -> ObjectFacts {
        var facts = object(node, "the new object", path, isIncoming: true)
        let given = node.mapping?.compactMap { $0.key.scalar?.string } ?? []
        for field in [ObjectField.size, .md5Hash, .crc32c] where !given.contains(field.key) {
            facts.set(field, .unknown)
        }
        return facts
    }
}

extension ObjectFacts {
    /// An object of which only the name is known.
    fileprivate static func unknown(_ path: ObjectPath) -> ObjectFacts {
        var facts = ObjectFacts(name: path.object, bucket: path.bucket)
        for field in ObjectField.allCases
        where field.isIncoming && field != .name && field != .bucket {
            facts.set(field, .unknown)
        }
        return facts
    }
}
