import Buckets
import HTTPServer
import Wire
import XML

extension S3API {
    static let namespace: StaticString = "http://s3.amazonaws.com/doc/2006-03-01/"

    func render(
        _ result: consuming OperationResult, of route: Route, in bucket: Bucket, _ context: RequestContext
    ) -> Response {
        var response = rendered(consume result, of: route, in: bucket, context)
        S3API.identify(&response.head.fields, context.record.requestId)
        return response
    }

    private func rendered(
        _ result: consuming OperationResult, of route: Route, in bucket: Bucket, _ context: RequestContext
    ) -> Response {
        switch consume result {
        case .content(let object, let content): return download(object, content, context)
        case .metadata(let object): return metadata(object, in: bucket, context)
        case .notModified(let object):
            var response = Response(status: 304)
            response.head.fields.append("etag", object.quotedS3Tag)
            response.head.fields.append("last-modified", HTTPDate.imfFixdate(seconds: object.updated / 1000))
            return response
        case .stored(let result): return stored(result, route, in: bucket, context)
        case .patched(let object): return S3API.copied(object)
        case .parts(let report): return render(report, of: route, in: bucket, context)
        case .deleted: return Response(status: 204)
        case .deletions(let results): return S3API.render(results, isQuiet: context.s3.isQuiet)
        case .response(let response): return response
        case .uploads(let uploads): return render(uploads, in: bucket, context)
        case .session, .page, .link: preconditionFailure("S3 has no such operation")
        }
    }

    // MARK: Objects

    private func download(_ object: ObjectMetadata, _ content: ObjectContent, _ context: RequestContext) -> Response {
        let fields = fields(of: object, isPart: content.isPart, context)
        return Response(content, of: object, fields: fields)
    }

    /// The response about an object without its bytes: to `HEAD`, or to a request about some of its properties.
    private func metadata(_ object: ObjectMetadata, in bucket: Bucket, _ context: RequestContext) -> Response {
        if let attributes = context.s3.attributes { return attributes.response(object) }
        switch context.s3.operation {
        case .getObjectACL: return Response(status: 200, xml: S3API.acl(context))
        case .getTagging:
            var xml = XMLWriter()
            xml.begin("Tagging", namespace: S3API.namespace)
            xml.element("TagSet", "")
            xml.end("Tagging")
            return Response(status: 200, xml: xml)
        default: return head(object, context)
        }
    }

    private func head(_ object: ObjectMetadata, _ context: RequestContext) -> Response {
        switch context.s3.range.select(from: object) {
        case .whole:
            var response = Response(status: 200, fields: fields(of: object, isPart: false, context))
            response.head.fields.append("content-length", object.size)
            return response
        case .part(let range):
            var response = Response(status: 206, fields: fields(of: object, isPart: true, context))
            response.head.fields.append("content-length", UInt64(range.count))
            response.head.fields.append(
                "content-range", "bytes \(range.lowerBound)-\(range.upperBound - 1)/\(object.size)")
            return response
        case .unsatisfiable:
            let problem = Problem(
                .rangeNotSatisfiable, "The object has \(object.size) bytes.",
                field: ("content-range", "bytes */\(object.size)"))
            context.failed(problem)
            let shown = shown(problem, of: context)
            var response = render(shown, of: context)
            if shown === problem { response.head.fields.append("content-range", "bytes */\(object.size)") }
            return response
        }
    }

    /// The fields of `GET` and `HEAD` responses, without the length.
    private func fields(of object: ObjectMetadata, isPart: Bool, _ context: RequestContext) -> HeaderFields {
        var fields = headers.fields(of: object)
        let request = context.s3
        if request.range.part != nil, let count = object.partCount { fields.append("x-amz-mp-parts-count", count) }
        if !isPart, context.s3.fields["x-amz-checksum-mode"]?.asciiLowercased() == "enabled",
            let checksum = object.attributes.system.s3?.checksum
        {
            checksum.append(to: &fields, parts: object.partCount)
        }
        guard !request.overrides.isEmpty else { return fields }
        var replaced = HeaderFields(reserving: 768)
        fields.read { reader in
            while let (name, value) = reader.next() {
                let isReplaced = request.overrides.contains { override in
                    name.count == override.name.utf8CodeUnitCount
                        && override.name.withUTF8Buffer { $0.elementsEqual(name) }
                }
                if !isReplaced { replaced.append(lowercasing: name.span, value.span) }
            }
        }
        for override in request.overrides { replaced.append(override.name, override.value) }
        return replaced
    }

