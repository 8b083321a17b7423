/// An HTTP interface to buckets: reads requests into operations, and writes what they came to.
///
/// One dialect serves all paths below its first segment. Everything between ``parse(_:in:_:)`` and
/// ``render(_:of:in:_:)`` (callers, limits, rules, stores, logs) is the same for all.
protocol Dialect: Sendable {
    /// The first segment of its paths.
    var root: StaticString { get }

    /// Reads a target, before anything is known of the caller.
    /// - Throws: ``Problem`` for a path that leads nowhere.
    func route(_ target: RequestTarget) throws(Problem) -> Route

    /// The methods that are possible there, as `Allow` names them; nil for the server as a whole.
    func methods(at route: Route?) -> String

    /// Reads what is asked for, from the request's head alone.
    /// - Throws: ``Problem`` for a method that is not possible here, a broken name or a bad argument.
    func parse(_ route: Route, in bucket: Bucket, _ context: RequestContext) throws(Problem)
        -> ObjectOperation

    /// The grant that a route claims.
    /// - Throws: ``Problem`` where it is not valid.
    func grant(
        _ operation: ObjectOperation, _ route: Route, in bucket: Bucket, _ context: RequestContext
    ) throws(Problem) -> any Grant

    /// Writes a result. It may wait to let the loop do other work.
    func render(
        _ result: consuming OperationResult, of route: Route, in bucket: Bucket,
        _ context: RequestContext
    ) async -> Response

    /// Writes a failure.
    func render(_ problem: Problem, _ requestId: String) -> Response
}

extension Dialect {
    /// Most dialects know no grants, and their routes claim none.
    func grant(
        _ operation: ObjectOperation, _ route: Route, in bucket: Bucket, _ context: RequestContext
    ) throws(Problem) -> any Grant {
        throw Problem(.unauthorized, "The caller may not do this.", cause: "no grants here")
    }
}
