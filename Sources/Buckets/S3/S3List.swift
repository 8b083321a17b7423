import HTTPClient
import Wire
import XML

extension S3Bucket {
    /// The maximum size of a page: 1,000 encoded names of 1,024 bytes, with their properties.
    private static let pageBytes = 16 << 20
    /// The maximum number of consecutive pages without a visible entry.
    private static let maximumPages = 128

    public func list(_ query: ListQuery, after: String?) async throws(BucketError) -> ListPage {
        if !listsByFolder.load(ordering: .relaxed),
            let page = try await listInByteOrder(query, after: after)
        {
            return page
        }
        return try await S3FolderWalk(self, query, after: after).page()
    }

    /// nil if the service turns out to list folder by folder.
    private func listInByteOrder(_ query: ListQuery, after: String?) async throws(BucketError)
        -> ListPage?
    {
        var list = CloudList(query, after: after)
        if list.isHidden { return ListPage() }
        var next: S3ListPage.Start?
        // At least 32, so that a small page does not need one request for each hidden name.
        var limit = max(query.limit, 32)
        for _ in 0..<S3Bucket.maximumPages {
            let start: S3ListPage.Start =
                switch list.start {
                case .beginning: .beginning
                case .after(let name): .after(name)
                }
            let page = try await page(
                query.prefix, delimited: query.delimited, limit: limit, next ?? start,
                withProperties: query.withProperties)
            if listsByFolder.load(ordering: .relaxed) { return nil }
            if let token = page.next, token == next {
                throw BucketError(.unavailable, "list: a page is followed by itself")
            }
            let before = list.covered.map { BytewiseString($0) }
            list.add(
                items: page.items, prefixes: page.prefixes, properties: page.properties,
                isLast: page.isLast)
            if list.isFull || page.isLast { return list.page }
            let advances = list.covered.map { BytewiseString($0) } != before
            // Skips names that are hidden as a group.
            next = list.endsInHiddenGroup && advances ? nil : page.next
            guard next != nil || advances else {
                throw BucketError(.unavailable, "list: a page that is not the last adds no name")
            }
            limit = 1000
        }
        if !list.page.items.isEmpty || !list.page.prefixes.isEmpty {
            list.cut()
            return list.page
        }
        throw BucketError(.unavailable, "list: \(S3Bucket.maximumPages) pages in a row have nothing to show")
    }

    /// Requests one page of the service, at most `limit` entries. The service allows 1,000.
    func page(
        _ prefix: String, delimited: Bool, limit: Int, _ start: S3ListPage.Start,
        withProperties: Bool
    ) async throws(BucketError) -> S3ListPage {
        var pairs = ["list-type=2", "encoding-type=url"]
        if delimited { pairs.append("delimiter=%2F") }
        pairs.append("max-keys=\(min(1000, limit))")
        if !prefix.isEmpty { pairs.append("prefix=\(PercentEncoding.encodeSegment(prefix))") }
        switch start {
        case .beginning: break
        case .after(let name): pairs.append("start-after=\(PercentEncoding.encodeSegment(name))")
        case .token(let token): pairs.append("continuation-token=\(PercentEncoding.encodeSegment(token.text))")
        }
        let request = ClientRequest("GET", target(nil, pairs.joined(separator: "&")))
        let response = try await call(request, limit: S3Bucket.pageBytes)
        guard response.status == 200 else { throw S3ErrorResponse(response).error("list") }
        // Parsing several megabytes would block the loop.
        let page = try await pool.run { [body = response.body] () throws(BucketError) in
            try S3ListPage(body, withProperties: withProperties)
        }
        let isByFolder = response.fields["server"]?.hasPrefix("SeaweedFS") == true
        if isByFolder || page.isByFolder { listsByFolder.store(true, ordering: .relaxed) }
        return page
    }
}

struct S3ListPage {
    enum Start: Equatable {
        case beginning
        /// After this name, which need not exist.
        case after(String)
        /// The position where a previous page of the same prefix and delimiter ended.
        case token(BytewiseString)
    }
    private(set) var items: [String] = []
    private(set) var prefixes: [String] = []
    /// The properties of items, if requested.
    private(set) var properties: [BytewiseString: ListedProperties] = [:]
    private(set) var isLast = true
    private(set) var next: Start?

