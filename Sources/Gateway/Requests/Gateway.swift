import Buckets
import HTTPClient
import HTTPServer
import System
import Wire

/// Handles requests. An immutable snapshot of buckets, policies and settings; a reload replaces it as a whole.
public final class Gateway: Sendable {
    private let buckets: ServedBuckets
    private let cors: CORSPolicy?
    private let callers: Callers
    private let dialects: [any Dialect]
    private let observers: [any RequestObserver]
    private let traces: TraceExporter?
    /// Whether the details of requests' records are read.
    private let readsDetails: Bool
    /// nil if nobody ever watches.
    private let watch: RequestWatch?
    private let wallClock: @Sendable () -> Int64
    private let requestIds = RequestIDs.shared
    private let bodies = CollectedBodies()

    /// The dialects. The first one also handles paths that belong to no dialect.
    static func dialects(_ callers: Callers, _ buckets: [Bucket], _ s3: S3Settings? = nil) -> [any Dialect] {
        var dialects: [any Dialect] = [NativeAPI(callers)]
        // Before the others, because S3 clients may use any path.
        if let s3, let verifier = callers.s3 { dialects.append(S3API(s3, verifier)) }
        dialects.append(FirebaseAPI())
        if let tus = TusAPI(buckets) { dialects.append(tus) }
        return dialects
    }

    /// - Parameters:
    ///   - buckets: The buckets by name. If two have the same name, the last one is served.
    ///   - cors: If nil, browsers reject calls from pages of other origins.
    ///   - callers: How callers are identified and limited.
    ///   - observers: Called at the end of every request.
    ///   - s3: How S3 clients are served; nil if they are not. Requires ``Callers/s3``.
    ///   - traces: Where spans are recorded; nil if they are not.
    ///   - wallClock: Seconds since 1970.
    public convenience init(
        buckets: [Bucket], cors: CORSPolicy? = nil, callers: Callers = .unknown, s3: S3Settings? = nil,
        observers: [any RequestObserver],
        traces: TraceExporter? = nil, wallClock: @escaping @Sendable () -> Int64 = SystemClock.seconds
    ) {
        self.init(
            buckets: buckets, cors: cors, callers: callers,
            dialects: Gateway.dialects(callers, buckets, s3), observers: observers, traces: traces,
            wallClock: wallClock)
    }

    /// - Parameter dialects: At least one. The first serves all other paths; the others count if they serve a bucket.
    init(
        buckets: [Bucket], cors: CORSPolicy?, callers: Callers, dialects: [any Dialect],
        observers: [any RequestObserver], traces: TraceExporter? = nil, wallClock: @escaping @Sendable () -> Int64
    ) {
        self.buckets = ServedBuckets(buckets)
        self.cors = cors
        self.callers = callers
        self.dialects =
            dialects.prefix(1) + dialects.dropFirst().filter { dialect in buckets.contains { dialect.serves($0) } }
        self.observers = observers
        self.traces = traces
        readsDetails = traces != nil || observers.contains(where: \.readsDetails)
        watch = observers.lazy.compactMap(\.watch).first
        self.wallClock = wallClock
    }

    /// The handler for the HTTP server.
    public var handler: RequestHandler {
        { exchange in await self.respond(exchange) }
    }

    /// Responds to one request and returns when the response is queued. Every outcome ends in one record.
    /// - Parameters:
    ///   - isForS3: Whether the request arrived at the listener for S3.
    ///   - fields: Fields of the listener, instead of those of the response with the same names.
    public func respond(_ exchange: Exchange, isForS3: Bool = false, adding fields: HeaderFields? = nil) async {
        let context = begin(exchange, isForS3: isForS3, fields)
        let dialect = dialect(for: context)
        let response: Response
        do throws(Problem) {
            try callers.checkHost(exchange.head)
            if let direct = try direct(context, dialect) {
                response = direct
            } else {
                response = try await served(context, dialect)
            }
        } catch {
            response = failed(context, context.counted(error, callers), dialect)
        }
        finish(context, consume response, dialect)
    }

    // Not inlined, as everything here that does not wait, so that tasks do not reserve memory for it.
    @inline(never)
    private func begin(_ exchange: Exchange, isForS3: Bool, _ fields: HeaderFields?) -> RequestContext {
        let context = RequestContext(
            exchange, isForS3: isForS3, callers: callers, requestId: requestIds.next(), bodies: bodies,
            observers: observers, traces: traces,
            readsDetails: readsDetails,
            watch: watch.flatMap { $0.until > exchange.started ? $0 : nil }, now: wallClock)
        context.listenerFields = fields
        return context
    }

    /// The response to a request that concerns no bucket; nil for all others.
    @inline(never)
    private func direct(_ context: RequestContext, _ dialect: any Dialect) throws(Problem) -> Response? {
        try dialect.prepare(context)
        if context.isOptions { return try options(context, dialect) }
        try context.checkCertificate()
        guard let response = dialect.respond(to: context) else { return nil }
        try context.admit(callers)
        return response
    }

    /// Performs a request to a bucket.
    private func served(_ context: RequestContext, _ dialect: any Dialect) async throws(Problem)
        -> Response
    {
        let route = try dialect.route(context)
        if !route.claimsGrant, context.hasCredential || route.hasCredential {
            try await dialect.identify(context, route, callers)
        }
        if case .service = route.path { return try await dialect.serve(route, context, callers, buckets) }
        let (operation, handler) = try begin(context, route, dialect)
        if let fields = context.earlyFields {
            return try await early(fields, context, dialect) { () async throws(Problem) in
                try await self.performed(operation, of: route, handler, context, dialect)
            }
        }
        let trace = context.record.trace
        if let trace {
            return try await traced(trace) { () async throws(Problem) in
                try await performed(operation, of: route, handler, context, dialect)
            }
        }
        // Without the memory that the task reserves for other operations, because it waits.
        if case .watch(let request) = operation { return try await handler.watch(request) }
        return try await performed(operation, of: route, handler, context, dialect)
    }

