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
        guard let method = Method(name: method) else {
            let names = Method.allCases.map(\.name)
            let near = Ruleset.suggestion(for: method, among: names)
            let hint = near.map { "; did you mean '\($0)'?" } ?? ""
            throw SuiteError(findings: [
                "--method: error: must be one of \(names.joined(separator: ", "))\(hint)"
            ])
        }
        guard let path = ObjectPath(path, for: method) else {
            throw SuiteError(findings: ["--path: error: must be like /b/BUCKET/o/NAME"])
        }
        var findings: [String] = []
        let caller = read(auth, "--auth", &findings) { $0.caller($1) }
        let time = read(time, "--time", &findings) { $0.time($1, "the time") } ?? now
        var request = Request(
            method, bucket: path.bucket, object: path.object, caller: caller, time: time,
            existing: method == .list ? .absent : .unknown)
        let existing = read(resource, "--resource", &findings) { reader, node in
            node.isNull
                ? Request.Existing.absent
                : .object(reader.object(node, "resource", path, isIncoming: false))
        }
        if let existing { request.existing = existing }
        request.incoming = newObject(method, path, &findings)
        request.setParameters(pairs(parameters, "--param", &findings).mapValues(Value.string))
        for (path, text) in pairs(documents, "--document", &findings) {
            let lookup = read(text, "--document \(path)", &findings) { $0.document($1) }
            if let lookup { request.setDocument(DocumentMocks.whole(path), lookup) }
        }
        guard findings.isEmpty else { throw SuiteError(findings: findings) }
        return request
    }

    /// What is made of the text of a flag; nil where there is none, or it can't be used.
    private func read<Made>(
        _ text: String?, _ flag: String, _ findings: inout [String],
        _ body: (inout NodeReader, Node) -> Made?
    ) -> Made? {
        guard let text else { return nil }
        do {
            var reader = NodeReader(fileName: flag)
            let made = body(&reader, try Node.read(text, fileName: flag))
            findings += reader.findings
            return made
        } catch {
            findings += error.findings
            return nil
        }
    }

    /// What is known of the new object. Of one that is uploaded, nobody knows what only its body tells, unless that is
    /// given; one that is updated has what it had, as far as that is known.
    private func newObject(
        _ method: Method, _ path: ObjectPath, _ findings: inout [String]
    ) -> ObjectFacts? {
        guard method == .create || method == .update else {
            if incoming != nil {
                findings.append("--new: error: only create and update have a request.resource")
            }
            return nil
        }
        var facts = ObjectFacts(name: path.object, bucket: path.bucket)
        if method == .update, let resource {
            // What is wrong with it is found where it is read as the old object.
            var ignored: [String] = []
            facts =
                read(resource, "--resource", &ignored) { $0.unchanged($1, path) } ?? facts
        } else {
            let isUpload = method == .create && incoming != nil
            let fields: [ObjectField] =
                isUpload ? [.size, .md5Hash, .crc32c] : ObjectField.allCases.filter(\.isIncoming)
            for field in fields where field != .name && field != .bucket {
                facts.set(field, .unknown)
            }
        }
        return read(incoming, "--new", &findings) { reader, node in
            var facts = facts
            reader.set(node, "the new object", in: &facts, isIncoming: true)
            return facts
        } ?? facts
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
