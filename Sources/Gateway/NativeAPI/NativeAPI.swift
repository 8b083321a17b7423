import Buckets
import HTTPServer
import Wire

/// The gateway's own dialect: objects at `/b/BUCKET/o/NAME`, lists at `/b/BUCKET/o`.
final class NativeAPI: Dialect {
    private let callers: Callers
    let headers = HeaderCache { $0.appendFields(to: &$1) }

    /// - Parameter callers: Has the keys of signed links, if there are any.
    init(_ callers: Callers) { self.callers = callers }

    var root: StaticString { "b" }

    func route(_ context: RequestContext) throws(Problem) -> Route { try Route(context.target) }

    func prepare(_ context: RequestContext) {
        // A response to an upload with `Upload-Complete` has that field too, unless a session begins.
        if context.method == .put || context.method == .post,
            UploadDraft.isUpload(context.fields)
        {
            context.upload = UploadReport(isComplete: true)
        }
    }

    func methods(at route: Route?) -> String {
        let canSign = callers.links != nil
        return route?.methods(canSign: canSign) ?? Route.objectMethods(canSign)
    }

    func parse(_ route: Route, in bucket: Bucket, among buckets: ServedBuckets, _ context: RequestContext)
        throws(Problem) -> ObjectOperation
    {
        let method = context.method
        if case .session(let token) = route.path {
            return try session(token, in: bucket, context)
        }
        guard case .named(let path) = route.path else {
            if route.asksForDeletions {
                guard method == .post else { throw notAllowed(route) }
                return .deleteMany(.native)
            }
            guard method == .get || method == .head else { throw notAllowed(route) }
            if route.asksForChanges { return .watch(try WatchRequest(route.query)) }
            return .list(try ListRequest(bucket: bucket.name, folder: nil, route.query))
        }
        // A request for a link with the wrong method must not act on the object, for example delete it.
        if route.asksForLink, method != .post, !route.isFolder, !route.claimsGrant {
            throw notAllowed(route)
        }
        // The same for a copy or a move.
        if route.asksForCopy, !route.isFolder, !route.claimsGrant {
            guard method == .post else { throw notAllowed(route) }
            return .copy(try bucket.objectName(path), try CopyRequest(route.query, in: bucket, among: buckets, context))
        }
        if let token = route.partsToken, !route.isFolder {
            return try parts(token, try bucket.objectName(path), route, in: bucket, context)
        }
        let isMetadata = route.asksForMetadata
        switch method {
        case .get where isMetadata, .head where isMetadata:
            return .stat(try bucket.objectName(path), context.conditions.map { $0.forMetadata })
        case .get where route.isFolder, .head where route.isFolder:
            return .list(try ListRequest(bucket: bucket.name, folder: path, route.query))
        case .get:
            let name = try bucket.objectName(path)
            return .download(
                name,
                ReadRequest(range: RangeRequest(context.fields), conditions: context.conditions))
        case .head: return .stat(try bucket.objectName(path), context.conditions)
        case .patch: return .patch(try bucket.objectName(path), PatchRequest(context))
        case .put where !isMetadata:
            let name = try bucket.objectName(path)
            if let upload = try resumable(name, in: bucket, context) { return upload }
            return .upload(name, try UploadRequest(context, name, bucket))
        case .post where route.asksForLink:
            return .sign(try bucket.objectName(path), signing)
        case .delete where !isMetadata:
            return .delete(try bucket.objectName(path), context.conditions)
        case .post:
            if !isMetadata, UploadDraft.isUpload(context.fields),
                let upload = try resumable(try bucket.objectName(path), in: bucket, context)
            {
                return upload
            }
            // `POST` is only possible with `sign` or Upload-Complete.
            throw Problem.methodNotAllowed(route.methods(canSign: false))
        default: throw notAllowed(route)
        }
    }

    private func notAllowed(_ route: Route) -> Problem {
        Problem.methodNotAllowed(methods(at: route))
    }

    private var signing: SignRequest {
        SignRequest(keys: callers.links, maximumLifetime: callers.maximumLifetime) {
            (text, maximumLifetime) throws(Problem) in try LinkRequest(json: text, maximumLifetime: maximumLifetime)
        }
    }

