import Buckets
import HTTPServer
import Wire
import XML

/// A request for some of an object's properties (`GetObjectAttributes`).
struct ObjectAttributesRequest {
    private static let known = ["ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"]
    private let names: [String]
    /// The requested page of the list of parts.
    private let page: (after: Int, limit: Int)

    /// - Throws: ``Problem`` with `InvalidArgument`.
    init(_ fields: HeaderFields) throws(Problem) {
        let list = fields.list("x-amz-object-attributes") ?? ""
        names = list.split(separator: ",").map { $0.filter { $0 != " " } }
        guard !names.isEmpty, names.allSatisfy({ ObjectAttributesRequest.known.contains($0) }) else {
            throw S3Error.invalidArgument("Invalid attribute name specified.", "x-amz-object-attributes", list)
        }
        page = (
            try S3ListQuery.limit(fields["x-amz-part-number-marker"] ?? "0", "x-amz-part-number-marker", most: 10_000),
            try S3ListQuery.limit(fields["x-amz-max-parts"], "x-amz-max-parts")
        )
    }

    func response(_ object: ObjectMetadata) -> Response {
        var xml = XMLWriter()
        xml.begin("GetObjectAttributesResponse", namespace: S3API.namespace)
        if names.contains("ETag") { xml.element("ETag", object.s3Tag) }
        if names.contains("Checksum"), let checksum = object.attributes.system.s3?.checksum {
            xml.begin("Checksum")
            checksum.write(to: &xml, parts: object.partCount)
            xml.end("Checksum")
        }
        if names.contains("ObjectParts"), let count = object.partCount {
            xml.begin("ObjectParts")
            xml.element("PartsCount", count)
            if object.partRange(1) != nil { write(partsOf: object, count, to: &xml) }
            xml.end("ObjectParts")
        }
        if names.contains("StorageClass") { xml.element("StorageClass", "STANDARD") }
        if names.contains("ObjectSize") { xml.element("ObjectSize", object.size) }
        xml.end("GetObjectAttributesResponse")
        var response = Response(status: 200, xml: xml)
        response.head.fields.append("last-modified", HTTPDate.imfFixdate(seconds: object.updated / 1000))
        return response
    }

    /// Writes a page of the list of parts.
    private func write(partsOf object: ObjectMetadata, _ count: Int, to xml: inout XMLWriter) {
        let last = min(count, page.after + page.limit)
        xml.element("PartNumberMarker", page.after)
        xml.element("MaxParts", page.limit)
        xml.element("IsTruncated", last < count ? "true" : "false")
        guard page.after < last else { return }
        if last < count { xml.element("NextPartNumberMarker", last) }
        for number in page.after + 1...last {
            xml.begin("Part")
            xml.element("PartNumber", number)
            xml.element("Size", object.partRange(number)?.count ?? 0)
            xml.end("Part")
        }
    }
}
