import Buckets
import HTTPServer
import Wire

// Uploads in parts in the native dialect.
extension Route {
    /// The value of `parts` in the query; nil without one.
    var partsToken: ArraySlice<UInt8>? { query.all.first { $0.name == "parts" }?.value }

    /// The methods of an upload in parts, for `Allow`.
    var partsMethods: String {
        partsToken?.isEmpty ?? true ? "POST, OPTIONS" : "GET, HEAD, PUT, POST, DELETE, OPTIONS"
    }
}

extension NativeAPI {
    /// Parses a request on an upload in parts.
    func parts(
        _ token: ArraySlice<UInt8>, _ name: ObjectName, _ route: Route, in bucket: Bucket, _ context: RequestContext
    )
        throws(Problem) -> ObjectOperation
    {
        let fields = context.fields
        func number(_ key: String, in range: ClosedRange<Int>) throws(Problem) -> Int? {
            let found = route.query.all.filter { $0.name == key }
            guard let value = found.first?.value else { return nil }
            let digits = Array(try QueryParameters.decoded(value, of: key).utf8)
            guard found.count == 1, let number = Decimal.saturating(digits.span), range.contains(Int(clamping: number))
            else {
                throw Problem(
                    .invalidArgument, "\(key) is a number from \(range.lowerBound) to \(range.upperBound), given once.")
            }
            return Int(clamping: number)
        }
        func request(_ action: PartsRequest.Action) -> ObjectOperation {
            .parts(name, PartsRequest(token: token, action: action))
        }
        // It is not the upload that these fields report.
        context.upload = nil
        switch context.method {
        case .post where token.isEmpty:
            let length = UploadDraft.integer(fields, "upload-length")
            let upload = try UploadRequest(
                context, name, bucket, length: length, try ExpectedDigests(ofWhole: fields))
            return request(
                .create(upload) { [unowned context] token in
                    let path = NativeAPI.path(of: name.value, in: bucket)
                    return "\(bucket.uploads.origin(context))\(path)?parts=\(token)"
                })
        case .put where !token.isEmpty:
            guard let number = try number("part", in: 1...PartPlan.maximumNumber) else {
                throw Problem(.invalidArgument, "part is the number of the part.")
            }
            let head = context.exchange.head
            if head.fields.contains("content-range") {
                throw Problem(.invalidArgument, "A part has its number: Content-Range is not supported.")
            }
            guard let size = head.hasBody ? head.contentLength : 0 else {
                throw Problem(.invalidArgument, "A part has a Content-Length.")
            }
            return request(.put(number, PartContent(size: size, digests: try ExpectedDigests(fields))))
        case .get where !token.isEmpty, .head where !token.isEmpty:
            let after = try number("after", in: 0...PartPlan.maximumNumber) ?? 0
            return request(.list(after: after, limit: try number("maxResults", in: 1...1000) ?? 1000))
        case .post:
            return request(
                .complete(.none) { (text) throws(Problem) in PartsSelection(parts: try NativeAPI.selection(text)) })
        case .delete where !token.isEmpty: return request(.cancel)
        default: throw Problem.methodNotAllowed(route.partsMethods)
        }
    }

    /// Parses `{"parts": [1, {"part": 2, "etag": "TAG"}]}`; empty for an empty body.
    static func selection(_ text: [UInt8]) throws(Problem) -> [SelectedPart] {
        if text.isEmpty { return [] }
        let members = try JSONReader.members(of: text)
        guard members.count == 1, members[0].key == "parts", let elements = members[0].value.elements else {
            throw Problem(.invalidArgument, "The body has one member, 'parts', which is an array.")
        }
        guard (1...PartPlan.maximumNumber).contains(elements.count) else {
            throw Problem(.invalidArgument, "parts has 1 to \(PartPlan.maximumNumber) elements.")
        }
        var parts: [SelectedPart] = []
        parts.reserveCapacity(elements.count)
        for (index, element) in elements.enumerated() {
            var (number, etag) = (element.number, String?.none)
            if case .object(let members) = element {
                for member in members {
                    switch member.key {
                    case "part": number = member.value.number
                    case "etag":
                        etag = member.value.text
                        if etag == nil { throw Problem(.invalidArgument, "parts[\(index)].etag is a string.") }
                    default: throw Problem(.invalidArgument, "parts[\(index)] has an unknown member.")
                    }
                }
            }
            guard let number, (1...Int64(PartPlan.maximumNumber)).contains(number) else {
                throw Problem(
                    .invalidArgument, "parts[\(index)] is a number from 1 to \(PartPlan.maximumNumber), or has one.")
            }
            guard number > parts.last?.number ?? 0 else {
                throw Problem(.invalidArgument, "parts[\(index)] is not greater than the number before it.")
            }
            parts.append(SelectedPart(Int(number), etag: etag))
        }
        return parts
    }

    func render(_ report: PartsReport) -> Response {
        var json = JSONWriter(reserving: 512)
        var response: Response
        switch report {
        case .created(let url, let expires, let minimum):
            json.beginObject()
            json.member("url", url)
            json.member("expires", HTTPDate.rfc3339(milliseconds: expires * 1000))
            json.member("minimumPartSize", String(minimum))
            json.endObject()
            response = Response(status: 201, json: json.bytes)
            response.head.fields.append("location", url)
        case .kept(let part):
            part.write(to: &json)
            response = Response(status: 200, json: json.bytes)
            response.head.fields.append("etag", "\"\(part.etag)\"")
        case .listed(let parts, let isLast):
            json.beginObject()
            json.key("parts")
            json.beginArray()
            for part in parts { part.write(to: &json) }
            json.endArray()
            if !isLast, let last = parts.last { json.member("after", Int64(last.number)) }
            json.endObject()
            response = Response(status: 200, json: json.bytes)
        }
        return response
    }
}

extension JSONValue {
    /// The value of an integer that is not in a string.
    fileprivate var number: Int64? { if case .number(let text) = self { Int64(text) } else { nil } }
}

extension Part {
    fileprivate func write(to json: inout JSONWriter) {
        json.beginObject()
        json.member("part", Int64(number))
        json.member("size", String(size))
        json.member("etag", etag)
        if let crc32c { json.member("crc32c", crc32c.base64) }
        json.member("updated", HTTPDate.rfc3339(milliseconds: updated))
        json.endObject()
    }
}
