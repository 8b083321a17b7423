import Wire

/// An HTTP interface to buckets. It parses requests into operations and renders their results.
///
/// A dialect serves all paths below its first segment. Everything between ``parse(_:in:_:)`` and
/// ``render(_:of:in:_:)`` (callers, limits, rules, stores, logs) is common to all dialects.
protocol Dialect: AnyObject, Sendable {
    /// The first segment of the dialect's paths.
    var root: StaticString { get }

    /// Whether the target is one of the dialect's: by default, all below its root.
    func serves(_ target: RequestTarget) -> Bool

    /// Prepares a request, before anything else is done with it. Nothing is known about the caller yet.
    /// - Throws: ``Problem`` if the request is not one of this protocol.
    func prepare(_ context: RequestContext) throws(Problem)

    /// Parses the target. Nothing is known about the caller yet.
    /// - Throws: ``Problem`` if the path is not one of the dialect's.
    func route(_ target: RequestTarget) throws(Problem) -> Route

    /// The methods that the route supports, as in `Allow`; nil for the server as a whole.
    func methods(at route: Route?) -> String

    /// The methods that a page of another origin may use on the route: by default, those of `Allow`.
    func preflightMethods(at route: Route?) -> String

    /// The bucket that the request is about: by default, that of the route.
    /// - Throws: ``Problem`` if no such bucket is served.
    func bucket(of route: Route, _ context: RequestContext, among buckets: ServedBuckets)
        throws(Problem) -> Bucket

    /// Parses the request's head into an operation. The body has not been read yet.
    /// - Throws: ``Problem`` if the route does not support the method, or the name or an argument is invalid.
    func parse(_ route: Route, in bucket: Bucket, _ context: RequestContext) throws(Problem)
        -> ObjectOperation

    /// The grant that a route claims.
    /// - Throws: ``Problem`` if the grant is not valid.
    func grant(
        _ operation: ObjectOperation, _ route: Route, in bucket: Bucket, _ context: RequestContext
    ) throws(Problem) -> any Grant

    /// Renders a result. It may suspend to let the loop do other work.
    func render(
        _ result: consuming OperationResult, of route: Route, in bucket: Bucket,
        _ context: RequestContext
    ) async -> Response

    /// Renders a failure.
    func render(_ problem: Problem, _ requestId: String) -> Response

    /// Writes a failure of a request, with what the response says beyond it.
    func render(_ problem: Problem, of context: RequestContext) -> Response

    /// Adds to a response to `OPTIONS` what it says beyond the methods.
    /// - Throws: ``Problem`` if there is nothing at the route.
    func describe(
        _ route: Route, _ context: RequestContext, among buckets: ServedBuckets,
        to fields: inout HeaderFields) throws(Problem)
}

/// The buckets of a gateway by their names.
typealias ServedBuckets = [BytewiseString: Bucket]

extension Dialect {
    func serves(_ target: RequestTarget) -> Bool { target.isBelow(root) }

    func prepare(_ context: RequestContext) throws(Problem) {}

    func preflightMethods(at route: Route?) -> String { methods(at: route) }

    func bucket(of route: Route, _ context: RequestContext, among buckets: ServedBuckets)
        throws(Problem) -> Bucket
    {
        guard let bucket = buckets[BytewiseString(route.bucket)] else { throw Problem.noBucket }
        context.record.bucket = bucket.name
        return bucket
    }

    func render(_ problem: Problem, of context: RequestContext) -> Response {
        render(problem, context.record.requestId)
    }

    func describe(
        _ route: Route, _ context: RequestContext, among buckets: ServedBuckets,
        to fields: inout HeaderFields
    ) throws(Problem) {
        _ = try bucket(of: route, context, among: buckets)
    }

    /// The default for dialects without grants: no route claims one.
    func grant(
        _ operation: ObjectOperation, _ route: Route, in bucket: Bucket, _ context: RequestContext
    ) throws(Problem) -> any Grant {
        throw Problem(.unauthorized, "The caller may not do this.", cause: "no grants here")
    }
}

extension Problem {
    static let noBucket = Problem(.bucketNotFound, "No bucket of this name is served here.")
}
