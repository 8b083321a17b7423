import Buckets
import System
import Wire

extension OperationHandler {
    /// One page of a list.
    func list(_ request: ListRequest) async throws(Problem) -> OperationResult {
        try authorizer.require(try await authorizer.evaluate())
        var page = try await page(request)
        if !request.query.delimited {
            let decided = try await decideFolders(of: page.items, below: request.folder)
            if decided < page.items.count {
                page.items.removeSubrange(decided...)
                page.end = page.items.last
            }
        }
        page.cut(toBytes: OperationHandler.pageBytes)
        return .page(page, request)
    }

    /// Nanoseconds that one list may look for something to show: 30 s.
    private static let listTimeout: UInt64 = 30_000_000_000
    /// Names that the store is asked for at a time where nothing of a page was shown.
    private static let hiddenPage = 1000

    /// The next page of what is served here: what the store has by other means, or the path rules hide, is left out. It
    /// is empty only where nothing follows.
    /// - Throws: ``Problem``: 504 where nothing was found to show in 30 s, 502 where the store's pages go no further.
    private func page(_ request: ListRequest) async throws(Problem) -> ListPage {
        var after = request.after
        var query = request.query
        guard request.folder.isEmpty || bucket.serves(below: request.folder + "/") else {
            return ListPage()
        }
        let deadline = EventLoop.monotonicNow() &+ OperationHandler.listTimeout
        while true {
            var page = try await bucket.list(query, after: after)
            page.items.removeAll { !bucket.serves($0) }
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
                throw Problem(
                    BucketError(.timedOut, "list: in 30 s there was nothing that may be shown"))
            }
            after = page.end
            query.limit = max(query.limit, OperationHandler.hiddenPage)
        }
    }

    /// Bytes of names that one page has: 256 KiB. Pages that nobody reads stay in memory.
    private static let pageBytes = 256 * 1024

    /// Folders that one page may reveal: each is a decision.
    private static let maximumFolders = 2000

    /// Decides on every folder that has one of the items below it: each of their names reveals it.
    /// - Returns: How many of the items were decided on; the others are for the next page.
    private func decideFolders(of items: [String], below base: String)
        async throws(Problem) -> Int
    {
        let start = base.isEmpty ? 0 : base.utf8.count + 1
        var decided = 0
        // Items are in the order of their bytes: the folders of one that are not the previous one's are new.
        var previous: [UInt8] = []
        for (index, item) in items.enumerated() {
            if decided >= OperationHandler.maximumFolders { return index }
            try await context.giveWay()
            let bytes = Array(item.utf8)
            let shared = zip(bytes, previous).prefix { $0 == $1 }.count
            previous = bytes
            for end in bytes.indices.dropFirst(max(start, shared))
            where bytes[end] == UInt8(ascii: "/") {
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

/// What follows the last `/` of a name.
func lastSegment(of name: String) -> Substring {
    let bytes = name.utf8
    guard let slash = bytes.lastIndex(of: UInt8(ascii: "/")) else { return name[...] }
    return name[bytes.index(after: slash)...]
}

extension ListPage {
    /// Leaves the first entries, as many as the client asked for. Where more follow, the page ends with the last that is
    /// shown: what is hidden behind it is not shown in a token either.
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

    /// Keeps the first entries whose names total at most `limit` bytes, and at least one entry.
    fileprivate mutating func cut(toBytes limit: Int) {
        func total(_ names: [String]) -> Int { names.reduce(0) { $0 + $1.utf8.count } }
        guard total(items) + total(prefixes) > limit else { return }
        var bytes = 0
        let count = (items + prefixes).sorted().prefix { name in
            bytes += name.utf8.count
            return bytes <= limit
        }.count
        cut(to: max(1, count))
    }
}
