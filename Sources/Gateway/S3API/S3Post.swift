import Buckets
import HTTPServer
import Wire
import XML

extension S3API {
    /// Parses an upload by a form of a browser (`POST`, multipart/form-data). The form has the object's name, properties and
    /// signature, so it is received first.
    func post(in bucket: Bucket, _ context: RequestContext) throws(Problem) -> ObjectOperation {
        guard let boundary = PostFormBody.boundary(context.exchange) else {
            throw Problem(
                .invalidArgument, "Bucket POST must be of the enclosure-type multipart/form-data",
                dialect: DialectError(status: 412, code: "PreconditionFailed"))
        }
        let body = PostFormBody(boundary, context.exchange, limit: bucket.maximumObjectSize)
        return .form { [self] (context) throws(Problem) in
            do throws(Problem) {
                return try await upload(try await body.form(), body, in: bucket, context)
            } catch {
                body.stop()
                throw error
            }
        }
    }

    private func upload(_ form: PostForm, _ body: PostFormBody, in bucket: Bucket, _ context: RequestContext)
        async throws(Problem) -> ObjectOperation
    {
        let found = try verifier.verify(form, bucket: bucket.name, now: context.now)
        if found.accessKeyID != nil, context.caller.principal != nil {
            throw S3Error.invalidArgument(
                "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter, Signature query string parameter or the Authorization header should be specified",
                "policy", "")
        }
        try context.become(found.signer)
        body.sizes = found.sizes
        guard let text = form.key, !text.isEmpty else {
            throw S3Error.invalidArgument("Bucket POST must contain a field named 'key'.", "key", "")
        }
        let name = try S3Key(text, in: bucket).writable()
        var fields = HeaderFields()
        for field in form.fields where S3API.isProperty(field.name) && field.value.isFieldValue {
            fields.append(name: field.name, field.value)
        }
        // Forms name these without the prefix.
        for name in ["acl", "tagging"] {
            if let value = form[name], value.isFieldValue { fields.append(name: "x-amz-\(name)", value) }
        }
        if form["content-type"] == nil, let type = form.fileType, type.isFieldValue {
            fields.append("content-type", type)
        }
        try S3Fields.check(fields)
        var digests = ExpectedDigests()
        if let text = form["content-md5"] { try digests.take(md5: text) }
        if let checksum = try S3Checksums.declared(fields) {
            digests.take(checksum)
            context.s3.checksum = checksum
        }
        context.s3.form = S3FormResponse(form)
        return .upload(
            name,
            UploadRequest(try ObjectAttributes(s3: fields), digests, size: nil, Conditions.none, body: body))
    }

    /// Whether a field of a form is a property of the object, or asks for one.
    private static func isProperty(_ name: String) -> Bool {
        let properties = [
            "content-type", "content-disposition", "content-encoding", "content-language", "cache-control", "expires",
        ]
        let credentials = [
            "x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-signature", "x-amz-security-token",
        ]
        return name.utf8.allSatisfy(ASCII.isToken) && !credentials.contains(name)
            && (properties.contains(name) || name.hasPrefix("x-amz-"))
    }

    /// The response to an upload by a form.
    func posted(_ object: ObjectMetadata, in bucket: Bucket, _ context: RequestContext) -> Response {
        let form = context.s3.form ?? S3FormResponse(PostForm())
        let scheme = context.exchange.isSecure ? "https" : "http"
        // The form was sent to the bucket, which the path or the host names.
        let path = context.record.path.hasSuffix("/") ? context.record.path : context.record.path + "/"
        let origin = "\(scheme)://\(context.exchange.head.authority ?? "")"
        let location = origin + path + PercentEncoding.encodePath(object.name)
        var response: Response
        if let target = form.redirect {
            response = Response(status: 303)
            let query =
                "bucket=\(bucket.name)&key=\(PercentEncoding.encodeSegment(object.name))&etag="
                + PercentEncoding.encodeSegment(object.quotedS3Tag)
            response.head.fields.append("location", target + (target.contains("?") ? "&" : "?") + query)
        } else if form.status == 201 {
            var xml = XMLWriter()
            xml.begin("PostResponse")
            xml.element("Location", location)
            xml.element("Bucket", bucket.name)
            xml.element("Key", object.name)
            xml.element("ETag", object.quotedS3Tag)
            xml.end("PostResponse")
            response = Response(status: 201, xml: xml)
        } else {
            response = Response(status: form.status)
        }
        response.head.fields.append("etag", object.quotedS3Tag)
        (object.attributes.system.s3?.checksum ?? context.s3.checksum)?.append(
            to: &response.head.fields, parts: object.partCount)
        if form.redirect == nil { response.head.fields.append("location", location) }
        return response
    }
}

/// The response that a form asks for.
struct S3FormResponse {
    /// 200, 201 or 204.
    let status: Int
    /// A URL without control characters, which the signed policy covers; nil for none.
    let redirect: String?

    init(_ form: PostForm) {
        switch form["success_action_status"] {
        case "200": status = 200
        case "201": status = 201
        default: status = 204
        }
        let target = form["success_action_redirect"] ?? form["redirect"]
        let isSigned = form["policy"] != nil
        redirect = target.flatMap { url in
            let isURL = url.hasPrefix("https://") || url.hasPrefix("http://")
            return isSigned && isURL && url.utf8.allSatisfy(ASCII.isVisible) ? url : nil
        }
    }
}
