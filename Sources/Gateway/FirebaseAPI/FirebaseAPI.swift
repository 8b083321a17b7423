import Buckets
import HTTPServer
import Wire

/// The Firebase Storage protocol: objects at `/v0/b/BUCKET/o/NAME`, lists and uploads at `/v0/b/BUCKET/o`. It serves the
/// buckets that have ``FirebaseSettings``.
final class FirebaseAPI: Dialect {
    var root: StaticString { "v0" }

    /// Browsers send a preflight request before each request, without a credential.
    var limitsOptions: Bool { true }

    func serves(_ context: RequestContext) -> Bool { context.target.isAtOrBelow(root) }

    func serves(_ bucket: Bucket) -> Bool { bucket.firebase != nil }

    /// Responds to `/v0` alone, which clients request to check that the server is running.
    func respond(to context: RequestContext) -> Response? {
        guard context.target.path.count <= "/v0/".utf8.count,
            ["GET", "HEAD"].contains(context.exchange.head.method)
        else { return nil }
        return Response(status: 200, json: Array("{}".utf8))
    }

    func route(_ context: RequestContext) throws(Problem) -> Route { try Route(firebase: context.target) }

    func methods(at route: Route?) -> String { "GET, HEAD, PUT, PATCH, POST, DELETE, OPTIONS" }

    /// Every path has the same methods. A browser does not show the failure of a preflight to its page, which would
    /// repeat the request; and the response does not reveal which buckets there are.
    func describe(
        _ context: RequestContext, among buckets: ServedBuckets, to fields: inout HeaderFields
    ) -> Route? { nil }

    func parse(_ route: Route, in bucket: Bucket, among buckets: ServedBuckets, _ context: RequestContext)
        throws(Problem) -> ObjectOperation
    {
        let method = context.exchange.head.method
        switch method {
        case "POST", "PUT": return try write(route, in: bucket, context)
        case "GET", "HEAD": break
        case "PATCH":
            return .patch(try name(route, in: bucket), PatchRequest(firebase: context))
        case "DELETE": return .delete(try name(route, in: bucket), context.conditions)
        default: throw Problem.methodNotAllowed(methods(at: route))
        }
        guard case .named(let path) = route.path else {
            return .list(try ListRequest(firebase: bucket.name, route.query))
        }
        let name = try bucket.objectName(path)
        if route.query.values["alt"] == "media" {
            if method == "HEAD" { return .stat(name, context.conditions) }
            var range = RangeRequest(context.fields)
            range.ignoresEmpty = true
            return .download(name, ReadRequest(range: range, conditions: context.conditions))
        }
        let conditions = context.conditions.map(\.forMetadata)
        return bucket.firebase?.mintsTokens == true && method == "GET"
            ? .statWithToken(name, conditions) : .stat(name, conditions)
    }

    /// `POST` and `PUT`: an upload in one of its forms, a change of tokens, or a patch.
    private func write(_ route: Route, in bucket: Bucket, _ context: RequestContext) throws(Problem) -> ObjectOperation
    {
        if let override = context.fields.list("x-http-method-override") {
            guard override.asciiLowercased() == "patch" else {
                throw Problem(.invalidArgument, "X-HTTP-Method-Override is PATCH, or left out.")
            }
            return .patch(try name(route, in: bucket), PatchRequest(firebase: context))
        }
        if let change = try tokenChange(route.query) {
            return .changeTokens(try name(route, in: bucket), change)
        }
        if let upload = try sessionRequest(route, context) { return upload }
        return try upload(try uploadName(route, in: bucket), in: bucket, context)
    }

    private func tokenChange(_ query: QueryParameters) throws(Problem) -> TokenChange? {
        let values = query.values
        switch (query.contains("create_token"), query.contains("delete_token")) {
        case (false, false): return nil
        case (true, false):
            guard values["create_token"] == "true" else {
                throw Problem(.invalidArgument, "create_token is true.")
            }
            return .create
        case (false, true):
            guard let token = values["delete_token"], !token.isEmpty else {
                throw Problem(.invalidArgument, "delete_token is the token to delete.")
            }
            return .delete(token)
        case (true, true): throw Problem(.invalidArgument, "A request creates a token or deletes one, not both.")
        }
    }

    /// The object in the path.
    private func name(_ route: Route, in bucket: Bucket) throws(Problem) -> ObjectName {
        guard case .named(let path) = route.path else {
            throw Problem.methodNotAllowed("GET, HEAD, PUT, POST, OPTIONS")
        }
        return try bucket.objectName(path)
    }

    /// The object of an upload: in the path, or else in `name`.
    private func uploadName(_ route: Route, in bucket: Bucket) throws(Problem) -> ObjectName {
        if case .named(let path) = route.path { return try bucket.objectName(path) }
        guard let name = try route.query.single("name"), !name.isEmpty else {
            throw Problem(.invalidArgument, "The object's name is in the path, or in name.")
        }
        return try bucket.objectName(decoded: name)
    }

    func grant(
        _ operation: ObjectOperation, _ route: Route, in bucket: Bucket, _ context: RequestContext
    ) throws(Problem) -> (any Grant)? {
        switch operation {
        case .changeTokens:
            let caller = context.caller.principal
            return TokenAdministration(
                isAdministrator: caller.flatMap { bucket.firebase?.isAdministrator($0) } ?? false,
                principal: caller?.uid ?? "", group: context.record.group)
        case .download, .stat:
            let values = route.query.values
            guard values["alt"] == "media", let token = values["token"], !token.isEmpty else {
                return nil
            }
            return DownloadToken(token)
        default: return nil
        }
    }
}

extension Route {
    /// Parses a target of the Firebase protocol.
    /// - Throws: ``Problem`` with `not-found` if the path is not a route.
    convenience init(firebase target: RequestTarget) throws(Problem) {
        let parts = target.path.split(separator: UInt8(ascii: "/"), omittingEmptySubsequences: false)
        // The first is empty, and the second the dialect's root.
        guard parts.count == 5 || parts.count == 6, parts[2].elementsEqual("b".utf8),
            parts[4].elementsEqual("o".utf8), let bucket = try? PercentEncoding.decode(parts[3])
        else { throw Problem.nothingHere }
        let query = QueryParameters(target.query)
        let isNamed = parts.count == 6 && !parts[5].isEmpty
        self.init(
            bucket: String(decoding: bucket, as: UTF8.self), path: isNamed ? .named(parts[5]) : .bucket, query: query,
            offersGrant: query.contains("token") || query.contains("create_token") || query.contains("delete_token"))
    }
}

extension QueryParameters {
    /// The decoded value of a parameter; nil if it is absent.
    /// - Throws: ``Problem`` with `invalid-argument` if it is malformed or given twice.
    func single(_ name: String) throws(Problem) -> String? {
        let found = all.filter { $0.name == name }
        guard let first = found.first else { return nil }
        guard found.count == 1 else {
            throw Problem(.invalidArgument, "\(name) is given twice.")
        }
        return try QueryParameters.decoded(first.value, of: name)
    }
}

extension Problem {
    static let nothingHere = Problem(.notFound, "Objects are at /v0/b/BUCKET/o/NAME, lists at /v0/b/BUCKET/o.")
}
