import Buckets
import HTTPServer
import Wire
import XML

/// The query of a list of multipart uploads.
struct S3UploadQuery {
    let prefix: String
    let delimiter: String
    let keyMarker: String
    let idMarker: String
    let limit: Int
    let isEncoded: Bool

    /// - Throws: ``Problem`` with `InvalidArgument`.
    init(_ query: QueryParameters) throws(Problem) {
        prefix = try query.single("prefix") ?? ""
        delimiter = try S3ListQuery.delimiter(query)
        keyMarker = try query.single("key-marker") ?? ""
        idMarker = try query.single("upload-id-marker") ?? ""
        limit = try S3ListQuery.limit(try query.single("max-uploads"), "max-uploads")
        isEncoded = try query.single("encoding-type") == "url"
    }
}

extension S3API {
    func listUploads(_ route: Route, in bucket: Bucket, _ context: RequestContext) throws(Problem) -> ObjectOperation {
        let query = try S3UploadQuery(route.query)
        context.s3.uploads = query
        return .listUploads(UploadListRequest(.s3, prefix: query.prefix))
    }

    /// Renders the page of the uploads that was asked for.
    func render(_ uploads: [ListedUpload], in bucket: Bucket, _ context: RequestContext) -> Response {
        guard let query = context.s3.uploads else { preconditionFailure("the query is parsed first") }
        var shown: [ListedUpload] = []
        var prefixes: [String] = []
        var isTruncated = false
        // The key and the id after which the next page begins.
        var last = (key: "", id: "")
        for upload in uploads where S3API.follows(upload, query) {
            let prefix = S3API.folded(upload.name, query)
            // A page that ended in a prefix continues after all names below it.
            if let prefix, BytewiseString.areEqual(prefix, prefixes.last ?? query.keyMarker) { continue }
            if shown.count + prefixes.count >= query.limit {
                isTruncated = query.limit > 0
                break
            }
            if let prefix {
                prefixes.append(prefix)
                last = (prefix, "")
            } else {
                shown.append(upload)
                last = (upload.name, upload.token)
            }
        }
        func encoded(_ text: String) -> String { query.isEncoded ? PercentEncoding.encodePath(text) : text }
        var xml = XMLWriter(reserving: 512 + 600 * shown.count)
        xml.begin("ListMultipartUploadsResult", namespace: S3API.namespace)
        xml.element("Bucket", bucket.name)
        xml.element("KeyMarker", encoded(query.keyMarker))
        xml.element("UploadIdMarker", query.idMarker)
        if isTruncated {
            xml.element("NextKeyMarker", encoded(last.key))
            xml.element("NextUploadIdMarker", last.id)
        }
        xml.element("Prefix", encoded(query.prefix))
        if !query.delimiter.isEmpty { xml.element("Delimiter", encoded(query.delimiter)) }
        if query.isEncoded { xml.element("EncodingType", "url") }
        xml.element("MaxUploads", query.limit)
        xml.element("IsTruncated", isTruncated ? "true" : "false")
        for upload in shown {
            xml.begin("Upload")
            xml.element("Key", encoded(upload.name))
            xml.element("UploadId", upload.token)
            xml.writeOwner("Initiator", context)
            xml.writeOwner("Owner", context)
            xml.element("StorageClass", "STANDARD")
            xml.element("Initiated", S3API.time(upload.created))
            xml.end("Upload")
        }
        for prefix in prefixes {
            xml.begin("CommonPrefixes")
            xml.element("Prefix", encoded(prefix))
            xml.end("CommonPrefixes")
        }
        xml.end("ListMultipartUploadsResult")
        return Response(status: 200, xml: xml)
    }

    /// Whether an upload belongs to the page: those of the marker's key follow the marker's upload.
    private static func follows(_ upload: ListedUpload, _ query: S3UploadQuery) -> Bool {
        if query.keyMarker.isEmpty { return true }
        if BytewiseString.areEqual(upload.name, query.keyMarker) {
            return !query.idMarker.isEmpty && query.idMarker < upload.token
        }
        return query.keyMarker.utf8.lexicographicallyPrecedes(upload.name.utf8)
    }

    private static func folded(_ name: String, _ query: S3UploadQuery) -> String? {
        guard !query.delimiter.isEmpty,
            let end = name.firstEnd(of: query.delimiter, from: query.prefix.utf8.count)
        else { return nil }
        return String(decoding: Array(name.utf8)[..<end], as: UTF8.self)
    }
}
