import Buckets
import HTTPServer
import Wire

extension NativeAPI {
    /// A session's URL.
    static func sessionURL(
        _ token: String, in bucket: Bucket, _ context: RequestContext
    ) -> String {
        "\(bucket.uploads.origin(context))/b/\(bucket.name)/u/\(token)"
    }

    /// Renders the state of a session that has not created an object.
    func render(_ report: UploadReport, in bucket: Bucket) -> Response {
        var response = Response(status: report.kind == .created ? 201 : 204)
        response.head.fields.append("cache-control", "no-store")
        if let name = report.name {
            response.head.fields.append("content-location", NativeAPI.path(of: name, in: bucket))
        }
        if let length = report.length, report.kind == .status {
            response.head.fields.append("upload-length", length)
        }
        return response
    }

    /// Adds the fields of an upload to a response, if it reports one.
    func decorate(_ fields: inout HeaderFields, _ context: RequestContext) {
        guard context.upload != nil || context.fields.contains("upload-draft-interop-version") else { return }
        let draft = UploadDraft(context.fields)
        if let report = context.upload {
            if let url = report.url { fields.append("location", url) }
            draft.append(report, now: context.now, to: &fields)
        }
        draft.appendVersion(to: &fields)
    }

    func describe(
        _ context: RequestContext, among buckets: ServedBuckets, to fields: inout HeaderFields
    ) throws(Problem) -> Route? {
        let route = try route(context)
        let bucket = try bucket(of: route, context, among: buckets)
        guard route.path != .bucket, !route.isFolder, bucket.driver is any SessionDriver else {
            return route
        }
        // The age of an existing session is not looked up.
        var lifetime: Int64?
        var types = "\(UploadDraft.partialUpload)"
        if case .named = route.path {
            lifetime = bucket.uploads.settings.lifetime
            // The draft also announces the type of appends where a session is created.
            types = "\(PatchRequest.types), \(types)"
        }
        let draft = UploadDraft(context.fields)
        draft.appendLimit(bucket.maximumObjectSize, seconds: lifetime, to: &fields)
        draft.appendVersion(to: &fields)
        fields.append("accept-patch", types)
        return route
    }

    /// A page may create sessions by `POST`, and the preflight says the same of all of them.
    func preflightMethods(at route: Route?) -> String {
        if case .session = route?.path { return "POST, \(NativeAPI.sessionMethods)" }
        let methods = methods(at: route)
        return methods == Route.objectMethods(false) ? Route.objectMethods(true) : methods
    }
}
