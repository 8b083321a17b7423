import Buckets
import HTTPServer
import Wire
import XML

/// The errors of the S3 API that the common problems don't have.
enum S3Error {
    static let denied = "Access Denied"

    static func accessDenied(_ cause: String, _ message: String = denied) -> Problem {
        Problem.s3(.unauthorized, 403, "AccessDenied", message, cause: cause)
    }

    static func invalidArgument(_ message: String, _ name: String, _ value: String = "") -> Problem {
        Problem.s3(
            .invalidArgument, 400, "InvalidArgument", message,
            members: [("ArgumentName", name), ("ArgumentValue", value)])
    }

    static func invalidRequest(_ message: String) -> Problem { bad("InvalidRequest", message) }

    /// An error with status 400.
    static func bad(_ code: StaticString, _ message: String) -> Problem {
        Problem.s3(.invalidArgument, 400, code, message)
    }

    static let notImplemented = Problem.s3(
        .notImplemented, 501, "NotImplemented",
        "A header you provided implies functionality that is not implemented.")

    static let noLength = Problem.s3(
        .invalidArgument, 411, "MissingContentLength", "You must provide the Content-Length HTTP header.")

    static let malformedXML = bad(
        "MalformedXML",
        "The XML you provided was not well-formed or did not validate against our published schema")

    static func notFound(_ code: StaticString, _ message: String) -> Problem {
        Problem.s3(.notFound, 404, code, message)
    }

    static let noSuchKey = Problem(BucketError(.objectNotFound))
}

extension Problem {
    /// An error with a code of S3.
    /// - Parameters:
    ///   - code: The code for the log.
    ///   - error: The code of S3.
    ///   - detail: The message.
    static func s3(
        _ code: Code, _ status: Int, _ error: StaticString, _ detail: String, cause: String? = nil,
        members: [(name: StaticString, value: String)] = []
    ) -> Problem {
        Problem(
            code, detail, cause: cause, dialect: DialectError(status: status, code: error, members: members))
    }

    /// The status, code and message in an S3 response.
    fileprivate var s3: (status: Int, code: StaticString, message: String) {
        if let dialect { return (dialect.status, dialect.code, detail) }
        switch code {
        case .unauthenticated, .unauthorized, .certificateExpired, .certificateUntrusted, .unknownIssuer,
            .wrongAudience,
            .tokenMalformed, .unsupportedScheme, .tokenExpired, .tokenNotYetValid, .badSignature, .unknownToken,
            .invalidLink, .linkExpired:
            return (403, "AccessDenied", S3Error.denied)
        case .objectNotFound: return (404, "NoSuchKey", "The specified key does not exist.")
        case .bucketNotFound, .notFound: return (404, "NoSuchBucket", "The specified bucket does not exist")
        case .uploadNotFound:
            return (
                404, "NoSuchUpload",
                "The specified upload does not exist. The upload ID may be invalid, or the upload may have been aborted or completed."
            )
        case .invalidName, .invalidArgument, .uploadLengthMismatch, .unsupportedMediaType, .watchExpired:
            return (400, "InvalidArgument", detail)
        case .methodNotAllowed:
            return (405, "MethodNotAllowed", "The specified method is not allowed against this resource.")
        case .checksumMismatch: return (400, "BadDigest", "The digest you specified did not match what we received.")
        case .preconditionFailed:
            return (412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold")
        case .rangeNotSatisfiable: return (416, "InvalidRange", "The requested range is not satisfiable")
        case .payloadTooLarge:
            return (400, "EntityTooLarge", "Your proposed upload exceeds the maximum allowed size")
        case .tooManyUploads, .tooManyRequests, .overloaded:
            return (503, "SlowDown", "Please reduce your request rate.")
        case .requestTimeout:
            return (
                400, "RequestTimeout",
                "Your socket connection to the server was not read from or written to within the timeout period."
            )
        case .upstreamUnavailable, .upstreamTimeout, .keysUnavailable:
            return (503, "ServiceUnavailable", "Service is unable to handle request.")
        case .insufficientStorage: return (507, "InsufficientStorage", detail)
        case .uploadOffsetMismatch, .uploadConflict: return (409, "OperationAborted", detail)
        case .misdirectedRequest: return (421, "MisdirectedRequest", detail)
        case .notImplemented: return (501, "NotImplemented", detail)
        case .internal:
            return (500, "InternalError", "We encountered an internal error. Please try again.")
        }
    }

    /// Further elements of the response.
    fileprivate var s3Members: [(name: StaticString, value: String)] {
        if let dialect { return dialect.members }
        switch code {
        case .rangeNotSatisfiable:
            guard let field, let slash = field.value.lastIndex(of: "/") else { return [] }
            return [("ActualObjectSize", String(field.value[slash...].dropFirst()))]
        default: return []
        }
    }

    /// The code and message of one entry of a response to a request about many objects.
    func writeS3(to xml: inout XMLWriter) {
        let (_, code, message) = s3
        xml.element("Code", "\(code)")
        xml.element("Message", message)
    }
}

extension S3API {
    func render(_ problem: Problem, _ requestId: String) -> Response {
        rendered(problem, requestId, resource: nil)
    }

