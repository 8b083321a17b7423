import HTTPServer
import OpenSSL
import Telemetry
import Wire

/// The operator's endpoints, which have their own listener: `/livez` and its alias `/healthz`, `/readyz`, `/metrics`,
/// `/openapi.yaml`, `/version`, `/uploads`, and additional ones.
///
/// `/livez` only reports that the process responds. It does not check storage: restarting would not fix a broken disk.
/// `/readyz` is 503 while a check of ``Health`` fails or the process drains. `?verbose` lists every check. Responses
/// must not be cached.
public struct OperatorEndpoints: Sendable {
    /// A response with a body in memory.
    public struct Response: Sendable, Equatable {
        var status: Int
        var contentType: String
        var body: [UInt8]
        var allow: String?

        /// Creates a response.
        public init(_ status: Int, _ contentType: String, _ body: [UInt8]) {
            self.status = status
            self.contentType = contentType
            self.body = body
        }

        static func text(_ status: Int, _ text: String) -> Response {
            Response(status, "text/plain; charset=utf-8", Array(text.utf8))
        }
    }

    /// The parts of a request that a handler may use.
    public struct Request: Sendable {
        /// The query's parts between its `&`.
        let query: [Substring]
        /// The field `Accept`.
        let accept: String?
    }

    /// Responds to a request of one path.
    public typealias Handler = @Sendable (Request) async throws(Problem) -> Response

    private struct Endpoint: Sendable {
        /// `GET` includes `HEAD`.
        var method: String
        var path: String
        /// For operators; nil for an alias, which is not listed.
        var description: String?
        var respond: Handler
    }

    private var endpoints: [Endpoint] = []
    private let callers: Callers
    /// The field `Authorization` of a change; nil if changes need none.
    private let authorization: [UInt8]?
    private let requestIds = RequestIDs.shared

    /// - Parameters:
    ///   - callers: Decides which hosts are served.
    ///   - token: Required for changes as `Authorization: Bearer TOKEN`; nil if none is required.
    public init(
        health: Health, registry: PrometheusRegistry, build: BuildInfo, callers: Callers = .unknown,
        token: String? = nil
    ) {
        self.callers = callers
        authorization = token.map { Array("Bearer \($0)".utf8) }
        let isAlive: Handler = { _ in .text(200, "ok\n") }
        add("/livez", "The process responds.", isAlive)
        add("/healthz", nil, isAlive)
        add("/readyz", "Requests should be sent here; `?verbose` lists each check.") { request in
            let isVerbose = request.query.contains { $0 == "verbose" || $0.hasPrefix("verbose=") }
            return await health.response(isVerbose: isVerbose)
        }
        add("/metrics", "Numbers for Prometheus.") { request in
            let format = PrometheusText.Format(accept: request.accept)
            return Response(200, format.contentType, registry.exposition(format))
        }
        add("/openapi.yaml", "The HTTP API, in OpenAPI 3.1.") { _ in
            Response(200, "application/yaml", PackageResources.openapi_yaml)
        }
        add("/version", "The program's version, and what it was built from.") { _ in
            Response(200, "application/json", build.json)
        }
    }

    /// Adds an endpoint: `endpoints.add("/version", "The version.") { _ in … }`. A path may have one per method.
    /// - Parameter description: If nil, the path is not listed.
    public mutating func add(
        _ path: String, _ description: String?, method: String = "GET",
        _ respond: @escaping Handler
    ) {
        endpoints.append(
            Endpoint(method: method, path: path, description: description, respond: respond))
    }

    /// The listed paths with their descriptions.
    public var descriptions: [(path: String, text: String)] {
        endpoints.compactMap { endpoint in endpoint.description.map { (endpoint.path, $0) } }
    }

    /// The handler for the listener.
    public var handler: RequestHandler {
        { exchange in
            let requestId = requestIds.next()
            let response: Response
            do throws(Problem) {
                try callers.checkHost(exchange.head)
                try check(exchange.head)
                response = await respond(
                    exchange.head.method, exchange.head.target, requestId,
                    accept: exchange.head.fields["accept"])
            } catch {
                response = Response(error, requestId)
            }
            var head = ResponseHead(status: response.status)
            head.fields.append("content-type", response.contentType)
            head.fields.append("cache-control", "no-store")
            head.fields.append("x-content-type-options", "nosniff")
            head.fields.append("x-request-id", requestId)
            if let allow = response.allow { head.fields.append("allow", allow) }
            if response.status == 401 {
                head.fields.append("www-authenticate", Problem.challenge.value)
            }
            if exchange.head.method == "HEAD" {
                head.fields.append("content-length", response.body.count)
                await exchange.respond(head)
            } else {
                await exchange.respond(head, .bytes(response.body))
            }
        }
    }

