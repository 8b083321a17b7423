import HTTPClient
import Wire

extension S3Bucket {
    /// Bytes of one page of the service: 1,000 names of 1,024 bytes, three times as long encoded, and what is said of
    /// each.
    private static let pageBytes = 16 << 20
    /// Pages of the service that one list page may take: those of which nothing can be shown.
    private static let maximumPages = 32

    public func list(_ query: ListQuery, after: String?) async throws(BucketError) -> ListPage {
        var list = CloudList(query, after: after)
        if list.isHidden { return ListPage() }
        for _ in 0..<S3Bucket.maximumPages {
            let page = try await page(query, from: list.start)
            list.add(items: page.items, prefixes: page.prefixes, isLast: page.isLast)
            if list.isFull || page.isLast { return list.page }
        }
        list.cut()
        return list.page
    }

    private struct Page {
        var items: [String] = []
        var prefixes: [String] = []
        var isLast = true
    }

    private func page(_ query: ListQuery, from start: CloudList.Start) async throws(BucketError)
        -> Page
    {
        // A little more than a small page: so that hidden names do not cost a request each.
        var pairs = ["list-type=2", "encoding-type=url"]
        if query.delimited { pairs.append("delimiter=%2F") }
        pairs.append("max-keys=\(min(1000, max(query.limit, 32)))")
        if !query.prefix.isEmpty { pairs.append("prefix=\(S3Bucket.encodeQuery(query.prefix))") }
        if case .after(let name) = start {
            pairs.append("start-after=\(S3Bucket.encodeQuery(name))")
        }
        let request = ClientRequest("GET", target(nil, pairs.joined(separator: "&")))
        let response = try await call(request, limit: S3Bucket.pageBytes)
        guard response.status == 200 else { throw S3Fault(response).error("list") }
        var page = Page()
        var isEncoded = false
        var isTruncated: Bool?
        do throws(S3XML.Malformed) {
            try S3XML.read(response.body) { parent, name, text in
                switch (parent, name) {
                case ("Contents", "Key"): page.items.append(text)
                case ("CommonPrefixes", "Prefix"): page.prefixes.append(text)
                case ("ListBucketResult", "EncodingType"): isEncoded = text == "url"
                case ("ListBucketResult", "IsTruncated"): isTruncated = text == "true"
                default: break
                }
            }
        } catch {
            throw BucketError(.unavailable, "list: the answer is not XML: \(error.cause)")
        }
        guard let isTruncated else {
            throw BucketError(.unavailable, "list: the answer is no list")
        }
        page.isLast = !isTruncated
        if isTruncated, page.items.isEmpty, page.prefixes.isEmpty {
            throw BucketError(.unavailable, "list: a page without entries says that more follow")
        }
        if isEncoded {
            page.items = page.items.compactMap(S3Bucket.decoded)
            page.prefixes = page.prefixes.compactMap(S3Bucket.decoded)
        }
        return page
    }

    /// A name as the query encoding has it: `+` is a space. nil where it is not UTF-8: it can't be asked for.
    private static func decoded(_ text: String) -> String? {
        let bytes = text.utf8.map { $0 == UInt8(ascii: "+") ? 0x20 : $0 }
        guard let decoded = try? PercentEncoding.decode(bytes[...]) else { return nil }
        return String(validating: decoded, as: UTF8.self)
    }
}