    func render(_ problem: Problem, of context: RequestContext) -> Response {
        if (context.parsed as? S3Request)?.operation == .assumeRole {
            return S3API.renderedOfSTS(problem, context.record.requestId)
        }
        return rendered(problem, context.record.requestId, resource: context.record.path)
    }

    /// An error of the security token service, which has its own form.
    private static func renderedOfSTS(_ problem: Problem, _ requestId: String) -> Response {
        let (status, code, message) = problem.s3
        var xml = XMLWriter()
        xml.begin("ErrorResponse", namespace: stsNamespace)
        xml.begin("Error")
        xml.element("Type", status < 500 ? "Sender" : "Receiver")
        xml.element("Code", ["InvalidArgument", "EntityTooLarge"].contains("\(code)") ? "ValidationError" : "\(code)")
        xml.element("Message", message)
        xml.end("Error")
        xml.element("RequestId", requestId)
        xml.end("ErrorResponse")
        return Response(status: status, xml: xml)
    }

    private func rendered(_ problem: Problem, _ requestId: String, resource: String?) -> Response {
        let (status, code, message) = problem.s3
        var xml = XMLWriter()
        xml.begin("Error")
        xml.element("Code", "\(code)")
        xml.element("Message", message)
        for member in problem.s3Members { xml.element(member.name, member.value) }
        if let resource { xml.element("Resource", resource) }
        xml.element("RequestId", requestId)
        xml.element("HostId", requestId)
        xml.end("Error")
        var response = Response(status: status, xml: xml)
        S3API.identify(&response.head.fields, requestId)
        return response
    }

    /// Adds the fields by which clients report a request.
    static func identify(_ fields: inout HeaderFields, _ requestId: String) {
        fields.append("x-amz-request-id", requestId)
        fields.append("x-amz-id-2", requestId)
    }

    /// The fields that can fail a request, and their names in errors.
    private static let conditions: [(field: StaticString, name: String)] = [
        ("if-match", "If-Match"), ("if-unmodified-since", "If-Unmodified-Since"), ("if-none-match", "If-None-Match"),
        ("x-amz-copy-source-if-match", "x-amz-copy-source-If-Match"),
        ("x-amz-copy-source-if-unmodified-since", "x-amz-copy-source-If-Unmodified-Since"),
        ("x-amz-copy-source-if-none-match", "x-amz-copy-source-If-None-Match"),
        ("x-amz-copy-source-if-modified-since", "x-amz-copy-source-If-Modified-Since"),
    ]

    /// The error that a problem is for an operation; nil if it is the same for all.
    private static func shown(_ problem: Problem, of request: S3Request) -> Problem? {
        switch (problem.code, request.operation) {
        case (.rangeNotSatisfiable, _) where request.range.part != nil:
            return S3Error.bad("InvalidPart", "The requested partnumber is not satisfiable")
        case (.payloadTooLarge, .deleteObjects), (.payloadTooLarge, .completeUpload): return S3Error.malformedXML
        case (.uploadLengthMismatch, .completeUpload): return S3Error.invalidRequest(problem.detail)
        case (.preconditionFailed, _):
            guard let condition = conditions.first(where: { request.fields.contains($0.field) }) else { return nil }
            return Problem.s3(
                problem.code, 412, "PreconditionFailed", problem.s3.message, cause: problem.cause,
                members: [("Condition", condition.name)])
        default: return nil
        }
    }

    /// What `WWW-Authenticate` offers no S3 client can do, and it has status 403.
    func shown(_ problem: Problem, of context: RequestContext) -> Problem {
        if problem.isFinished { return Problem(uploadNotFound: "the upload has ended") }
        if problem.dialect == nil, let request = context.parsed as? S3Request,
            let shown = S3API.shown(problem, of: request)
        {
            return shown
        }
        guard let field = problem.field, "\(field.name)" == "www-authenticate" else { return problem }
        return Problem(
            problem.code, problem.detail, cause: problem.cause, members: problem.members, dialect: problem.dialect)
    }
}

extension Response {
    init(status: Int, xml: XMLWriter) {
        self.init(status: status)
        head.fields.append("content-type", "application/xml")
        body = .bytes(xml.bytes)
    }
}
