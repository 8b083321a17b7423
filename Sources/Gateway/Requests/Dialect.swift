import Wire

/// An HTTP interface to buckets. It parses requests into operations and renders their results.
///
/// A dialect serves all paths below its first segment. Everything between ``parse(_:in:_:)`` and
/// ``render(_:of:in:_:)`` (callers, limits, rules, stores, logs) is common to all dialects.
protocol Dialect: AnyObject, Sendable {
    /// The first segment of the dialect's paths.
    var root: StaticString { get }

    /// Parses the target. Nothing is known about the caller yet.
    /// - Throws: ``Problem`` if the path is not one of the dialect's.
    func route(_ target: RequestTarget) throws(Problem) -> Route

    /// The methods that the route supports, as in `Allow`; nil for the server as a whole.
    func methods(at route: Route?) -> String

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
    func describe(_ route: Route, in bucket: Bucket, to fields: inout HeaderFields)
}

extension Dialect {
    func render(_ problem: Problem, of context: RequestContext) -> Response {
        render(problem, context.record.requestId)
    }

    func describe(_ route: Route, in bucket: Bucket, to fields: inout HeaderFields) {}

    /// The default for dialects without grants: no route claims one.
    func grant(
        _ operation: ObjectOperation, _ route: Route, in bucket: Bucket, _ context: RequestContext
    ) throws(Problem) -> any Grant {
        throw Problem(.unauthorized, "The caller may not do this.", cause: "no grants here")
    }
}
