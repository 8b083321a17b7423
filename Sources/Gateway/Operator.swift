import HTTPServer

/// The operator's endpoints, for a listener of their own: `/livez` and its alias `/healthz`, `/readyz`, `/metrics` and
/// `/version`.
///
/// `/livez` says only that the process answers: a restart would not heal a broken disk, so no check is asked there.
/// `/readyz` is 503 while any check of ``Health`` fails or the process drains; `?verbose` lists each check, also
/// where it is healthy. Nothing is cached on the way.
public struct Operator: Sendable {
    /// An answer with a body in memory.
    struct Answer: Sendable, Equatable {
        var status: Int
        var contentType: String
        var body: [UInt8]
        var allow: String?

        init(_ status: Int, _ contentType: String, _ body: [UInt8]) {
            self.status = status
            self.contentType = contentType
            self.body = body
        }

        static func text(_ status: Int, _ text: String) -> Answer {
            Answer(status, "text/plain; charset=utf-8", Array(text.utf8))
        }
    }

    private let health: Health
    private let registry: PrometheusRegistry
    private let build: BuildInfo
    private let requestIds = RequestIDs()

    public init(health: Health, registry: PrometheusRegistry, build: BuildInfo) {
        self.health = health
        self.registry = registry
        self.build = build
    }

    /// What the listener calls.
    public var handler: RequestHandler {
        { exchange in
            let requestId = requestIds.next()
            let answer = await answer(exchange.head.method, exchange.head.target, requestId)
            var head = ResponseHead(status: answer.status)
            head.fields.append("content-type", answer.contentType)
            head.fields.append("cache-control", "no-store")
            head.fields.append("x-content-type-options", "nosniff")
            head.fields.append("x-request-id", requestId)
            if let allow = answer.allow { head.fields.append("allow", allow) }
            if exchange.head.method == "HEAD" {
                head.fields.append("content-length", answer.body.count)
                await exchange.respond(head)
            } else {
                await exchange.respond(head, .bytes(answer.body))
            }
        }
    }

    /// Answers a request by its method and target.
    func answer(_ method: String, _ target: String, _ requestId: String) async -> Answer {
        let parts = target.split(separator: "?", maxSplits: 1, omittingEmptySubsequences: false)
        let path = String(parts[0])
        guard ["/livez", "/healthz", "/readyz", "/metrics", "/version"].contains(path) else {
            let paths = "/livez, /readyz, /metrics and /version"
            return Operator.answer(Problem(.notFound, "The endpoints are \(paths)."), requestId)
        }
        guard method == "GET" || method == "HEAD" else {
            var answer = Operator.answer(Problem.methodNotAllowed("GET, HEAD"), requestId)
            answer.allow = "GET, HEAD"
            return answer
        }
        switch path {
        case "/readyz":
            let query = parts.count > 1 ? parts[1].split(separator: "&") : []
            return await readiness(
                isVerbose: query.contains { $0 == "verbose" || $0.hasPrefix("verbose=") })
        case "/metrics":
            return Answer(200, PrometheusText.contentType, registry.exposition())
        case "/version":
            var line = LogLine()
            line.raw("{\"version\":")
            line.quoted(build.version)
            line.raw(",\"swift\":")
            line.quoted(build.swift)
            line.raw("}\n")
            return Answer(200, "application/json", line.bytes)
        default: return .text(200, "ok\n")
        }
    }

    private func readiness(isVerbose: Bool) async -> Answer {
        let report = await health.report()
        let status = report.isReady ? 200 : 503
        guard isVerbose else { return .text(status, report.isReady ? "ok\n" : "not ready\n") }
        // A failure's text may quote what a store said: it passes the log's redaction and escaping.
        var text = LogLine()
        for result in report.results + report.notes {
            text.raw(result.failure == nil ? "[+] " : "[-] ")
            text.word(result.name)
            if let failure = result.failure {
                text.raw(" failed: ")
                text.quoted(failure)
                text.raw("\n")
            } else {
                text.raw(" ok\n")
            }
        }
        text.raw(report.isDraining ? "[-] draining\n" : "[+] not draining\n")
        text.raw(report.isReady ? "ready\n" : "not ready\n")
        return Answer(status, "text/plain; charset=utf-8", text.bytes)
    }

    private static func answer(_ problem: Problem, _ requestId: String) -> Answer {
        Answer(
            problem.code.status, "application/problem+json", problem.json(requestId: requestId))
    }
}
