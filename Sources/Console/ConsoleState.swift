import Gateway
import HTTPServer
import SecurityRules
import System
import Telemetry
import Wire

extension Console {
    /// `GET /api/state`
    func state() async -> ConsoleResponse {
        let report = await sources.health.report()
        let checks = (report.results + report.notes).map { result in
            var members = [("name", JSON.string(result.name))]
            if let failure = result.failure { members.append(("failure", .redacted(failure))) }
            if let detail = result.detail { members.append(("detail", .redacted(detail))) }
            return JSON.object(members)
        }
        let buckets = sources.rules().map { rules in
            JSON.object([
                ("name", .string(rules.bucket)), ("rules", rules.rules.map { .string($0.fileName) } ?? .null),
                ("isOpen", .bool(rules.isOpen)),
            ])
        }
        return .json(
            .object([
                ("version", .string(sources.build.version)),
                ("commit", sources.build.commit.map(JSON.string) ?? .null), ("host", .string(Host.name)),
                ("started", .string(HTTPDate.rfc3339(milliseconds: started * 1000))),
                ("ready", .bool(report.isReady)), ("draining", .bool(report.isDraining)), ("checks", .array(checks)),
                ("buckets", .array(buckets)), ("waitingForRestart", .array(sources.waiting().map(JSON.string))),
                ("listeners", .object(sources.listeners.map { ($0.name, $0.address.map(JSON.string) ?? .null) })),
            ]))
    }
}

extension JSON {
    /// A text that may quote a service, as the log shows it.
    fileprivate static func redacted(_ text: String) -> JSON {
        var line = LogLine()
        line.quoted(text)
        return .raw(String(decoding: line.bytes, as: UTF8.self))
    }
}