    /// Rejects changes requested by a web page, or without the token. The operator's browser may reach this listener, and any
    /// page can make it send requests. A browser names the page in `Origin`.
    /// - Throws: ``Problem`` with `unauthorized` or `unauthenticated`.
    private func check(_ head: RequestHead) throws(Problem) {
        if head.method == "GET" || head.method == "HEAD" { return }
        if head.fields.contains("origin") {
            throw Problem(.unauthorized, "Web pages may change nothing here.")
        }
        guard let authorization else { return }
        let shown = Array((head.fields["authorization"] ?? "").utf8)
        guard areEqualInConstantTime(shown, authorization) else {
            throw Problem(
                .unauthenticated, "Changes need the operator's token: Authorization: Bearer TOKEN.",
                field: Problem.challenge)
        }
    }

    /// Responds to a request by its method and target.
    func respond(
        _ method: String, _ target: String, _ requestId: String, accept: String? = nil
    ) async -> Response {
        let parts = target.split(separator: "?", maxSplits: 1, omittingEmptySubsequences: false)
        let path = String(parts[0])
        let found = endpoints.filter { $0.path == path }
        guard !found.isEmpty else {
            return Response(Problem(.notFound, "The endpoints are \(list)."), requestId)
        }
        let wanted = method == "HEAD" ? "GET" : method
        guard let endpoint = found.first(where: { $0.method == wanted }) else {
            let allow = found.map { $0.method == "GET" ? "GET, HEAD" : $0.method }.joined(separator: ", ")
            var response = Response(Problem.methodNotAllowed(allow), requestId)
            response.allow = allow
            return response
        }
        do throws(Problem) {
            let query = parts.count > 1 ? parts[1].split(separator: "&") : []
            return try await endpoint.respond(Request(query: query, accept: accept))
        } catch {
            return Response(error, requestId)
        }
    }

    private var list: String {
        let paths = descriptions.map(\.path)
        return paths.dropLast().joined(separator: ", ") + " and " + (paths.last ?? "")
    }
}

extension OperatorEndpoints.Response {
    fileprivate init(_ problem: Problem, _ requestId: String) {
        self.init(problem.code.status, "application/problem+json", problem.json(requestId: requestId))
    }
}

extension Health {
    /// Whether a load balancer should send requests here.
    fileprivate func response(isVerbose: Bool) async -> OperatorEndpoints.Response {
        let report = await report()
        let status = report.isReady ? 200 : 503
        guard isVerbose else { return .text(status, report.isReady ? "ok\n" : "not ready\n") }
        // The text of a failure may quote a store, so it is redacted and escaped as in the log.
        var text = LogLine()
        for result in report.results + report.notes {
            text.raw(result.failure == nil ? "[+] " : "[-] ")
            text.word(result.name)
            if let failure = result.failure {
                text.raw(" failed:")
                if failure.utf8.contains(UInt8(ascii: "\n")) {
                    text.paragraph(failure)
                } else {
                    text.raw(" ")
                    text.quoted(failure)
                }
                text.raw("\n")
            } else if let detail = result.detail {
                text.raw(" ok: ")
                text.quoted(detail)
                text.raw("\n")
            } else {
                text.raw(" ok\n")
            }
        }
        text.raw(report.isDraining ? "[-] draining\n" : "[+] not draining\n")
        text.raw(report.isReady ? "ready\n" : "not ready\n")
        return OperatorEndpoints.Response(status, "text/plain; charset=utf-8", text.bytes)
    }
}

extension BuildInfo {
    fileprivate var json: [UInt8] {
        var line = LogLine()
        line.raw("{\"version\":")
        line.quoted(version)
        line.raw(",\"swift\":")
        line.quoted(swift)
        if let commit {
            line.raw(",\"commit\":")
            line.quoted(commit)
        }
        if let date {
            line.raw(",\"date\":")
            line.quoted(date)
        }
        line.raw("}\n")
        return line.bytes
    }
}
