import HTTPClient
import Wire

extension S3Bucket {
    /// Bytes of one page of the service: 1,000 names of 1,024 bytes, three times as long encoded, and what is said of
    /// each.
    private static let pageBytes = 16 << 20
    /// Pages of the service that one list page may take: those of which nothing can be shown.
    private static let maximumPages = 32

    public func list(_ query: ListQuery, after: String?) async throws(BucketError) -> ListPage {
        if !listsByFolder.load(ordering: .relaxed),
            let page = try await listInByteOrder(query, after: after)
        {
            return page
        }
        return try await S3FolderWalk(self, query, after: after).page()
    }

    /// nil where the service turns out to list folder by folder.
    private func listInByteOrder(_ query: ListQuery, after: String?) async throws(BucketError)
        -> ListPage?
    {
        var list = CloudList(query, after: after)
        if list.isHidden { return ListPage() }
        var next: S3ListPage.Start?
        for _ in 0..<S3Bucket.maximumPages {
            let start: S3ListPage.Start =
                switch list.start {
                case .beginning: .beginning
                case .after(let name): .after(name)
                }
            // A little more than a small page: so that hidden names do not cost a request each.
            let page = try await page(
                query.prefix, delimited: query.delimited, limit: max(query.limit, 32), next ?? start
            )
            if listsByFolder.load(ordering: .relaxed) { return nil }
            list.add(items: page.items, prefixes: page.prefixes, isLast: page.isLast)
            if list.isFull || page.isLast { return list.page }
            // What is hidden as a group is stepped over.
            next = list.endsInHiddenGroup ? nil : page.next
        }
        list.cut()
        return list.page
    }

    /// One page of the service.
    /// - Parameter limit: Entries at most; the service allows 1,000.
    func page(_ prefix: String, delimited: Bool, limit: Int, _ start: S3ListPage.Start)
        async throws(BucketError) -> S3ListPage
    {
        var pairs = ["list-type=2", "encoding-type=url"]
        if delimited { pairs.append("delimiter=%2F") }
        pairs.append("max-keys=\(min(1000, limit))")
        if !prefix.isEmpty { pairs.append("prefix=\(S3Bucket.encodeQuery(prefix))") }
        switch start {
        case .beginning: break
        case .after(let name): pairs.append("start-after=\(S3Bucket.encodeQuery(name))")
        case .token(let token): pairs.append("continuation-token=\(S3Bucket.encodeQuery(token))")
        }
        let request = ClientRequest("GET", target(nil, pairs.joined(separator: "&")))
        let response = try await call(request, limit: S3Bucket.pageBytes)
        guard response.status == 200 else { throw S3Fault(response).error("list") }
        let page = try S3ListPage(response.body)
        let isByFolder = response.fields["server"]?.hasPrefix("SeaweedFS") == true
        if isByFolder || page.isByFolder { listsByFolder.store(true, ordering: .relaxed) }
        return page
    }
}

/// One page of the service, as it came.
struct S3ListPage {
    /// Where a page begins.
    enum Start: Equatable {
        /// At the first name with the prefix.
        case beginning
        /// After this name, which need not exist.
        case after(String)
        /// Where a page of the same prefix and delimiter ended.
        case token(String)
    }
    private(set) var items: [String] = []
    private(set) var prefixes: [String] = []
    /// Whether nothing follows.
    private(set) var isLast = true
    /// Where the next page begins, if the service tells.
    private(set) var next: Start?

    /// - Throws: ``BucketError`` where it is no page of a list, or one that would never end.
    init(_ body: [UInt8]) throws(BucketError) {
        var page = (items: [String](), prefixes: [String](), token: String?.none)
        var isEncoded = false
        var isTruncated: Bool?
        do throws(S3XML.Malformed) {
            try S3XML.read(body) { parent, name, text in
                switch (parent, name) {
                case ("Contents", "Key"): page.items.append(text)
                case ("CommonPrefixes", "Prefix"): page.prefixes.append(text)
                case ("ListBucketResult", "EncodingType"): isEncoded = text == "url"
                case ("ListBucketResult", "IsTruncated"): isTruncated = text == "true"
                case ("ListBucketResult", "NextContinuationToken"): page.token = text
                default: break
                }
            }
        } catch {
            throw BucketError(.unavailable, "list: the answer is not XML: \(error.cause)")
        }
        guard let isTruncated else {
            throw BucketError(.unavailable, "list: the answer is no list")
        }
        if isTruncated {
            isLast = false
            if let token = page.token, !token.isEmpty { next = .token(token) }
            if page.items.isEmpty, page.prefixes.isEmpty {
                throw BucketError(
                    .unavailable, "list: a page without entries says that more follow")
            }
        }
        items = isEncoded ? page.items.compactMap(S3ListPage.decoded) : page.items
        prefixes = isEncoded ? page.prefixes.compactMap(S3ListPage.decoded) : page.prefixes
    }

    /// Whether its order shows that the service lists folder by folder.
    var isByFolder: Bool {
        func isSorted(_ names: [String], _ precedes: (String, String) -> Bool) -> Bool {
            !zip(names.dropFirst(), names).contains(where: precedes)
        }
        return [items, prefixes].contains {
            !isSorted($0) { $0.utf8.lexicographicallyPrecedes($1.utf8) }
        } && [items, prefixes].allSatisfy { isSorted($0, S3FolderWalk.precedes) }
    }

    /// Items and prefixes as such a service has them.
    var inFolderOrder: [String] { (items + prefixes).sorted(by: S3FolderWalk.precedes) }

    /// A name as the query encoding has it: `+` is a space. nil where it is not UTF-8: it can't be asked for.
    private static func decoded(_ text: String) -> String? {
        let bytes = text.utf8.map { $0 == UInt8(ascii: "+") ? 0x20 : $0 }
        guard let decoded = try? PercentEncoding.decode(bytes[...]) else { return nil }
        return String(validating: decoded, as: UTF8.self)
    }
}
