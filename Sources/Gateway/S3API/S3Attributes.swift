import Buckets
import HTTPServer
import Wire
import XML

/// A request for some of an object's properties (`GetObjectAttributes`).
struct ObjectAttributesRequest {
    private static let known = ["ETag", "Checksum", "ObjectParts", "StorageClass", "ObjectSize"]
    private let names: [String]

    init(_ fields: HeaderFields) {
        names = (fields.list("x-amz-object-attributes") ?? "").split(separator: ",").map { $0.filter { $0 != " " } }
    }

    /// - Throws: ``Problem`` with `InvalidArgument`.
    static func check(_ fields: HeaderFields) throws(Problem) {
        let request = ObjectAttributesRequest(fields)
        guard !request.names.isEmpty, request.names.allSatisfy({ known.contains($0) }) else {
            throw S3Error.invalidArgument(
                "Invalid attribute name specified.", "x-amz-object-attributes",
                fields.list("x-amz-object-attributes") ?? "")
        }
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
            xml.end("ObjectParts")
        }
        if names.contains("StorageClass") { xml.element("StorageClass", "STANDARD") }
        if names.contains("ObjectSize") { xml.element("ObjectSize", object.size) }
        xml.end("GetObjectAttributesResponse")
        var response = Response(status: 200, xml: xml)
        response.head.fields.append("last-modified", HTTPDate.imfFixdate(seconds: object.updated / 1000))
        return response
    }
}
