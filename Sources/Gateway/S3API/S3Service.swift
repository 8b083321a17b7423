import Buckets
import HTTPServer
import Identity
import OpenSSL
import Wire
import XML

extension S3API {
    /// Responds to requests at `/`: `ListBuckets`, and those of the security token service (STS).
    func serve(_ route: Route, _ context: RequestContext, _ callers: Callers, _ buckets: ServedBuckets)
        async throws(Problem) -> Response
    {
        try context.admit(callers)
        var response: Response
        switch context.s3.operation {
        case .listBuckets: response = try await listBuckets(route, context, buckets)
        case .assumeRole: response = try await token(context, callers)
        default: throw Problem.methodNotAllowed("GET, POST, OPTIONS")
        }
        S3API.identify(&response.head.fields, context.record.requestId)
        return response
    }

    /// Lists the buckets whose root the caller may list.
    private func listBuckets(_ route: Route, _ context: RequestContext, _ buckets: ServedBuckets)
        async throws(Problem) -> Response
    {
        guard context.caller.principal != nil else {
            throw S3Error.accessDenied("an anonymous caller has no buckets")
        }
        let prefix = try route.query.single("prefix") ?? ""
        let after = try route.query.single("continuation-token") ?? ""
        let limit = try S3ListQuery.limit(try route.query.single("max-buckets"), "max-buckets")
        context.record.operation = .list
        var shown: [Bucket] = []
        let all = buckets.values.sorted { $0.name < $1.name }
        for bucket in all where bucket.name.hasPrefix(prefix) && bucket.name > after {
            guard try await isListable(bucket, context) else { continue }
            shown.append(bucket)
            if shown.count > limit { break }
        }
        // The request itself is allowed, whatever the last bucket's decision was.
        context.record.note(.allowed, shadow: nil)
        var xml = XMLWriter()
        xml.begin("ListAllMyBucketsResult", namespace: S3API.namespace)
        xml.writeOwner("Owner", context)
        xml.begin("Buckets")
        for bucket in shown.prefix(limit) {
            xml.begin("Bucket")
            xml.element("Name", bucket.name)
            xml.element("CreationDate", S3API.time(bucket.created))
            xml.end("Bucket")
        }
        xml.end("Buckets")
        if shown.count > limit, let last = shown.prefix(limit).last {
            xml.element("ContinuationToken", last.name)
        }
        xml.end("ListAllMyBucketsResult")
        return Response(status: 200, xml: xml)
    }

    private func isListable(_ bucket: Bucket, _ context: RequestContext) async throws(Problem) -> Bool {
        let access = RequestedAccess(.list, bucket: bucket.name, name: "")
        let authorizer = Authorizer(context, bucket, access, nil, parameters: [:])
        do throws(Problem) {
            return try await authorizer.evaluate() == .nothing
        } catch {
            guard error.code == .unauthorized || error.code == .unauthenticated else { throw error }
            return false
        }
    }

    // MARK: Temporary credentials

    static let stsNamespace: StaticString = "https://sts.amazonaws.com/doc/2011-06-15/"
    /// Seconds.
    private static let sessionLifetimes: ClosedRange<Int64> = 900...43_200
    /// The least lifetime of credentials in seconds: clients renew them 15 minutes before the end.
    private static let leastSession: Int64 = 1800

    private func token(_ context: RequestContext, _ callers: Callers) async throws(Problem) -> Response {
        let form = QueryParameters(try await context.s3.form(of: context)[...])
        switch try form.single("Action") {
        case "AssumeRoleWithWebIdentity": return try await assumeRole(form, context, callers)
        case "GetCallerIdentity":
            context.record.protocolOperation = "GetCallerIdentity"
            guard let principal = context.caller.principal else {
                throw S3API.sts("MissingAuthenticationToken", 403, "Request is missing Authentication Token")
            }
            return S3API.sts(("GetCallerIdentityResponse", "GetCallerIdentityResult"), context) { xml in
                xml.element("Arn", "arn:aws:iam::000000000000:user/\(principal.uid)")
                xml.element("UserId", principal.uid)
                xml.element("Account", "000000000000")
            }
        case let action:
            throw S3API.sts("InvalidAction", 400, "Could not find operation \(action ?? "") for version 2011-06-15")
        }
    }

