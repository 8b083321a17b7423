import Buckets
import System
import Wire

extension OperationHandler {
    /// One page of a list.
    func list(_ request: ListRequest) async throws(Problem) -> OperationResult {
        try authorizer.require(try await authorizer.evaluate())
        if request.wantsSequence { request.sequence = try await newestSequence() }
        var page = try await page(request)
        if !request.query.delimited {
            let decided = try await decideFolders(of: page.items, below: request.folder)
            if decided < page.items.count {
                page.items.removeSubrange(decided...)
                page.end = page.items.last
            }
        }
        page.cut(toBytes: OperationHandler.pageBytes)
        if request.query.withProperties, !request.showsAll { try await hideUnreadable(&page) }
        return .page(page, request)
    }

    /// Keeps the properties of the objects that the caller may `get`. `list` alone allows names.
    private func hideUnreadable(_ page: inout ListPage) async throws(Problem) {
        var shown: [BytewiseString: ListedProperties] = [:]
        for item in page.items {
            let name = BytewiseString(item)
            guard let properties = page.properties[name] else { continue }
            try await context.giveWay()
            if context.exchange.isClientGone { throw RequestContext.clientGone }
            if authorizer.isReadable(item) { shown[name] = properties }
        }
        page.properties = shown
    }

    /// The time for which one list may search for an entry to show, in nanoseconds: 30 s.
    private static let listTimeout: UInt64 = 30_000_000_000
    /// The page size for the store after a page without any entry to show.
    private static let hiddenPage = 1000

    /// The next page of served entries. Entries that other clients stored under invalid names, and those that the path
    /// rules hide, are left out. The page is empty only at the end of the list.
    /// - Throws: ``Problem``: 504 if nothing to show was found in 30 s, 502 if the store's pages make no progress.
    private func page(_ request: ListRequest) async throws(Problem) -> ListPage {
        var after = request.after
        var query = request.query
        guard request.folder.isEmpty || bucket.serves(below: request.folder + "/") else {
            return ListPage()
        }
        let deadline = EventLoop.monotonicNow() &+ OperationHandler.listTimeout
        while true {
            var page = try await bucket.list(query, after: after)
            page.items.removeAll { !bucket.serves($0, markers: query.markers) }
            page.prefixes.removeAll { !bucket.serves(below: $0) }
            let isEmpty = page.items.isEmpty && page.prefixes.isEmpty
            if !isEmpty { page.cut(to: request.query.limit) }
            if !isEmpty || page.end == nil || context.exchange.isClientGone { return page }
            if let after, let end = page.end,
                !after.utf8.lexicographicallyPrecedes(end.utf8)
            {
                throw Problem(
                    BucketError(.unavailable, "list: a page ends where the one before did"))
            }
            if EventLoop.monotonicNow() >= deadline {
                throw Problem(BucketError(.timedOut, "list: in 30 s there was nothing that may be shown"))
            }
            after = page.end
            query.limit = max(query.limit, OperationHandler.hiddenPage)
        }
    }

    /// The maximum size of the names and content types in one page in bytes: 256 KiB. Pages of slow clients stay in memory.
    private static let pageBytes = 256 * 1024

    /// The maximum number of folders that one page may reveal. Each folder needs a decision.
    static let maximumFolders = 2000

    /// Authorizes every folder between `base` and an item, because the items' names reveal them.
    /// - Returns: The number of items that were authorized. The others belong to the next page.
    private func decideFolders(of items: [String], below base: String)
        async throws(Problem) -> Int
    {
        let start = base.isEmpty ? 0 : base.utf8.count + 1
        var decided = 0
        // Items are sorted bytewise, so an item's new folders are those that the previous item does not have.
        var previous: [UInt8] = []
        for (index, item) in items.enumerated() {
            if decided >= OperationHandler.maximumFolders { return index }
            try await context.giveWay()
            let bytes = Array(item.utf8)
            let shared = zip(bytes, previous).prefix { $0 == $1 }.count
            previous = bytes
            for end in bytes.indices.dropFirst(max(start, shared)) where bytes[end] == UInt8(ascii: "/") {
                decided += 1
                try await context.giveWay()
                if context.exchange.isClientGone { return index }
                let folder = String(decoding: bytes[..<end], as: UTF8.self)
                try authorizer.require(try await authorizer.evaluate(folder: folder))
            }
        }
        return items.count
    }
}

/// The part of a name after its last `/`.
func lastSegment(of name: String) -> Substring {
    let bytes = name.utf8
    guard let slash = bytes.lastIndex(of: UInt8(ascii: "/")) else { return name[...] }
    return name[bytes.index(after: slash)...]
}

extension ListPage {
    /// Keeps as many entries as the client asked for. If more follow, the page ends at the last entry shown, so that
    /// the page token reveals no hidden name.
    fileprivate mutating func cut(to limit: Int) {
        let precedes = { (first: String, second: String) in
            first.utf8.lexicographicallyPrecedes(second.utf8)
        }
        let names = (items + prefixes).sorted(by: precedes)
        guard end != nil || names.count > limit, let last = names.prefix(limit).last else { return }
        items.removeAll { precedes(last, $0) }
        prefixes.removeAll { precedes(last, $0) }
        end = last
    }

    /// Keeps the first entries whose names and content types have at most `limit` bytes together, at least one.
    fileprivate mutating func cut(toBytes limit: Int) {
        func size(_ name: String) -> Int {
            name.utf8.count + (properties[BytewiseString(name)]?.contentType?.utf8.count ?? 0)
        }
        func total(_ names: [String]) -> Int { names.reduce(0) { $0 + size($1) } }
        guard total(items) + total(prefixes) > limit else { return }
        var bytes = 0
        let count = (items + prefixes).sorted().prefix { name in
            bytes += size(name)
            return bytes <= limit
        }.count
        cut(to: max(1, count))
    }
}
