import Buckets
import HTTPServer
import Identity
import OpenSSL
import Wire

/// The S3 API of Amazon: buckets at `/BUCKET` or `BUCKET.DOMAIN`, objects below. It serves all requests to its listener and
/// to its host names.
final class S3API: Dialect {
    let settings: S3Settings
    let verifier: S3Verifier
    let headers = HeaderCache { $0.appendS3Fields(to: &$1) }

    init(_ settings: S3Settings, _ verifier: S3Verifier) {
        self.settings = settings
        self.verifier = verifier
    }

    /// The dialect has no first segment of its own.
    var root: StaticString { "" }

    func serves(_ context: RequestContext) -> Bool {
        context.isForS3 || (!settings.domains.isEmpty && bucket(ofHost: context.exchange.head.authority) != nil)
    }

    /// The bucket in the host's name: empty if the host is a domain itself, nil if it belongs to no domain.
    private func bucket(ofHost authority: String?) -> String? {
        guard let authority else { return nil }
        // The port follows the last colon, unless that is within the brackets of an IPv6 address.
        let end = authority.lastIndex(of: ":").flatMap { authority[$0...].contains("]") ? nil : $0 }
        let host = String(authority[..<(end ?? authority.endIndex)]).asciiLowercased()
        for domain in settings.domains {
            if BytewiseString.areEqual(host, domain) { return "" }
            if host.hasSuffix("." + domain), host.utf8.count > domain.utf8.count + 1 {
                return String(host.dropLast(domain.utf8.count + 1))
            }
        }
        return nil
    }

    func route(_ context: RequestContext) throws(Problem) -> Route {
        let target = context.target
        var rest = target.path.dropFirst()
        var bucket = ""
        if !settings.domains.isEmpty, let name = self.bucket(ofHost: context.exchange.head.authority), !name.isEmpty {
            bucket = name
        } else {
            let end = rest.firstIndex(of: UInt8(ascii: "/")) ?? rest.endIndex
            bucket = S3API.decoded(rest[..<end])
            rest = rest[end...].dropFirst()
        }
        let finding = verifier.find(context.method, target, authority: context.exchange.head.authority)
        var query: S3Query?
        let parameters: QueryParameters
        if case .verified(let url) = finding {
            parameters = url.others
        } else {
            let parsed = S3Query(target.query)
            (query, parameters) = (parsed, parsed.others)
        }
        let path: Route.Path
        if rest.isEmpty { path = bucket.isEmpty ? .service : .bucket } else { path = .named(rest) }
        let request = S3Request(context, path, query, parameters, finding)
        context.parsed = request
        context.record.protocolOperation = request.operation?.rawValue
        // Every request is verified: that finds the form of the body, too.
        return Route(bucket: bucket, path: path, query: parameters, hasCredential: true)
    }

    private static func decoded(_ segment: ArraySlice<UInt8>) -> String {
        do throws(PercentEncoding.Malformed) {
            return String(decoding: try PercentEncoding.decode(segment), as: UTF8.self)
        } catch {
            return String(decoding: segment, as: UTF8.self)
        }
    }

    func methods(at route: Route?) -> String { "GET, HEAD, PUT, POST, DELETE, OPTIONS" }

    /// Every path has the same methods, and the response does not reveal which buckets there are.
    func describe(
        _ context: RequestContext, among buckets: ServedBuckets, to fields: inout HeaderFields
    ) -> Route? { nil }

    /// Browsers send a preflight request before each request, without a credential.
    var limitsOptions: Bool { true }

    func bucket(of route: Route, _ context: RequestContext, among buckets: ServedBuckets) throws(Problem) -> Bucket {
        guard let bucket = buckets[route.bucket] else {
            if context.s3.operation == .createBucket || context.s3.operation == .deleteBucket,
                context.caller.principal == nil
            {
                throw S3Error.accessDenied("an anonymous caller makes no bucket")
            }
            if context.s3.operation == .createBucket {
                throw S3Error.accessDenied(
                    "buckets are made in the configuration", "Buckets are made in the gateway's configuration.")
            }
            throw Problem(
                .bucketNotFound, "The specified bucket does not exist",
                dialect: DialectError(status: 404, code: "NoSuchBucket", members: [("BucketName", route.bucket)]))
        }
        context.record.bucket = bucket.name
        return bucket
    }

    func parse(_ route: Route, in bucket: Bucket, among buckets: ServedBuckets, _ context: RequestContext)
        throws(Problem) -> ObjectOperation
    {
        let request = context.s3
        guard let operation = request.operation else { throw Problem.methodNotAllowed(methods(at: route)) }
        if context.caller.principal == nil, operation.needsIdentity {
            throw S3Error.accessDenied("an anonymous caller has no settings")
        }
        if operation == .notImplemented { throw S3Error.notImplemented }
        if request.authentication.payload.isStreaming, operation != .putObject, operation != .uploadPart {
            throw S3Error.invalidRequest("x-amz-content-sha256 can't be STREAMING-… with this request.")
        }
        if operation == .completeUpload || operation == .copyObject || operation == .uploadPartCopy {
            var fields = HeaderFields()
            fields.append("content-type", "application/xml")
            S3API.identify(&fields, context.record.requestId)
            context.earlyFields = fields
        }
        guard case .named(let path) = route.path else {
            return try parseBucket(operation, route, in: bucket, context)
        }
        return try parseObject(operation, path, route, in: bucket, among: buckets, context)
    }

    /// The grant that a route claims or offers: there are none, since signatures identify the caller.
    func grant(
        _ operation: ObjectOperation, _ route: Route, in bucket: Bucket, _ context: RequestContext
    ) throws(Problem) -> (any Grant)? { nil }