    private func assumeRole(_ form: QueryParameters, _ context: RequestContext, _ callers: Callers)
        async throws(Problem) -> Response
    {
        guard let token = try form.single("WebIdentityToken"), !token.isEmpty,
            let role = try form.single("RoleArn"), role.hasPrefix("arn:"),
            let session = try form.single("RoleSessionName"), !session.isEmpty
        else {
            throw S3API.sts(
                "ValidationError", 400, "WebIdentityToken, RoleArn, which is an ARN, and RoleSessionName are required")
        }
        if form.all.contains(where: { $0.name.hasPrefix("Policy") }) {
            throw S3API.sts("ValidationError", 400, "Policies are not supported: the rules decide")
        }
        let asked = try form.single("DurationSeconds") ?? "3600"
        guard let duration = Decimal.saturating(Array(asked.utf8)[...]).map({ Int64(clamping: $0) }),
            S3API.sessionLifetimes.contains(duration)
        else {
            throw S3API.sts("ValidationError", 400, "DurationSeconds must be 900 to 43200")
        }
        let principal = try await S3API.verified(token, callers)
        context.caller.identify(principal)
        context.record.principal = principal.uid
        context.record.group = principal.group
        guard let saved = SavedCaller(context.caller) else { throw S3Error.accessDenied("no caller") }
        let now = context.now
        let expires = min(
            now + min(duration, settings.maximumSession), max(principal.expires, now + S3API.leastSession))
        let made = try issue(saved, now: now, expires: expires)
        return S3API.sts(
            ("AssumeRoleWithWebIdentityResponse", "AssumeRoleWithWebIdentityResult"), context
        ) { xml in
            xml.element("SubjectFromWebIdentityToken", principal.uid)
            if let audience = principal.audience { xml.element("Audience", audience) }
            xml.element("Provider", principal.source)
            xml.begin("AssumedRoleUser")
            xml.element("Arn", "\(role)/\(session)")
            xml.element("AssumedRoleId", "\(made.accessKeyID):\(session)")
            xml.end("AssumedRoleUser")
            xml.begin("Credentials")
            xml.element("AccessKeyId", made.accessKeyID)
            xml.element("SecretAccessKey", made.secretAccessKey)
            xml.element("SessionToken", made.sessionToken)
            xml.element("Expiration", HTTPDate.rfc3339(milliseconds: made.expiration * 1000))
            xml.end("Credentials")
        }
    }

    private func issue(_ caller: SavedCaller, now: Int64, expires: Int64) throws(Problem) -> S3SessionCredentials {
        guard let keys = verifier.sessionKeys else {
            throw S3API.sts("InvalidAction", 400, "There are no temporary credentials here")
        }
        return try keys.issue(caller, now: now, expires: expires)
    }

    /// Verifies a token as one in `Authorization` is.
    private static func verified(_ token: String, _ callers: Callers) async throws(Problem) -> Principal {
        var fields = HeaderFields()
        fields.append("authorization", "Bearer \(token)")
        do throws(CredentialError) {
            if let principal = try await callers.authenticator?.authenticate(fields) { return principal }
        } catch {
            let (code, status): (StaticString, Int) =
                switch error.code {
                case .unavailable: ("IDPCommunicationError", 400)
                case .expired: ("ExpiredTokenException", 400)
                default: ("InvalidIdentityToken", 400)
                }
            let problem = Problem(error)
            throw Problem.s3(
                problem.code, status, code, "The web identity token could not be used: \(problem.code.title)",
                cause: error.cause)
        }
        throw sts("InvalidIdentityToken", 400, "No issuer of tokens is configured")
    }

    private static func sts(_ code: StaticString, _ status: Int, _ message: String) -> Problem {
        .s3(status == 403 ? .unauthenticated : .invalidArgument, status, code, message)
    }

    private static func sts(
        _ action: (response: StaticString, result: StaticString), _ context: RequestContext,
        _ write: (inout XMLWriter) -> Void
    ) -> Response {
        var xml = XMLWriter(reserving: 4096)
        xml.begin(action.response, namespace: stsNamespace)
        xml.begin(action.result)
        write(&xml)
        xml.end(action.result)
        xml.begin("ResponseMetadata")
        xml.element("RequestId", context.record.requestId)
        xml.end("ResponseMetadata")
        xml.end(action.response)
        var response = Response(status: 200, xml: xml)
        response.head.fields.append("cache-control", "no-store")
        return response
    }
}

extension Principal {
    /// The first audience of the token; nil if it has none.
    fileprivate var audience: String? {
        guard let claims else { return nil }
        for name in claims.children(of: 0) where claims.has(name, "aud") {
            let value = name + 1
            switch claims.kind(value) {
            case .string: return claims.text(value)
            case .array: return claims.children(of: value).first { claims.kind($0) == .string }.map { claims.text($0) }
            default: return nil
            }
        }
        return nil
    }
}
