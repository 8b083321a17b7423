import Gateway
import HTTPServer
import RulesTesting
import SecurityRules
import Telemetry
import Wire

extension Console {
    /// The longest wait of a poll, in seconds.
    private static let longestWait: UInt64 = 25

    /// `GET /api/requests`
    func requests(_ target: ConsoleTarget) async throws(Problem) -> ConsoleResponse {
        let filter = try RequestFilter(target)
        var after: UInt64?
        if let text = target["after"] {
            guard let number = UInt64(text) else { throw Problem(.invalidArgument, "after is a number.") }
            after = number
        }
        let page = await feed.poll(filter, after: after, wait: try Console.wait(target["wait"]))
        var line = LogLine()
        line.raw("{\"next\":")
        line.number(page.next)
        line.raw(",\"lost\":")
        line.number(page.lost)
        line.raw(",\"requests\":[")
        for (index, entry) in page.entries.enumerated() {
            if index > 0 { line.raw(",") }
            line.write(entry)
        }
        line.raw("]}\n")
        return .json(bytes: line.bytes)
    }

    private static func wait(_ text: String?) throws(Problem) -> UInt64 {
        guard let text else { return 0 }
        let digits = text.hasSuffix("s") ? text.dropLast() : text[...]
        guard let seconds = UInt64(digits), seconds <= longestWait else {
            throw Problem(.invalidArgument, "wait has at most \(longestWait) seconds: 20s.")
        }
        return seconds * 1_000_000_000
    }

    /// `GET /api/requests/explanation`
    func explanation(_ target: ConsoleTarget) async throws(Problem) -> ConsoleResponse {
        guard let id = target["request"] else {
            throw Problem(.invalidArgument, "The query names the request: ?request=ID.")
        }
        guard let entry = feed.entry(id) else {
            throw Problem(.notFound, "The request is not among the last ones that were watched.")
        }
        guard let evaluation = entry.record.evaluation, let bucket = entry.record.bucket else {
            throw Problem(.notFound, "No rules decided on the request.")
        }
        let current = sources.rules().first { BytewiseString.areEqual($0.bucket, bucket) }?.rules
        return try await workbench.run { () throws(Problem) in
            let rules = evaluation.rules
            let redaction = ParameterRedaction(evaluation.request)
            let explanation = redaction.applied(to: rules.explain(evaluation.request, clock: Ruleset.monotonicClock))
            let inputs = redaction.applied(to: evaluation.request)
            return .json(
                .object([
                    ("request", .string(id)), ("bucket", .string(bucket)),
                    ("decision", entry.record.decision.map { .string($0.rawValue) } ?? .null),
                    ("shadow", entry.record.shadow.map { .string($0.rawValue) } ?? .null),
                    (
                        "rules",
                        .object([
                            ("file", .string(rules.fileName)),
                            ("isCurrent", .bool(current?.source == rules.source)),
                        ])
                    ), ("explanation", explanation.json(rules.fileName)),
                    ("text", .string(explanation.text(rules.fileName))),
                    ("case", .string(TestCase.text(inputs.json, isAllowed: entry.record.decision == .allowed))),
                    ("inputs", .object(inputs.json)),
                ]))
        }
    }
}

extension RequestFilter {
    init(_ target: ConsoleTarget) throws(Problem) {
        self.init()
        if let text = target["decision"], !text.isEmpty {
            guard let decision = Decision(rawValue: text) else {
                throw Problem(.invalidArgument, "decision is allowed, denied or shadow.")
            }
            self.decision = decision
        }
        if let text = target["status"], !text.isEmpty {
            if let number = Int(text), (100...599).contains(number) {
                status = .status(number)
            } else if text.utf8.count == 3, text.hasSuffix("xx"), let first = Int(text.prefix(1)),
                (1...5).contains(first)
            {
                status = .statusClass(first)
            } else {
                throw Problem(.invalidArgument, "status is a number such as 404, or 4xx.")
            }
        }
        if let text = target["bucket"], !text.isEmpty { bucket = text }
        path = String((target["path"] ?? "").prefix(1024))
        caller = String((target["caller"] ?? "").prefix(1024))
    }
}

extension LogLine {
    fileprivate mutating func write(_ entry: RequestFeed.Entry) {
        raw("{\"seq\":")
        number(entry.sequence)
        if let decision = entry.record.decision {
            raw(",\"decision\":\"")
            word(decision.rawValue)
            raw("\"")
        }
        if let shadow = entry.record.shadow {
            raw(",\"shadow\":\"")
            word(shadow.rawValue)
            raw("\"")
        }
        raw(entry.record.evaluation == nil ? ",\"explains\":false,\"line\":" : ",\"explains\":true,\"line\":")
        AccessLog.writeJSON(entry.record, &self, at: entry.time)
        raw("}")
    }
}