    // MARK: Callers

    func identify(_ context: RequestContext, _ route: Route, _ callers: Callers) async throws(Problem) {
        if case .verified(let url) = context.s3.finding,
            let found = try verifier.verify(url, context.fields, now: context.now)
        {
            try context.s3.authenticated(found, context)
            return try context.become(found.signer)
        }
        var request = S3SignedRequest(
            method: context.exchange.head.method, target: context.target, authority: context.exchange.head.authority,
            fields: context.fields, query: context.s3.query ?? S3Query(context.target.query),
            isSecure: context.exchange.isSecure)
        if case .repeated = context.s3.finding { request.isRepeated = true }
        if context.exchange.isFromProxy {
            // The first of a list is the client's.
            let names = ["x-forwarded-host", "x-forwarded-port"] as [StaticString]
            let first = names.map { name in
                context.fields[name]?.split(separator: ",").first.map { $0.filter { $0 != " " } }
            }
            // A signature for one bucket's host is not valid for another bucket.
            let buckets = [first[0], request.authority].map { host in self.bucket(ofHost: host).map { Array($0.utf8) } }
            if settings.domains.isEmpty || buckets[0] == buckets[1] {
                (request.forwardedHost, request.forwardedPort) = (first[0], first[1])
            }
        }
        if case .service = route.path {
            request.services = [.s3, .sts]
            if context.method == .post {
                // Clients of STS sign the body and don't send its hash.
                request.bodySHA256 = Digest.sha256(try await context.s3.form(of: context))
            }
        }
        let found = try verifier.verify(request, now: context.now)
        try context.s3.authenticated(found, context)
        switch found.signer {
        case .anonymous, .bearer: try await context.identify(callers)
        case .accessKey, .session: try context.become(found.signer)
        }
    }
}

/// What an S3 request asks for, and how it is signed.
///
/// Safety: confined to the request's loop.
final class S3Request: @unchecked Sendable {
    /// nil if the method has none at the path.
    private(set) var operation: S3Operation?
    /// The parameter that selects a setting; empty for other operations.
    let setting: String
    /// The header fields, and the parameters of a presigned URL that act as fields.
    private(set) var fields: HeaderFields
    private(set) var authentication = S3Authentication()
    /// nil if the URL was verified before.
    let query: S3Query?
    let finding: VerifiedURLs.Finding
    /// The fields of a download that the query replaces.
    var overrides: [(name: StaticString, value: String)] = []
    /// The requested part of an object, for the response to `HEAD`.
    var range = RangeRequest()
    /// The checksum that the client has sent with an upload, to be repeated in the response.
    var checksum: S3Properties.Checksum?
    /// Whether the response to many deletions has only the failed ones.
    var isQuiet = false
    /// The checksum that the creation of a multipart upload asks for.
    var wanted: WantedChecksum?
    /// The properties that are asked for.
    var attributes: ObjectAttributesRequest?
    /// The requested page of a list of parts.
    var page = (after: 0, limit: 1000)
    /// The response that the form of an upload asks for.
    var form: S3FormResponse?
    /// The list of multipart uploads that was asked for.
    var uploads: S3UploadQuery?
    /// The list that was asked for.
    var list: S3ListQuery?
    private var collected: [UInt8]?

    init(
        _ context: RequestContext, _ path: Route.Path, _ query: S3Query?, _ parameters: QueryParameters,
        _ finding: VerifiedURLs.Finding
    ) {
        var setting = ""
        fields = context.fields
        self.query = query
        self.finding = finding
        operation = S3Operation(
            context.method, path, parameters, isCopy: context.fields.contains("x-amz-copy-source"), setting: &setting)
        self.setting = setting
    }

    /// Takes what the verification has found.
    /// - Throws: ``Problem`` with `InvalidArgument` if a parameter that acts as a field is no value of a field.
    func authenticated(_ found: S3Authentication, _ context: RequestContext) throws(Problem) {
        authentication = found
        for (name, value) in found.hoisted {
            guard value.isFieldValue else {
                throw S3Error.invalidArgument("The value is no value of a header field.", name, value)
            }
            fields.append(name: name, value)
        }
        if found.hoisted.contains(where: { $0.name == "x-amz-copy-source" }) {
            if operation == .putObject { operation = .copyObject }
            if operation == .uploadPart { operation = .uploadPartCopy }
            context.record.protocolOperation = operation?.rawValue
        }
    }

    /// The maximum size of a form of STS in bytes.
    private static let maximumForm = 32 * 1024

    /// The body of a request to STS. It is received once.
    func form(of context: RequestContext) async throws(Problem) -> [UInt8] {
        if let collected { return collected }
        let bytes = try await context.collect(limit: S3Request.maximumForm)
        collected = bytes
        return bytes
    }
}

extension RequestContext {
    /// The parsed S3 request.
    var s3: S3Request {
        guard let request = parsed as? S3Request else { preconditionFailure("the route is parsed first") }
        return request
    }

    /// Becomes the caller that has signed the request.
    func become(_ signer: S3Authentication.Signer) throws(Problem) {
        switch signer {
        case .anonymous: return
        case .bearer: throw S3Error.accessDenied("a Bearer token signs nothing")
        case .accessKey(let principal):
            caller.identify(principal, certificate: exchange.identity as? ClientIdentity)
        case .session(let saved): caller.become(saved)
        }
        record.principal = caller.principal?.uid
        record.group = caller.principal?.group ?? record.group
    }
}

extension Digest {
    static func sha256(_ bytes: [UInt8]) -> [UInt8] {
        let digest = Digest(.sha256)
        digest.update(bytes.span.bytes)
        return digest.finish()
    }
}
