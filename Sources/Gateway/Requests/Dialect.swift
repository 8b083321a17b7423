import Buckets
import Wire

/// An HTTP interface to buckets. It parses requests into operations and renders their results.
///
/// A dialect serves all paths below its first segment. Everything between ``parse(_:in:_:)`` and
/// ``render(_:of:in:_:)`` (callers, limits, rules, stores, logs) is common to all dialects.
protocol Dialect: AnyObject, Sendable {
    /// The first segment of the dialect's paths.
    var root: StaticString { get }

    /// Whether the dialect serves a request: by default everything below its first segment.
    func serves(_ context: RequestContext) -> Bool

    /// Whether the dialect serves a bucket. Any other bucket is unknown to it.
    func serves(_ bucket: Bucket) -> Bool

    /// The dialect's rules for pages of other origins.
    /// - Parameter configured: Those of the configuration.
    func cors(_ configured: CORSPolicy?) -> CORSPolicy?

    /// Prepares a request, before anything else is done with it. Nothing is known about the caller yet.
    /// - Throws: ``Problem`` if the request is not one of this protocol.
    func prepare(_ context: RequestContext) throws(Problem)

    /// The response to a request that needs no bucket; nil for all others.
    func respond(to context: RequestContext) -> Response?

    /// Whether `OPTIONS` counts against the limits of anonymous callers.
    var limitsOptions: Bool { get }

    /// Parses the target. Nothing is known about the caller yet.
    /// - Throws: ``Problem`` if the path is not one of the dialect's.
    func route(_ context: RequestContext) throws(Problem) -> Route

    /// Identifies the caller of a request with a credential; by default by `Authorization` and the client certificate.
    /// - Throws: ``Problem`` if the credential is not valid.
    func identify(_ context: RequestContext, _ route: Route, _ callers: Callers) async throws(Problem)

    /// The response to a request that concerns no single bucket (``Route/Path/service``). The caller is identified.
    func serve(_ route: Route, _ context: RequestContext, _ callers: Callers, _ buckets: ServedBuckets)
        async throws(Problem) -> Response

    /// The methods that the route supports, as in `Allow`; nil for the server as a whole.
    func methods(at route: Route?) -> String

    /// The methods that a page of another origin may use on the route; by default the methods in `Allow`.
    func preflightMethods(at route: Route?) -> String

    /// The bucket of the request; by default the route's.
    /// - Throws: ``Problem`` if no such bucket is served.
    func bucket(of route: Route, _ context: RequestContext, among buckets: ServedBuckets) throws(Problem) -> Bucket

    /// Parses the request's head into an operation. The body has not been read yet.
    /// - Parameter buckets: All buckets, for operations that concern a second one.
    /// - Throws: ``Problem`` if the route does not support the method, or the name or an argument is invalid.
    func parse(_ route: Route, in bucket: Bucket, among buckets: ServedBuckets, _ context: RequestContext)
        throws(Problem) -> ObjectOperation

    /// The grant that a route claims or offers.
    /// - Throws: ``Problem`` if the grant is not valid.
    func grant(_ operation: ObjectOperation, _ route: Route, in bucket: Bucket, _ context: RequestContext)
        throws(Problem) -> (any Grant)?

    /// Renders a result other than a page.
    func render(
        _ result: consuming OperationResult, of route: Route, in bucket: Bucket,
        _ context: RequestContext
    ) -> Response

    /// Renders a page of a list. It may suspend to let the loop do other work. The default is for dialects without lists.
    func render(_ page: ListPage, _ request: ListRequest, in bucket: Bucket, _ context: RequestContext) async
        -> Response

    /// The failure as the dialect's clients get it. The log has the original.
    func shown(_ problem: Problem, of context: RequestContext) -> Problem

    /// Renders a failure.
    func render(_ problem: Problem, _ requestId: String) -> Response

    /// Writes a failure of a request, with what the response says beyond it.
    func render(_ problem: Problem, of context: RequestContext) -> Response

    /// Adds the fields of an upload to a response, if it reports one.
    func decorate(_ fields: inout HeaderFields, _ context: RequestContext)

    /// Adds to a response to `OPTIONS` what it says beyond the methods.
    /// - Returns: The route; nil if the response is the same for all of them.
    /// - Throws: ``Problem`` if there is nothing at the route.
    func describe(_ context: RequestContext, among buckets: ServedBuckets, to fields: inout HeaderFields)
        throws(Problem) -> Route?
}

/// The buckets of a gateway by their names.
typealias ServedBuckets = NameTable<Bucket>

extension NameTable where Value == Bucket {
    /// - Parameter buckets: If two have the same name, the last one is served.
    init(_ buckets: [Bucket]) { self.init(buckets.map { ($0.name, $0) }) }
}

extension Dialect {
    func serves(_ context: RequestContext) -> Bool { context.target.isBelow(root) }

    func serves(_ bucket: Bucket) -> Bool { true }

    func cors(_ configured: CORSPolicy?) -> CORSPolicy? { configured }

    func prepare(_ context: RequestContext) throws(Problem) {}

    func respond(to context: RequestContext) -> Response? { nil }

    func identify(_ context: RequestContext, _ route: Route, _ callers: Callers) async throws(Problem) {
        try await context.identify(callers)
    }

    func serve(_ route: Route, _ context: RequestContext, _ callers: Callers, _ buckets: ServedBuckets)
        async throws(Problem) -> Response
    {
        preconditionFailure("all requests of this dialect concern a bucket")
    }

    var limitsOptions: Bool { false }

    func preflightMethods(at route: Route?) -> String { methods(at: route) }

    func bucket(of route: Route, _ context: RequestContext, among buckets: ServedBuckets)
        throws(Problem) -> Bucket
    {
        guard let bucket = buckets[route.bucket], serves(bucket) else {
            throw Problem.noBucket
        }
        context.record.bucket = bucket.name
        return bucket
    }

    func render(
        _ page: ListPage, _ request: ListRequest, in bucket: Bucket, _ context: RequestContext
    ) async -> Response {
        preconditionFailure("this dialect has no lists")
    }

    func shown(_ problem: Problem, of context: RequestContext) -> Problem { problem }

    func render(_ problem: Problem, of context: RequestContext) -> Response {
        var response = render(problem, context.record.requestId)
        decorate(&response.head.fields, context)
        return response
    }

    func decorate(_ fields: inout HeaderFields, _ context: RequestContext) {}

    func describe(
        _ context: RequestContext, among buckets: ServedBuckets, to fields: inout HeaderFields
    ) throws(Problem) -> Route? {
        let route = try route(context)
        _ = try bucket(of: route, context, among: buckets)
        return route
    }

    /// The default for dialects without grants: no route claims one.
    func grant(
        _ operation: ObjectOperation, _ route: Route, in bucket: Bucket, _ context: RequestContext
    ) throws(Problem) -> (any Grant)? {
        throw Problem(.unauthorized, Problem.denied, cause: "no grants here")
    }
}

extension Problem {
    static let noBucket = Problem(.bucketNotFound, "No bucket of this name is served here.")
}