    /// Performs an operation that may take minutes.
    @inline(never)
    private func early(
        _ fields: HeaderFields, _ context: RequestContext, _ dialect: any Dialect,
        _ perform: @escaping () async throws(Problem) -> Response
    ) async throws(Problem) -> Response {
        try await EarlyResponse.response(on: context.exchange.loop, fields, perform) { problem in
            context.failed(problem)
            // The status was 200, but the request has failed.
            context.record.isBroken = problem.code.status >= 500
            return dialect.render(dialect.shown(problem, of: context), of: context)
        }
    }

    // Not inlined, because two places call it, and the task would reserve memory for both.
    @inline(never)
    private func performed(
        _ operation: ObjectOperation, of route: Route, _ handler: OperationHandler,
        _ context: RequestContext, _ dialect: any Dialect
    ) async throws(Problem) -> Response {
        let result = try await handler.perform(operation)
        if case .page(let page, let request) = result {
            return await rendered(page, request, in: handler.bucket, context, dialect)
        }
        return dialect.render(result, of: route, in: handler.bucket, context)
    }

    // Not inlined, so that only the task of a list reserves memory for a page.
    @inline(never)
    private func rendered(
        _ page: ListPage, _ request: ListRequest, in bucket: Bucket, _ context: RequestContext,
        _ dialect: any Dialect
    ) async -> Response {
        await dialect.render(page, request, in: bucket, context)
    }

    // Not inlined, so that the task of a request without a trace does not reserve memory for it.
    @inline(never)
    private func traced(
        _ trace: RequestTrace, _ body: () async throws(Problem) -> Response
    ) async throws(Problem) -> Response {
        let result: Result<Response, Problem> = await RequestTrace.$current.withValue(trace) {
            do throws(Problem) {
                return .success(try await body())
            } catch {
                return .failure(error)
            }
        }
        return try result.get()
    }

    private func dialect(for context: RequestContext) -> any Dialect {
        for dialect in dialects.dropFirst() where dialect.serves(context) { return dialect }
        return dialects[0]
    }

    /// Parses the operation, and makes its handler.
    @inline(never)
    private func begin(_ context: RequestContext, _ route: Route, _ dialect: any Dialect)
        throws(Problem) -> (ObjectOperation, OperationHandler)
    {
        if !route.claimsGrant { try context.admit(callers) }
        let bucket = try dialect.bucket(of: route, context, among: buckets)
        let operation = try dialect.parse(route, in: bucket, among: buckets, context)
        let access = operation.access(in: bucket)
        context.record.operation = access.kind
        if readsDetails, bucket.asksServices, context.record.trace == nil {
            context.record.trace = RequestTrace(nil, state: nil, hasSpans: false)
        }
        var grant: (any Grant)?
        if route.claimsGrant {
            guard let shown = try dialect.grant(operation, route, in: bucket, context) else {
                throw Problem(.unauthorized, Problem.denied, cause: "no grant for this")
            }
            context.record.principal = shown.principal
            context.record.group = shown.group
            grant = shown
            try context.admit(callers)
        } else if route.offersGrant {
            grant = try dialect.grant(operation, route, in: bucket, context)
        }
        let authorizer = Authorizer(
            context, bucket, access, grant, parameters: route.query.values)
        return (
            operation, OperationHandler(context: context, authorizer: authorizer, bucket: bucket)
        )
    }

    // Not inlined, so that the task of every request does not reserve memory for it.
    @inline(never)
    private func failed(_ context: RequestContext, _ problem: Problem, _ dialect: any Dialect)
        -> Response
    {
        context.failed(problem)
        let problem = dialect.shown(problem, of: context)
        var response = dialect.render(problem, of: context)
        if let field = problem.field { response.head.fields.append(field.name, field.value) }
        return response
    }

    @inline(never)
    private func finish(
        _ context: RequestContext, _ response: consuming Response, _ dialect: any Dialect
    ) {
        response.complete(requestId: context.record.requestId, isHead: context.isHead)
        if let cache = context.record.cache { response.head.fields.append(cache) }
        dialect.cors(cors)?.decorate(&response.head.fields, for: context.fields)
        if let fields = context.listenerFields { response.head.fields.replace(with: fields) }
        context.record.status = response.head.status
        if let lease = context.lease { response.body = lease.pacing(response.body) }
        // Captures a single reference, so that the closure needs no allocation.
        context.exchange.respond(response.head, response.body) { [context] in context.ended($0) }
    }

    /// Responds with the methods of a path, and to a CORS preflight if CORS is configured. It evaluates no rules and
    /// reveals nothing about objects.
    @inline(never)
    private func options(_ context: RequestContext, _ dialect: any Dialect) throws(Problem)
        -> Response
    {
        let head = context.exchange.head
        if dialect.limitsOptions { try context.admit(callers) }
        var response = Response(status: 204)
        var route: Route?
        if head.target != "*" {
            route = try dialect.describe(context, among: buckets, to: &response.head.fields)
        }
        response.head.fields.append("allow", dialect.methods(at: route))
        dialect.cors(cors)?.preflight(
            &response.head.fields, for: head.fields, methods: dialect.preflightMethods(at: route))
        return response
    }
}
