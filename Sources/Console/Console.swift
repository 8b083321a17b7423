import Gateway
import HTTPServer
import System
import Telemetry
import Wire

/// The console: a page for browsers, and the API that it uses, at a listener of its own.
///
/// It shows requests, decisions and state, and lets rules be tried. It has no power beyond the rules: objects are read and
/// written through the same ``Gateway``, as any caller. Only upload sessions can be cancelled.
public final class Console: Sendable {
    /// What the console shows.
    public struct Sources: Sendable {
        /// The checks and notes of readiness.
        public var health: Health
        public var registry: PrometheusRegistry
        public var build: BuildInfo
        /// Listeners by name, with their addresses; nil for one that is off.
        public var listeners: [(name: String, address: String?)]
        /// The rules of each bucket now, in order.
        public var rules: @Sendable () -> [BucketRules]
        /// The configuration in effect as YAML, secrets masked.
        public var configuration: @Sendable () -> String
        /// The keys whose new values wait for a restart.
        public var waiting: @Sendable () -> [String]
        /// The open upload sessions as JSON; of one bucket, or of all for nil.
        public var uploads: @Sendable (String?) async -> [UInt8]
        /// Cancels an upload session by its operator's ID.
        public var cancelUpload: @Sendable (String) async throws(Problem) -> Void
        /// The webhooks as JSON, or the events that a query names.
        public var events: @Sendable ([Substring]) async throws(Problem) -> [UInt8]
        /// Responds to a request for objects. The fields replace those of the response.
        public var serve: @Sendable (Exchange, HeaderFields) async -> Void

        public init(
            health: Health, registry: PrometheusRegistry, build: BuildInfo,
            listeners: [(name: String, address: String?)], rules: @escaping @Sendable () -> [BucketRules],
            configuration: @escaping @Sendable () -> String, waiting: @escaping @Sendable () -> [String],
            uploads: @escaping @Sendable (String?) async -> [UInt8],
            cancelUpload: @escaping @Sendable (String) async throws(Problem) -> Void,
            events: @escaping @Sendable ([Substring]) async throws(Problem) -> [UInt8],
            serve: @escaping @Sendable (Exchange, HeaderFields) async -> Void
        ) {
            self.health = health
            self.registry = registry
            self.build = build
            self.listeners = listeners
            self.rules = rules
            self.configuration = configuration
            self.waiting = waiting
            self.uploads = uploads
            self.cancelUpload = cancelUpload
            self.events = events
            self.serve = serve
        }
    }

    let sources: Sources
    let feed: RequestFeed
    let workbench: RulesWorkbench
    private let access: ConsoleAccess
    private let onOpen: @Sendable (String) -> Void
    let started = SystemClock.seconds()
    private let requestIds = RequestIDs.shared
    private let pool: BlockingPool
    /// The number of bodies that are received or parsed.
    private let bodies = Lock(0)
    /// When ``onOpen`` was called last, in monotonic nanoseconds.
    private let opened = Lock<UInt64>(0)

    /// - Parameters:
    ///   - token: The SHA-256 of the token.
    ///   - hosts: Names of hosts, beside those of loopback.
    ///   - pool: Evaluates rules.
    ///   - onOpen: Called with the peer of a request with the token, at most once a minute.
    public init(
        _ sources: Sources, token: [UInt8], hosts: [String], feed: RequestFeed, pool: BlockingPool,
        onOpen: @escaping @Sendable (String) -> Void
    ) {
        self.sources = sources
        self.feed = feed
        self.onOpen = onOpen
        self.pool = pool
        workbench = RulesWorkbench(pool)
        access = ConsoleAccess(token: token, hosts: hosts)
    }

    /// The handler for the listener.
    public var handler: RequestHandler {
        { exchange in await self.respond(exchange) }
    }

    private func respond(_ exchange: Exchange) async {
        let target = ConsoleTarget(exchange.head.target)
        let requestId = requestIds.next()
        var response: ConsoleResponse
        do throws(Problem) {
            try access.check(exchange.head)
            if let file = ConsoleFile.named(target.path) {
                response = try file.response(to: exchange.head)
            } else {
                try access.authenticate(exchange.head)
                noteVisit(exchange)
                if target.path.hasPrefix("/b/") || target.path == "/b" || target.path.hasPrefix("/tus") {
                    return await sources.serve(exchange, ConsoleFile.objectFields)
                }
                response = try await respond(exchange, target)
            }
        } catch {
            response = ConsoleResponse(error, requestId)
        }
        response.fields.append("x-request-id", requestId)
        response.fields.append("x-content-type-options", "nosniff")
        if !response.fields.contains("cache-control") { response.fields.append("cache-control", "no-store") }
        var head = ResponseHead(status: response.status)
        head.fields = response.fields
        if exchange.head.method == "HEAD" {
            head.fields.append("content-length", response.body.count)
            await exchange.respond(head)
        } else {
            await exchange.respond(head, response.status == 304 ? .none : .bytes(response.body))
        }
    }

    /// Reports a visit, at most once a minute.
    private func noteVisit(_ exchange: Exchange) {
        let isNew = opened.withLock { opened in
            guard opened == 0 || exchange.started > opened + 60_000_000_000 else { return false }
            opened = exchange.started
            return true
        }
        if isNew { onOpen(exchange.peer) }
    }

