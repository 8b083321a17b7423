import HTTPClient
import Wire

extension S3Bucket: PartReadingDriver {
    public func partRange(_ number: Int, of object: ObjectMetadata) async throws(BucketError) -> Range<UInt64>? {
        let request = ClientRequest("HEAD", target(object.name, "partNumber=\(number)"))
        request.fields.append("if-match", "\"\(object.etag)\"")
        let response = try await send(request)
        response.body.close()
        switch response.status {
        case 200, 206:
            let head = S3Head(response.fields)
            // moto responds with the tag of the part, and without its range.
            guard let part = head.part, part.size == object.size, head.etag == object.etag else { return nil }
            return part.range
        case 404, 412: throw BucketError(.unavailable, "the object was replaced while its part was looked up")
        case 400, 416: return nil
        default:
            let failure = CollectedResponse(status: response.status, fields: response.fields, body: [])
            throw S3ErrorResponse(failure).error("stat of a part")
        }
    }
}
