import Wire

/// One page of a list, put together from a service's own pages.
///
/// The service is asked for what begins with the query's prefix, folded at `/` where the query folds, from
/// ``start`` on. What it gives is added page by page, until ``isFull`` or until nothing follows. Hidden here is what
/// the gateway can't name: empty segments, a slash at the end.
struct CloudList {
    /// Where the service is to begin.
    enum Start: Equatable {
        /// At the first name with the prefix.
        case beginning
        /// After this name, which need not exist.
        case after(String)
    }

    private static let slash = UInt8(ascii: "/")
    /// No name that counts lies between a folded prefix with this behind it and the next prefix. (One that does is not
    /// lost: it is folded, and covered.)
    private static let last = "\u{10FFFF}"

    private let query: ListQuery
    /// The last name, in byte order, that this page or the one before has shown or passed over.
    private(set) var covered: String?
    private(set) var page = ListPage()
    private(set) var isFull = false

    /// - Parameter after: Where the page before ended.
    init(_ query: ListQuery, after: String?) {
        self.query = query
        covered = after
    }

    /// Whether nothing can be shown below the prefix: it has an empty segment itself.
    var isHidden: Bool { CloudList.hiddenGroup(query.prefix) != nil }

    /// Whether the page has come to names that are hidden as a group, of which there may be many.
    var endsInHiddenGroup: Bool {
        covered.map { CloudList.hiddenGroup($0)?.utf8.count == $0.utf8.count } ?? false
    }

    /// Where the next page of the service is to begin.
    var start: Start {
        guard let covered, !covered.utf8.lexicographicallyPrecedes(query.prefix.utf8) else {
            return .beginning
        }
        return .after(isFolded(covered) ? covered + CloudList.last : covered)
    }

    /// Adds a page of the service.
    /// - Parameters:
    ///   - items: Names, in any order.
    ///   - prefixes: Folded names, each ending in `/`, in any order.
    ///   - isLast: Whether the service says that nothing follows.
    mutating func add(items: [String], prefixes: [String], isLast: Bool) {
        var entries = items.map { (name: $0, isPrefix: false) }
        entries += prefixes.map { (name: $0, isPrefix: true) }
        entries.sort { $0.name.utf8.lexicographicallyPrecedes($1.name.utf8) }
        for entry in entries where !isCovered(entry.name) {
            guard isVisible(entry.name, isPrefix: entry.isPrefix) else {
                covered = CloudList.hiddenGroup(entry.name) ?? entry.name
                continue
            }
            if page.items.count + page.prefixes.count == query.limit {
                // Something visible follows.
                isFull = true
                page.end = shown
                return
            }
            covered = entry.name
            if entry.isPrefix {
                page.prefixes.append(entry.name)
            } else {
                page.items.append(entry.name)
            }
        }
        if !isLast, page.items.count + page.prefixes.count == query.limit {
            isFull = true
            page.end = shown
        }
    }

    /// Ends the page early: the service has given too many pages of what is hidden.
    mutating func cut() { page.end = covered }

    /// The last entry of the page.
    private var shown: String? {
        [page.items.last, page.prefixes.last].compactMap { $0 }
            .max { $0.utf8.lexicographicallyPrecedes($1.utf8) }
    }

    /// Whether the page before, or this one, has shown a name already, or what it is folded into.
    private func isCovered(_ name: String) -> Bool {
        guard let covered else { return false }
        if !covered.utf8.lexicographicallyPrecedes(name.utf8) { return true }
        return isFolded(covered) && name.utf8.starts(with: covered.utf8)
    }

    /// Whether a name of this list stands for all that begin with it.
    private func isFolded(_ name: String) -> Bool {
        if CloudList.hiddenGroup(name)?.utf8.count == name.utf8.count { return true }
        guard query.delimited, name.utf8.count > query.prefix.utf8.count else { return false }
        let rest = name.utf8.dropFirst(query.prefix.utf8.count)
        return name.utf8.starts(with: query.prefix.utf8)
            && rest.firstIndex(of: CloudList.slash) == rest.index(before: rest.endIndex)
    }

    private func isVisible(_ name: String, isPrefix: Bool) -> Bool {
        name.utf8.starts(with: query.prefix.utf8)
            && (isPrefix || name.utf8.last != CloudList.slash)
            && CloudList.hiddenGroup(name) == nil && !S3Bucket.isProbe(name)
    }

    /// A name up to and with the slash that ends an empty segment: all that begin so are hidden.
    private static func hiddenGroup(_ name: String) -> String? {
        var previous = slash
        for index in name.utf8.indices {
            if name.utf8[index] == slash, previous == slash { return String(name[...index]) }
            previous = name.utf8[index]
        }
        return nil
    }
}