    /// Responds to a request of the API.
    private func respond(_ exchange: Exchange, _ target: ConsoleTarget) async throws(Problem) -> ConsoleResponse {
        let method = exchange.head.method == "HEAD" ? "GET" : exchange.head.method
        let methods = Console.methods(target.path)
        guard let methods else { throw Problem(.notFound, "The console has no \(target.path.prefix(100)).") }
        guard methods.contains(method) else {
            throw Problem.methodNotAllowed(methods.joined(separator: ", "))
        }
        switch target.path {
        case "/api/state": return await state()
        case "/api/metrics": return .text(sources.registry.exposition(.text), "text/plain; version=0.0.4")
        case "/api/configuration": return .text(Array(sources.configuration().utf8), "application/yaml")
        case "/api/uploads" where method == "DELETE":
            guard let id = target["id"] else { throw Problem(.invalidArgument, "The query names the session: ?id=ID.") }
            try await sources.cancelUpload(id)
            return .json(.object([("cancelled", .string(id))]))
        case "/api/uploads": return .json(bytes: await sources.uploads(target["bucket"]))
        case "/api/events": return .json(bytes: try await sources.events(target.query))
        case "/api/requests": return try await requests(target)
        case "/api/requests/explanation": return try await explanation(target)
        case "/api/rules": return rules()
        case "/api/rules/source": return try source(target)
        default: return try await tryRules(target.path, try await document(of: exchange))
        }
    }

    /// The methods of a path of the API; nil if there is no such path.
    private static func methods(_ path: String) -> [String]? {
        switch path {
        case "/api/state", "/api/metrics", "/api/configuration", "/api/events", "/api/requests",
            "/api/requests/explanation",
            "/api/rules", "/api/rules/source":
            ["GET", "HEAD"]
        case "/api/uploads": ["GET", "HEAD", "DELETE"]
        case "/api/rules/check", "/api/rules/explain", "/api/rules/test", "/api/rules/replay": ["POST"]
        default: nil
        }
    }

    /// The maximum size of a body in bytes: a suite and a source, escaped.
    private static let maximumBody = 4 << 20
    /// The maximum number of bodies at the same time.
    private static let maximumBodies = 4

    /// The JSON in a request's body. That content type makes browsers ask before they send it for another origin.
    private func document(of exchange: Exchange) async throws(Problem) -> JSONValue {
        let type = exchange.head.fields["content-type"]?.split(separator: ";").first
        guard type?.trimmed.asciiLowercased() == "application/json" else {
            throw Problem(.unsupportedMediaType, "The body is application/json.")
        }
        guard bodies.withLock({ $0 < Console.maximumBodies }) else {
            throw Problem(.tooManyRequests, "Too many requests at the same time.", field: ("retry-after", "1"))
        }
        bodies.withLock { $0 += 1 }
        defer { bodies.withLock { $0 -= 1 } }
        let bytes: [UInt8]
        do throws(BodyError) {
            bytes = try await exchange.collect(limit: Console.maximumBody)
        } catch {
            throw Problem(error, limit: UInt64(Console.maximumBody))
        }
        // In the pool, because megabytes take long.
        let document = await pool.run { try? JSONReader.parse(bytes) }
        guard let document else { throw Problem(.invalidArgument, "The body is no JSON.") }
        return document
    }
}

extension Substring {
    fileprivate var trimmed: String { String(drop { $0 == " " }.reversed().drop { $0 == " " }.reversed()) }
}

/// A request's path and query.
struct ConsoleTarget {
    let path: String
    /// The parameters as they were sent.
    let query: [Substring]
    private var parameters: [(name: String, value: String)] = []

    init(_ target: String) {
        let parts = target.split(separator: "?", maxSplits: 1, omittingEmptySubsequences: false)
        path = String(parts.first ?? "")
        query = parts.count > 1 ? parts[1].split(separator: "&") : []
        for part in query {
            let pair = part.split(separator: "=", maxSplits: 1, omittingEmptySubsequences: false)
            parameters.append((ConsoleTarget.decoded(pair[0]), pair.count > 1 ? ConsoleTarget.decoded(pair[1]) : ""))
        }
    }

    private static func decoded(_ text: Substring) -> String {
        let spaced = text.utf8.map { $0 == UInt8(ascii: "+") ? 0x20 : $0 }[...]
        return String(decoding: (try? PercentEncoding.decode(spaced)) ?? spaced, as: UTF8.self)
    }

    /// The first value of a parameter; nil if it is absent.
    subscript(name: String) -> String? { parameters.first { $0.name == name }?.value }
}

/// A response with a body in memory.
struct ConsoleResponse {
    var status: Int
    var fields = HeaderFields()
    var body: [UInt8]

    init(_ status: Int, _ type: String, _ body: [UInt8]) {
        self.status = status
        self.body = body
        fields.append("content-type", type)
    }

    init(_ problem: Problem, _ requestId: String) {
        self.init(problem.code.status, "application/problem+json", problem.json(requestId: requestId))
        if let field = problem.field { fields.append(field.name, field.value) }
    }

    static func text(_ bytes: [UInt8], _ type: String) -> ConsoleResponse { ConsoleResponse(200, type, bytes) }

    static func json(bytes: [UInt8]) -> ConsoleResponse { ConsoleResponse(200, "application/json", bytes) }
}