    /// The response to an upload, a copy, or a completed upload in parts.
    private func stored(_ result: CommitResult, _ route: Route, in bucket: Bucket, _ context: RequestContext)
        -> Response
    {
        let object = result.metadata
        switch context.s3.operation {
        case .copyObject: return S3API.copied(object)
        case .completeUpload: return completed(object, in: bucket, context)
        case .postObject: return posted(object, in: bucket, context)
        default:
            var response = Response(status: 200)
            response.head.fields.append("etag", object.quotedS3Tag)
            (object.attributes.system.s3?.checksum ?? context.s3.checksum)?.append(
                to: &response.head.fields, parts: object.partCount)
            return response
        }
    }

    private static func copied(_ object: ObjectMetadata) -> Response {
        var xml = XMLWriter()
        xml.begin("CopyObjectResult", namespace: namespace)
        xml.element("LastModified", S3API.time(object.updated))
        xml.element("ETag", object.quotedS3Tag)
        object.attributes.system.s3?.checksum?.write(to: &xml, parts: object.partCount)
        xml.end("CopyObjectResult")
        return Response(status: 200, xml: xml)
    }

    /// A time in whole seconds, as everywhere in S3.
    static func time(_ milliseconds: Int64) -> String {
        let text = HTTPDate.rfc3339(milliseconds: milliseconds / 1000 * 1000)
        return text.utf8.count == 20 ? "\(text.dropLast()).000Z" : text
    }

    // MARK: Many deletions

    private static func render(_ results: [(name: String, problem: Problem?)], isQuiet: Bool) -> Response {
        var xml = XMLWriter(reserving: 64 * results.count + 256)
        xml.begin("DeleteResult", namespace: namespace)
        for (name, problem) in results {
            if let problem, problem.code != .objectNotFound {
                xml.begin("Error")
                xml.element("Key", name)
                problem.writeS3(to: &xml)
                xml.end("Error")
            } else if !isQuiet {
                xml.begin("Deleted")
                xml.element("Key", name)
                xml.end("Deleted")
            }
        }
        xml.end("DeleteResult")
        return Response(status: 200, xml: xml)
    }
}

extension ObjectMetadata {
    /// The entity tag as in a header field.
    var quotedS3Tag: String { "\"\(s3Tag)\"" }

    /// The fields of `GET` and `HEAD` responses, without the length and the checksum.
    func appendS3Fields(to fields: inout HeaderFields) {
        let type = attributes.contentType ?? ""
        fields.append("content-type", type.isEmpty || !type.isFieldValue ? "binary/octet-stream" : type)
        fields.append("etag", quotedS3Tag)
        fields.append("last-modified", HTTPDate.imfFixdate(seconds: updated / 1000))
        fields.append("accept-ranges", "bytes")
        append("cache-control", attributes.cacheControl, to: &fields)
        append("content-disposition", attributes.contentDisposition.map(ContentDisposition.field), to: &fields)
        append("content-encoding", attributes.contentEncoding, to: &fields)
        append("content-language", attributes.contentLanguage, to: &fields)
        append("expires", attributes.system.s3?.expires, to: &fields)
        for (key, value) in attributes.customMetadata.sorted(by: { $0.key < $1.key })
        where key.text.utf8.allSatisfy(ASCII.isToken) {
            fields.append(name: "x-amz-meta-\(key.text.asciiLowercased())", ObjectMetadata.encodedWord(value))
        }
    }

    /// A value in ASCII: other values as one encoded word (RFC 2047, section 4.1).
    private static func encodedWord(_ value: String) -> String {
        if value.utf8.allSatisfy({ $0 < 0x7f && ($0 >= 0x20 || $0 == 0x09) }) { return value }
        return "=?UTF-8?B?\(Base64.encode(Array(value.utf8)))?="
    }
}

extension S3Properties.Checksum {
    /// The name of the header field.
    private var field: String { "x-amz-checksum-\(algorithm.rawValue)" }

    var type: String { isComposite ? "COMPOSITE" : "FULL_OBJECT" }

    /// - Parameter parts: The number of parts, which follows the value of a composite checksum.
    func append(to fields: inout HeaderFields, parts: Int?) {
        fields.append(name: field, text(parts))
        fields.append("x-amz-checksum-type", type)
    }

    /// - Parameter parts: As in ``append(to:parts:)``.
    func write(to xml: inout XMLWriter, parts: Int?) {
        xml.element(algorithm.element, text(parts))
        xml.element("ChecksumType", type)
    }

    private func text(_ parts: Int?) -> String {
        let text = Base64.encode(value)
        return isComposite ? parts.map { "\(text)-\($0)" } ?? text : text
    }
}

extension ChecksumAlgorithm {
    /// The name of the XML element.
    var element: StaticString {
        switch self {
        case .crc32: "ChecksumCRC32"
        case .crc32c: "ChecksumCRC32C"
        case .crc64nvme: "ChecksumCRC64NVME"
        case .sha1: "ChecksumSHA1"
        case .sha256: "ChecksumSHA256"
        }
    }
}