    /// - Throws: ``BucketError`` if the body is not a page of a list, or the list would never end.
    init(_ body: [UInt8], withProperties: Bool = false) throws(BucketError) {
        var columns = Columns()
        var page = (items: [String](), prefixes: [String](), token: String?.none)
        var isEncoded = false
        var isTruncated: Bool?
        do throws(XMLReader.Malformed) {
            try XMLReader.read(body) { parent, name, text in
                switch (parent, name) {
                case ("Contents", "Key"): page.items.append(text)
                case ("Contents", _) where withProperties: columns.take(name, text)
                case ("CommonPrefixes", "Prefix"): page.prefixes.append(text)
                case ("ListBucketResult", "EncodingType"): isEncoded = text == "url"
                case ("ListBucketResult", "IsTruncated"): isTruncated = text == "true"
                case ("ListBucketResult", "NextContinuationToken"): page.token = text
                default: break
                }
            }
        } catch {
            throw BucketError(
                .unavailable, "list: the response is not S3's: is the endpoint another web server? (\(error.cause))")
        }
        guard let isTruncated else {
            throw BucketError(
                .unavailable, "list: the response is no list of S3's: is the endpoint another web server?")
        }
        if isTruncated {
            isLast = false
            if let token = page.token, !token.isEmpty { next = .token(BytewiseString(token)) }
        }
        items = isEncoded ? page.items.compactMap(S3ListPage.decoded) : page.items
        prefixes = isEncoded ? page.prefixes.compactMap(S3ListPage.decoded) : page.prefixes
        properties = columns.properties(of: page.items) { isEncoded ? S3ListPage.decoded($0) : $0 }
        // Drop entries that are not UTF-8. A token leads past them; without a token the list could not continue.
        let hasEntries = !page.items.isEmpty || !page.prefixes.isEmpty
        let canAdvance = next != nil ? hasEntries : !items.isEmpty || !prefixes.isEmpty
        if isTruncated, !canAdvance {
            throw BucketError(.unavailable, "list: a page without entries says that more follow")
        }
    }

    /// The items' properties, in document order. They are used only if all items have all of them.
    private struct Columns {
        private var sizes: [UInt64] = []
        private var times: [Int64] = []
        private var tags: [String] = []

        mutating func take(_ name: String, _ text: String) {
            switch name {
            case "Size":
                let digits = Array(text.utf8)
                if let size = Decimal.parse(
                    digits.span, maximumDigits: 19, maximum: S3Head.largestSize)
                {
                    sizes.append(size)
                }
            case "LastModified":
                if let time = HTTPDate.parse(rfc3339: text) { times.append(time) }
            case "ETag": tags.append(S3Head.unquoted(text))
            default: break
            }
        }

        func properties(of items: [String], decode: (String) -> String?)
            -> [BytewiseString: ListedProperties]
        {
            guard [sizes.count, times.count, tags.count].allSatisfy({ $0 == items.count }) else {
                return [:]
            }
            var properties: [BytewiseString: ListedProperties] = [:]
            for (index, item) in items.enumerated() {
                guard let name = decode(item), !tags[index].isEmpty else { continue }
                properties[BytewiseString(name)] = ListedProperties(
                    size: sizes[index], updated: times[index], etag: tags[index])
            }
            return properties
        }
    }

    /// Whether the order of entries shows that the service lists folder by folder.
    var isByFolder: Bool {
        func isSorted(_ names: [String], _ precedes: (String, String) -> Bool) -> Bool {
            !zip(names.dropFirst(), names).contains(where: precedes)
        }
        return [items, prefixes].contains {
            !isSorted($0) { $0.utf8.lexicographicallyPrecedes($1.utf8) }
        } && [items, prefixes].allSatisfy { isSorted($0, S3FolderWalk.precedes) }
    }

    var inFolderOrder: [String] { (items + prefixes).sorted(by: S3FolderWalk.precedes) }

    /// Decodes a query-encoded name, where `+` is a space; nil if it is not UTF-8 and thus can't be requested.
    static func decoded(_ text: String) -> String? {
        let bytes = text.utf8.map { $0 == UInt8(ascii: "+") ? 0x20 : $0 }
        guard let decoded = try? PercentEncoding.decode(bytes[...]) else { return nil }
        return String(validating: decoded, as: UTF8.self)
    }
}
