import Buckets
import HTTPServer
import Wire

/// The tus protocol 1.0.0 (https://tus.io/protocols/resumable-upload): uploads are created at `/tus` and continued at
/// `/tus/TOKEN`. The bucket and the object's name are in `Upload-Metadata`.
final class TusAPI: Dialect {
    static let version = "1.0.0"
    static let extensions = "creation,creation-with-upload,creation-defer-length,expiration,checksum,termination"

    let uploads: Uploads
    /// The maximum size of an upload in bytes, in the bucket that takes the largest.
    private let maximumSize: UInt64

    /// - Parameter buckets: They share one ``Uploads``.
    /// - Returns: nil if tus is switched off, or there is no bucket.
    init?(_ buckets: [Bucket]) {
        guard let uploads = buckets.first?.uploads, uploads.settings.servesTus else { return nil }
        self.uploads = uploads
        maximumSize = buckets.map(\.maximumObjectSize).max() ?? .max
    }

    var root: StaticString { "tus" }

    func serves(_ context: RequestContext) -> Bool { context.target.isAtOrBelow(root) }

    /// Determines the effective method, and checks the protocol's version.
    func prepare(_ context: RequestContext) throws(Problem) {
        if let method = context.fields["x-http-method-override"] {
            context.method = HTTPMethod(rawValue: method)
        }
        guard context.isOptions || context.fields.list("tus-resumable") == TusAPI.version else {
            throw Problem(
                .preconditionFailed, "Tus-Resumable is \(TusAPI.version) here.", field: ("tus-version", TusAPI.version))
        }
    }

    func route(_ context: RequestContext) throws(Problem) -> Route {
        let target = context.target
        let token = target.path.dropFirst("/tus/".utf8.count)
        return Route(
            bucket: "", path: token.isEmpty ? .bucket : .session(token),
            query: QueryParameters(target.query))
    }

    func methods(at route: Route?) -> String {
        if case .session = route?.path { return "HEAD, PATCH, DELETE, OPTIONS" }
        return "POST, OPTIONS"
    }

    /// The methods of any target: a `POST` can replace any other method.
    func preflightMethods(at route: Route?) -> String { "POST, GET, HEAD, PATCH, DELETE, OPTIONS" }

    /// The bucket in the metadata of a creation, or in the session's token.
    func bucket(of route: Route, _ context: RequestContext, among buckets: ServedBuckets)
        throws(Problem) -> Bucket
    {
        if context.fields.contains("upload-concat") {
            throw Problem(.invalidArgument, "Uploads can't be concatenated: Upload-Concat.")
        }
        let bucket: Bucket?
        if case .session(let text) = route.path {
            let token = uploads.keys.open(text)
            bucket = token.flatMap { buckets[$0.bucket] }
            if bucket == nil {
                throw Problem(uploadNotFound: "the token is not one of these keys and buckets")
            }
        } else {
            guard context.method == .post else {
                throw Problem.methodNotAllowed(methods(at: route))
            }
            let name = try UploadMetadata(context.fields).required("bucketName")
            bucket = buckets[name]
        }
        guard let bucket else { throw Problem.noBucket }
        context.record.bucket = bucket.name
        return bucket
    }

    func describe(
        _ context: RequestContext, among buckets: ServedBuckets, to fields: inout HeaderFields
    ) throws(Problem) -> Route? {
        fields.append("tus-resumable", TusAPI.version)
        fields.append("tus-version", TusAPI.version)
        fields.append("tus-extension", TusAPI.extensions)
        fields.append("tus-checksum-algorithm", UploadChecksum.algorithms)
        fields.append("tus-max-size", maximumSize)
        return try route(context)
    }
}
