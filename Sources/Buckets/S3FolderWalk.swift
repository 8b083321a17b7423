/// One page of a list in byte order, from a service that lists folder by folder, as SeaweedFS does: there `a/b` comes
/// right after `a` and before `a-`, as if `/` were less than every other byte.
///
/// Each folder's own entries are asked for in the service's order. A folder waits until an entry has come that is
/// behind it in byte order too; what may still come before it begins with its name and a byte less than `/`. A page goes on
/// where the one before ended, without what the service showed then: folders that may have waited are looked for.
final class S3FolderWalk {
    private static let slash = UInt8(ascii: "/")
    /// Requests that one list page may take before it ends early.
    private static let maximumRequests = 100
    /// With this behind a folder's name, and a full stop, all has passed that may stand between it and the next in byte
    /// order: the full stop is the byte before the slash.
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

    /// Whether one name comes before another where folders are listed one by one.
    static func precedes(_ first: String, _ second: String) -> Bool {
        first.utf8.lexicographicallyPrecedes(second.utf8) { first, second in
            first != second && second != slash && (first == slash || first < second)
        }
    }

    private static func precedesInBytes(_ first: String, _ second: String) -> Bool {
        first.utf8.lexicographicallyPrecedes(second.utf8)
    }

    /// Whether the page has room and time for more.
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
        requests += 1
        return try await bucket.page(
            prefix, delimited: delimited, limit: limit ?? max(query.limit, 32), start)
    }

    private func add(_ item: String) { list.add(items: [item], prefixes: [], isLast: true) }

    /// Adds what is in a folder and not yet covered. `folder` ends in a slash, or is the list's prefix.
    private func visit(_ folder: String) async throws(BucketError) {
        let rest = list.covered.flatMap { covered in
            covered.utf8.starts(with: folder.utf8)
                ? Array(covered.utf8.dropFirst(folder.utf8.count)) : nil
        }
        if rest == nil, !query.delimited {
            // A small one comes at once, with all that is below it.
            let page = try await fetch(folder, delimited: false)
            if page.isLast {
                for item in page.items.sorted(by: Self.precedesInBytes) where goesOn { add(item) }
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
                if name.utf8.last != Self.slash {
                    add(name)
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

    /// Whether it ends in a slash, or is empty: then no name within can begin with one.
    private func isWhole(_ folder: String) -> Bool {
        folder.isEmpty || folder.utf8.last == Self.slash
    }

    /// The folders that come after `segment` in byte order and before it in the service's.
    /// - Parameter itself: Whether a folder of that very name does, too.
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

    /// Adds the folders, longest first, that nothing can precede any more where `name` is the service's next.
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
