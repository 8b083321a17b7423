import Wire

/// One page of a list, assembled from the service's pages.
///
/// The caller lists the names with the query's prefix, from ``start``, folded at `/` if the query is delimited. It adds
/// pages until ``isFull`` or the end. Names that the gateway can't address are hidden: those with an empty segment or,
/// without ``ListQuery/markers``, a trailing slash, and its own.
struct CloudList {
    enum Start: Equatable {
        /// At the first name with the prefix.
        case beginning
        /// After this name, which need not exist.
        case after(String)
    }

    private static let slash = UInt8(ascii: "/")
    /// A folded prefix with this suffix sorts after the names with that prefix and before the next one.
    /// ``isCovered(_:)`` detects names with the prefix that sort even later.
    private static let last = "\u{10FFFF}"

    private let query: ListQuery
    /// The last name in byte order that this or an earlier page has shown or skipped.
    private(set) var covered: String?
    private(set) var page = ListPage()
    private(set) var isFull = false

    init(_ query: ListQuery, after: String?) {
        self.query = query
        covered = after
    }

    /// Whether the prefix itself has an empty segment, so that every name below it is hidden.
    var isHidden: Bool { CloudList.hiddenGroup(query.prefix) != nil }

    /// Whether the page ends in a group of hidden names, which can be large.
    var endsInHiddenGroup: Bool {
        covered.map { CloudList.hiddenGroup($0)?.utf8.count == $0.utf8.count } ?? false
    }

    var start: Start {
        guard let covered, !covered.utf8.lexicographicallyPrecedes(query.prefix.utf8) else {
            return .beginning
        }
        return .after(isFolded(covered) ? covered + CloudList.last : covered)
    }

    /// Adds one page of the service. `items` and `prefixes`, which end in `/`, can have any order.
    /// - Parameters:
    ///   - properties: The properties of items, by name.
    ///   - isLast: Whether this is the service's last page.
    mutating func add(
        items: [String], prefixes: [String], properties: [BytewiseString: ListedProperties] = [:], isLast: Bool
    ) {
        var entries = items.map { (name: $0, isPrefix: false) }
        entries += prefixes.map { (name: $0, isPrefix: true) }
        entries.sort { $0.name.utf8.lexicographicallyPrecedes($1.name.utf8) }
        for entry in entries where !isCovered(entry.name) {
            guard isVisible(entry.name, isPrefix: entry.isPrefix) else {
                covered = CloudList.hiddenGroup(entry.name) ?? entry.name
                continue
            }
            if page.items.count + page.prefixes.count == query.limit {
                // At least one more visible entry follows.
                isFull = true
                page.end = shown
                return
            }
            covered = entry.name
            if entry.isPrefix {
                page.prefixes.append(entry.name)
            } else {
                page.items.append(entry.name)
                let key = BytewiseString(entry.name)
                if let known = properties[key] { page.properties[key] = known }
            }
        }
        if !isLast, page.items.count + page.prefixes.count == query.limit {
            isFull = true
            page.end = shown
        }
    }

    /// Ends the page early, because too many of the service's pages held only hidden names.
    mutating func cut() { page.end = covered }

    private var shown: String? {
        [page.items.last, page.prefixes.last].compactMap { $0 }.max { $0.utf8.lexicographicallyPrecedes($1.utf8) }
    }

    /// Whether a page has shown the name, or the prefix that it is folded into.
    private func isCovered(_ name: String) -> Bool {
        guard let covered else { return false }
        if !covered.utf8.lexicographicallyPrecedes(name.utf8) { return true }
        return isFolded(covered) && name.utf8.starts(with: covered.utf8)
    }

    /// Whether this list shows the name as a folded prefix, which represents all names that begin with it.
    private func isFolded(_ name: String) -> Bool {
        if CloudList.hiddenGroup(name)?.utf8.count == name.utf8.count { return true }
        guard query.delimited, name.utf8.count > query.prefix.utf8.count else { return false }
        let rest = name.utf8.dropFirst(query.prefix.utf8.count)
        return name.utf8.starts(with: query.prefix.utf8)
            && rest.firstIndex(of: CloudList.slash) == rest.index(before: rest.endIndex)
    }

    private func isVisible(_ name: String, isPrefix: Bool) -> Bool {
        name.utf8.starts(with: query.prefix.utf8)
            && (isPrefix || query.markers || name.utf8.last != CloudList.slash)
            && CloudList.hiddenGroup(name) == nil && !S3Bucket.isProbe(name)
    }

    /// The prefix that hides a name together with all others that begin with it: the gateway's own, or up to the first
    /// empty segment. nil if there is none.
    private static func hiddenGroup(_ name: String) -> String? {
        if name.utf8.starts(with: HiddenName.reserved.utf8) { return HiddenName.reserved }
        var previous = slash
        for index in name.utf8.indices {
            if name.utf8[index] == slash, previous == slash { return String(name[...index]) }
            previous = name.utf8[index]
        }
        return nil
    }
}
