import Buckets
import HTTPServer
import Wire

/// A response before it is sent.
struct Response {
    var head: ResponseHead
    var body = ResponseBody.none

    init(status: Int, fields: HeaderFields = HeaderFields(reserving: 768)) {
        head = ResponseHead(status: status)
        head.fields = fields
    }

    init(status: Int, json: [UInt8], type: String = "application/json") {
        self.init(status: status)
        head.fields.append("content-type", type)
        head.fields.append("x-content-type-options", "nosniff")
        head.fields.append("cache-control", "no-store")
        body = .bytes(json)
    }

    /// The response to a download: 200 with the whole object, or 206 with a part (RFC 9110, section 15.3.7).
    /// - Parameter fields: The fields of the object.
    init(_ content: ObjectContent, of object: ObjectMetadata, fields: HeaderFields) {
        self.init(status: content.isPart ? 206 : 200, fields: fields)
        if content.isPart {
            let (first, end) = (content.range.lowerBound, content.range.upperBound)
            head.fields.append("content-range", "bytes \(first)-\(end - 1)/\(object.size)")
        }
        body = content.body
    }

    /// Adds the fields that every response has. A response to `HEAD` has only the length of its body.
    mutating func complete(requestId: String, isHead: Bool) {
        head.requestID = requestId
        guard isHead, case .bytes(let bytes) = body else { return }
        head.fields.append("content-length", bytes.count)
        body = .none
    }
}
