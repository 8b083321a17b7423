import Buckets
import Wire

extension JSONReader {
    /// The members of a request's body, which is a JSON object.
    /// - Throws: ``Problem`` with `invalid-argument`.
    static func members(of text: [UInt8]) throws(Problem) -> [JSONMember] {
        let value: JSONValue
        do throws(Malformed) {
            value = try parse(text)
        } catch {
            throw Problem(
                .invalidArgument, "The body is not JSON at byte \(error.offset): \(error.reason).")
        }
        guard case .object(let members) = value else {
            throw Problem(.invalidArgument, "The body is a JSON object of properties.")
        }
        return members
    }
}

extension JSONWriter {
    /// Writes custom metadata as an object, sorted by key. Empty metadata is left out.
    mutating func member(_ name: StaticString, custom: [BytewiseString: String]) {
        if custom.isEmpty { return }
        key(name)
        beginObject()
        for (key, value) in custom.sorted(by: { $0.key < $1.key }) { member(key: key.text, value) }
        endObject()
    }
}

extension ListPage {
    /// The page as JSON: `prefixes`, `items` and, unless it is the last page, `nextPageToken`. It lets the loop do
    /// other work meanwhile, and stops early if the client has disconnected.
    /// - Parameter members: Writes the members of an item.
    func json(
        _ request: ListRequest, in bucket: Bucket, _ context: RequestContext,
        members: (inout JSONWriter, String) -> Void
    ) async -> [UInt8] {
        var json = JSONWriter(reserving: 64 + 96 * items.count)
        json.beginObject()
        json.key("prefixes")
        json.beginArray()
        for prefix in prefixes { json.string(prefix) }
        json.endArray()
        json.key("items")
        json.beginArray()
        for item in items {
            do { try await context.giveWay() } catch { break }
            json.beginObject()
            members(&json, item)
            json.endObject()
        }
        json.endArray()
        if let end {
            let query = request.query
            let token = PageToken.encode(
                after: end, bucket: bucket.name, prefix: query.prefix, isDelimited: query.delimited)
            json.member("nextPageToken", token)
        }
        json.endObject()
        return json.bytes
    }
}
