import Buckets
import HTTPServer
import Wire

extension TusAPI {
    func render(
        _ result: consuming OperationResult, of route: Route, in bucket: Bucket,
        _ context: RequestContext
    ) -> Response {
        var response: Response
        switch consume result {
        case .stored(let result):
            response = Response(status: context.upload?.url == nil ? 204 : 201)
            let object = result.metadata
            response.head.fields.append("etag", object.quotedETag)
            object.appendGenerations(to: &response.head.fields)
            response.head.fields.append("content-location", NativeAPI.path(of: object.name, in: bucket))
        case .session(let report):
            switch report.kind {
            case .created: response = Response(status: 201)
            case .status: response = Response(status: 200)
            case .appended, .cancelled: response = Response(status: 204)
            }
        default: preconditionFailure("tus has no other operations")
        }
        response.head.fields.append("cache-control", "no-store")
        decorate(&response.head.fields, context)
        return response
    }

    func render(_ problem: Problem, _ requestId: String) -> Response {
        // The protocol has its own status for it.
        let status = problem.code == .checksumMismatch ? 460 : problem.code.status
        return Response(
            status: status, json: problem.json(requestId: requestId, status: status), type: "application/problem+json")
    }

    /// Adds the fields of the upload.
    func decorate(_ fields: inout HeaderFields, _ context: RequestContext) {
        fields.append("tus-resumable", TusAPI.version)
        guard let report = context.upload else { return }
        if let url = report.url { fields.append("location", url) }
        if let offset = report.offset,
            report.kind != .created || context.exchange.head.hasBody || report.isComplete
        {
            fields.append("upload-offset", offset)
        }
        if let expires = report.expires {
            fields.append("upload-expires", HTTPDate.imfFixdate(seconds: expires))
        }
        guard report.kind == .status else { return }
        if let length = report.length {
            fields.append("upload-length", length)
        } else {
            fields.append("upload-defer-length", "1")
        }
        if let metadata = report.metadata { fields.append("upload-metadata", metadata) }
    }
}
