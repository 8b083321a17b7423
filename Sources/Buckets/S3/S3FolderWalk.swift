import Wire

/// Produces one page in byte order from a service that lists folder by folder, as SeaweedFS does: `a/b` follows `a` and
/// precedes `a-`, as if `/` were less than every other byte.
///
/// The entries of each folder are requested in the service's order. A folder is held back until an entry arrives that
/// also sorts after it in byte order. The entries that can sort before it begin with its name and a byte less than `/`.
/// A page continues where the previous one ended, but without its held-back folders, which are looked up again.
final class S3FolderWalk {
    private static let slash = UInt8(ascii: "/")
    /// The number of requests after which a page ends early.
    private static let maximumRequests = 100
    /// The maximum number of requests without progress. A name of 1,024 bytes may need one per byte.
    private static let requestLimit = 2000
    /// Appended to a folder's name, this sorts after every entry between the name and the folder in byte order: the
    /// full stop is the byte before the slash.
    private static let passed = ".\u{10FFFF}"

    private let bucket: S3Bucket
    private let query: ListQuery
    private let after: String?
    private var list: CloudList
    private var requests = 0
    private var isCut = false

    init(_ bucket: S3Bucket, _ query: ListQuery, after: String?) {
        self.bucket = bucket
        self.query = query
        self.after = after
        list = CloudList(query, after: after)
    }

    func page() async throws(BucketError) -> ListPage {
        if !list.isHidden { try await visit(query.prefix) }
        return list.page
    }

    static func precedes(_ first: String, _ second: String) -> Bool {
        first.utf8.lexicographicallyPrecedes(second.utf8) { first, second in
            first != second && second != slash && (first == slash || first < second)
        }
    }

    private static func precedesInBytes(_ first: String, _ second: String) -> Bool {
        first.utf8.lexicographicallyPrecedes(second.utf8)
    }

    /// Whether the page can take more entries and requests.
    private var goesOn: Bool {
        if list.isFull || isCut { return false }
        if requests >= Self.maximumRequests, list.covered != after {
            list.cut()
            isCut = true
        }
        return !isCut
    }

    private func fetch(
        _ prefix: String, delimited: Bool, _ start: S3ListPage.Start = .beginning, limit: Int? = nil
    ) async throws(BucketError) -> S3ListPage {
        if requests == Self.requestLimit {
            throw BucketError(
                .unavailable, "list: \(requests) pages in a row have nothing to show")
        }
        requests += 1
        let page = try await bucket.page(
            prefix, delimited: delimited, limit: limit ?? max(query.limit, 32), start,
            withProperties: query.withProperties)
        if !page.isLast, page.next == start {
            throw BucketError(.unavailable, "list: a page is followed by itself")
        }
        return page
    }

    private func add(_ item: String, of page: S3ListPage) {
        list.add(items: [item], prefixes: [], properties: page.properties, isLast: true)
    }

    /// Adds the uncovered entries of a folder. `folder` ends in a slash, or is the list's prefix.
    private func visit(_ folder: String) async throws(BucketError) {
        let rest = list.covered.flatMap { covered in
            covered.utf8.starts(with: folder.utf8) ? Array(covered.utf8.dropFirst(folder.utf8.count)) : nil
        }
        if rest == nil, !query.delimited {
            // One request returns all of a small folder, including its subfolders.
            let page = try await fetch(folder, delimited: false)
            if page.isLast {
                for item in page.items.sorted(by: Self.precedesInBytes) where goesOn {
                    add(item, of: page)
                }
                return
            }
        }
        var waiting: [String] = []
        var start = S3ListPage.Start.beginning
        var entered: String?
        if let rest, !rest.isEmpty || !isWhole(folder) {
            let end = rest.firstIndex(of: Self.slash)
            let segment = folder + String(decoding: rest[..<(end ?? rest.count)], as: UTF8.self)
            if end != nil {
                entered = segment + "/"
                if !query.delimited { try await visit(segment + "/") }
                start = .after(segment + Self.passed)
            } else {
                start = .after(segment)
            }
            if goesOn { waiting = try await skipped(before: segment, in: folder, end == nil) }
        }
        while goesOn {
            let page = try await fetch(folder, delimited: true, start)
            for name in page.inFolderOrder where name != entered {
                try await open(&waiting, before: name)
                guard goesOn else { return }
                // A folder's own name is an item: its marker.
                if name.utf8.last != Self.slash || query.markers && name == folder {
                    add(name, of: page)
                } else if waiting.last != name, name != folder {
                    waiting.append(name)
                }
            }
            if page.isLast { break }
            guard let next = page.next else {
                throw BucketError(.unavailable, "list: a page says that more follow, and not where")
            }
            start = next
        }
        try await open(&waiting, before: nil)
    }

    /// Whether no name within it can begin with a slash: it ends in a slash or is empty.
    private func isWhole(_ folder: String) -> Bool {
        folder.isEmpty || folder.utf8.last == Self.slash
    }

    /// The folders after `segment`, or from it if `itself`, in byte order but before it in the service's order.
    private func skipped(before segment: String, in folder: String, _ itself: Bool)
        async throws(BucketError) -> [String]
    {
        let bytes = Array(segment.utf8)
        let first = folder.utf8.count + (isWhole(folder) ? 1 : 0)
        var found: [String] = []
        for end in first...max(first, bytes.count) where end <= bytes.count {
            guard end < bytes.count ? bytes[end] < Self.slash : itself else { continue }
            let candidate = String(decoding: bytes[..<end], as: UTF8.self) + "/"
            let page = try await fetch(candidate, delimited: false, limit: 1)
            if !page.items.isEmpty { found.append(candidate) }
        }
        return found
    }

    /// Adds the held-back folders that no later entry can precede, longest first. `name` is the next entry.
    private func open(_ waiting: inout [String], before name: String?) async throws(BucketError) {
        while let folder = waiting.last, goesOn {
            if let name, !Self.precedesInBytes(folder, name) { return }
            waiting.removeLast()
            if query.delimited {
                list.add(items: [], prefixes: [folder], isLast: true)
            } else if list.covered.map({ Self.precedesInBytes($0, folder) }) ?? true {
                try await visit(folder)
            }
        }
    }
}
