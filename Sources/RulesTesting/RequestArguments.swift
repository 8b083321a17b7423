import SecurityRules
import Wire
import YAML

/// A request from the command line. Values that are not single words are JSON or YAML.
///
/// Missing parts of `resource` and `request.resource` are unknown, and the decision reports those it needs.
package struct RequestArguments {
    /// The method's name.
    package var method: String
    /// `/b/BUCKET/o/NAME`.
    package var path: String
    /// A user ID, or `{uid, token}`; nil for an anonymous caller.
    package var auth: String?
    /// The stored object; `null` for none.
    package var resource: String?
    /// The new object.
    package var incoming: String?
    /// RFC 3339.
    package var time: String?
    /// `KEY=VALUE`.
    package var parameters: [String] = []
    /// `PATH=FIELDS`, `PATH=absent` or `PATH=failed`.
    package var documents: [String] = []

    /// Creates a request without the optional parts.
    package init(method: String, path: String) {
        self.method = method
        self.path = path
    }

    /// Makes the request.
    /// - Throws: ``SuiteError`` with each flag whose value is invalid.
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
            let path = path.text
            let lookup = read(text, "--document \(path)", &findings) { $0.document($1) }
            guard let whole = DocumentMocks.whole(path) else {
                findings.append("--document: error: \(DocumentMocks.fault(of: path))")
                continue
            }
            if let lookup { request.setDocument(whole, lookup) }
        }
        guard findings.isEmpty else { throw SuiteError(findings: findings) }
        return request
    }

    /// Parses the text of a flag; nil if there is none, or if it is invalid.
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

    /// The known properties of the new object. Properties that an upload's body determines are unknown unless given. An
    /// updated object keeps the known properties of the stored object.
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
            // Errors in `resource` are reported where it is read as the old object, so ignore them here.
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
            facts.set(.storageClass, .known(.null))
            if method == .create { facts.setNotStored() }
        }
        return read(incoming, "--new", &findings) { reader, node in
            var facts = facts
            reader.set(node, "the new object", in: &facts, isIncoming: true)
            return facts
        } ?? facts
    }

    private func pairs(
        _ texts: [String], _ flag: String, _ findings: inout [String]
    ) -> [BytewiseString: String] {
        var pairs: [BytewiseString: String] = [:]
        for text in texts {
            guard let equals = text.firstIndex(of: "=") else {
                findings.append("\(flag): error: must be KEY=VALUE, not '\(text)'")
                continue
            }
            pairs[String(text[..<equals])] = String(text[text.index(after: equals)...])
        }
        return pairs
    }
}