    /// The signed link in the query.
    /// - Throws: ``Problem``: `link-expired` or `invalid-link`.
    func grant(
        _ operation: ObjectOperation, _ route: Route, in bucket: Bucket, _ context: RequestContext
    ) throws(Problem) -> (any Grant)? {
        guard let keys = callers.links, let name = operation.name else {
            throw Problem(.invalidLink, "No link leads here.", cause: "no link can be for this")
        }
        if case .parts = operation {
            throw Problem(.invalidLink, "No link leads here.", cause: "a link is not for an upload in parts")
        }
        let (link, key) = try SignedLink.verified(
            method: context.exchange.head.method, bucket: bucket.name, name: name.value,
            query: route.query, keys, maximumLifetime: callers.maximumLifetime, now: context.now)
        switch operation {
        case .upload(_, let request), .createSession(_, let request, _): try link.check(request)
        default: break
        }
        return LinkGrant(link: link, key: key)
    }
}

extension Route {
    /// Parses a target of the native API.
    /// - Throws: ``Problem`` with `not-found` if the path is not a route, or `invalid-name` if the bucket's
    ///   percent-encoding is malformed.
    convenience init(_ target: RequestTarget) throws(Problem) {
        let path = target.path
        guard path.count > 3, path[0] == UInt8(ascii: "/"), path[1] == UInt8(ascii: "b"), path[2] == UInt8(ascii: "/"),
            let end = path[3...].firstIndex(of: UInt8(ascii: "/")), end > 3
        else { throw Problem.notFound }
        let rest = path[(end + 1)...]
        let isObject = rest.first == UInt8(ascii: "o")
        let resource: Path
        if isObject, rest.count == 1 {
            resource = .bucket
        } else if rest.count > 1, rest[end + 2] == UInt8(ascii: "/"),
            isObject || rest.first == UInt8(ascii: "u")
        {
            let last = rest[(end + 3)...]
            resource = isObject ? .named(last) : .session(last)
        } else {
            throw Problem.notFound
        }
        let bucket: String
        do throws(PercentEncoding.Malformed) {
            bucket = String(decoding: try PercentEncoding.decode(path[3..<end]), as: UTF8.self)
        } catch {
            let position = "at byte \(error.offset + 3) of the path"
            throw Problem(.invalidName, "The percent-encoding is malformed \(position).")
        }
        let query = QueryParameters(target.query)
        var claimsGrant = false
        if case .named = resource { claimsGrant = SignedLink.isClaimed(query) }
        self.init(bucket: bucket, path: resource, query: query, claimsGrant: claimsGrant)
    }

    /// Parses a target of the native API.
    convenience init(target: String) throws(Problem) {
        try self.init(RequestTarget(target))
    }

    /// Whether the path is a folder's: empty after the slash, or ending with a slash, encoded or not.
    var isFolder: Bool {
        guard case .named(let path) = self.path else { return false }
        if path.isEmpty || path.last == UInt8(ascii: "/") { return true }
        let last = path.endIndex
        return path.count >= 3 && path[last - 3] == UInt8(ascii: "%")
            && path[last - 2] == UInt8(ascii: "2") && path[last - 1] | 0x20 == UInt8(ascii: "f")
    }

    /// Whether the query has `metadata`, with or without a value.
    var asksForMetadata: Bool { query.contains("metadata") }

    /// Whether the query has `sign`.
    var asksForLink: Bool { query.contains("sign") }

    /// The methods that the route supports, as in `Allow`.
    /// - Parameter canSign: Whether `POST …?sign` is available.
    func methods(canSign: Bool) -> String {
        if case .session = path { return NativeAPI.sessionMethods }
        if asksForDeletions { return "POST, OPTIONS" }
        if path == .bucket || isFolder { return "GET, HEAD, OPTIONS" }
        if asksForLink || asksForCopy { return "POST, OPTIONS" }
        if partsToken != nil { return partsMethods }
        return asksForMetadata ? "GET, HEAD, PATCH, OPTIONS" : Route.objectMethods(canSign)
    }

    /// The methods of an object, as in `Allow`.
    static func objectMethods(_ canSign: Bool) -> String {
        "GET, HEAD, PUT, PATCH, DELETE, \(canSign ? "POST, " : "")OPTIONS"
    }
}
