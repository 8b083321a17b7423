import Buckets
import HTTPServer
import Wire

extension NativeAPI {
    func render(
        _ result: consuming OperationResult, of route: Route, in bucket: Bucket,
        _ context: RequestContext
    ) -> Response {
        var response = rendered(consume result, of: route, in: bucket, context)
        decorate(&response.head.fields, context)
        return response
    }

    func render(
        _ page: ListPage, _ request: ListRequest, in bucket: Bucket, _ context: RequestContext
    ) async -> Response {
        let json = await page.json(request, in: bucket, context) { json, item in
            json.member("bucket", bucket.name)
            json.member("fullPath", item)
            json.member("name", lastSegment(of: item))
            page.properties[BytewiseString(item)]?.write(to: &json)
        }
        var response = Response(status: 200, json: json)
        if let sequence = request.sequence { response.head.fields.append("x-object-sequence", sequence) }
        decorate(&response.head.fields, context)
        return response
    }

    private func rendered(
        _ result: consuming OperationResult, of route: Route, in bucket: Bucket, _ context: RequestContext
    ) -> Response {
        switch consume result {
        case .content(let object, let content): return render(object, content)
        case .metadata(let object):
            if route.asksForMetadata {
                var response = Response(status: 200, json: object.json(bucket: bucket.name))
                object.appendGenerations(to: &response.head.fields)
                return response
            }
            var response = Response(status: 200, fields: headers.fields(of: object))
            response.head.fields.append("content-length", object.size)
            return response
        case .notModified(let object):
            var response = Response(status: 304)
            object.appendValidators(to: &response.head.fields)
            return response
        case .stored(let result):
            var response = changed(result.metadata, result.replaced ? 200 : 201, bucket)
            let path = NativeAPI.path(of: result.metadata.name, in: bucket)
            // All responses of a creation have the session's URL as their location.
            if context.upload?.expires != nil {
                response.head.fields.append("content-location", path)
            }
            if context.upload?.url == nil { response.head.fields.append("location", path) }
            return response
        case .session(let report): return render(report, in: bucket)
        case .parts(let report): return render(report)
        case .patched(let object): return changed(object, 200, bucket)
        case .deleted: return Response(status: 204)
        case .deletions(let results):
            return Response(status: 200, json: NativeAPI.json(results))
        case .page, .uploads: preconditionFailure("pages are rendered in slices, and uploads are not listed")
        case .response(let response): return response
        case .link(let link, let keys):
            var json = JSONWriter(reserving: 512)
            json.beginObject()
            json.member("method", link.method.rawValue)
            json.member("path", link.target(keys))
            json.member("expires", HTTPDate.rfc3339(milliseconds: link.expires * 1000))
            json.endObject()
            return Response(status: 200, json: json.bytes)
        }
    }

    /// The result of each deletion: its name, its status, and the problem of one that failed.
    private static func json(_ results: [(name: String, problem: Problem?)]) -> [UInt8] {
        var json = JSONWriter(reserving: 64 * results.count)
        json.beginObject()
        json.key("results")
        json.beginArray()
        for (name, problem) in results {
            json.beginObject()
            json.member("name", name)
            json.member("status", Int64(problem?.code.status ?? 204))
            if let problem {
                json.member("code", problem.code.rawValue)
                json.member("detail", problem.detail)
            }
            json.endObject()
        }
        json.endArray()
        json.endObject()
        return json.bytes
    }

    private func render(_ object: ObjectMetadata, _ content: ObjectContent) -> Response {
        Response(content, of: object, fields: headers.fields(of: object))
    }

    /// An object's path.
    static func path(of name: String, in bucket: Bucket) -> String {
        "/b/\(bucket.name)/o/\(PercentEncoding.encodePath(name))"
    }

    /// The object after a change.
    private func changed(_ object: ObjectMetadata, _ status: Int, _ bucket: Bucket) -> Response {
        var response = Response(status: status, json: object.json(bucket: bucket.name))
        response.head.fields.append("etag", object.quotedETag)
        object.appendGenerations(to: &response.head.fields)
        return response
    }

    func render(_ problem: Problem, _ requestId: String) -> Response {
        Response(
            status: problem.code.status, json: problem.json(requestId: requestId), type: "application/problem+json")
    }
}

extension ListedProperties {
    /// Writes the known properties as members, with the names and forms of an object's metadata.
    fileprivate func write(to json: inout JSONWriter) {
        if let generation { json.member("generation", String(generation)) }
        json.member("size", String(size))
        json.member("updated", HTTPDate.rfc3339(milliseconds: updated))
        json.member("etag", etag)
        if let md5 { json.member("md5Hash", Base64.encode(md5)) }
        if let crc32c { json.member("crc32c", crc32c.base64) }
        if let contentType { json.member("contentType", contentType) }
    }
}
