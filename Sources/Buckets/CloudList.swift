import Wire

/// One page of a list, assembled from the service's own pages.
///
/// The caller lists the names that begin with the query's prefix, starting at ``start`` and folded at `/` if the query
/// is delimited. It adds the service's pages until ``isFull``, or until there are no more. Names that the gateway
/// cannot address are hidden: those with an empty segment or a trailing slash, and its own.
struct CloudList {
    /// The position where the service starts listing.
    enum Start: Equatable {
        /// At the first name with the prefix.
        case beginning
        /// After this name, which need not exist.
        case after(String)
    }

    private static let slash = UInt8(ascii: "/")
    /// Appended to a folded prefix, this sorts after the names with that prefix and before the next prefix. A name with
    /// the prefix that sorts even later is not listed twice: ``isCovered(_:)`` finds it.
    private static let last = "\u{10FFFF}"

    private let query: ListQuery
    /// The last name, in byte order, that this page or an earlier one has shown or skipped.
    private(set) var covered: String?
    private(set) var page = ListPage()
    private(set) var isFull = false

    /// - Parameter after: The name where the previous page ended.
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

    /// The position where the service's next page starts.
    var start: Start {
        guard let covered, !covered.utf8.lexicographicallyPrecedes(query.prefix.utf8) else {
            return .beginning
        }
        return .after(isFolded(covered) ? covered + CloudList.last : covered)
    }

    /// Adds one page of the service.
    /// - Parameters:
    ///   - items: Names, in any order.
    ///   - prefixes: Folded names, each ending in `/`, in any order.
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

    /// The last entry of the page.
    private var shown: String? {
        [page.items.last, page.prefixes.last].compactMap { $0 }.max { $0.utf8.lexicographicallyPrecedes($1.utf8) }
    }

    /// Whether a page has already shown the name, or the prefix that it is folded into.
    private func isCovered(_ name: String) -> Bool {
        guard let covered else { return false }
        if !covered.utf8.lexicographicallyPrecedes(name.utf8) { return true }
        return isFolded(covered) && name.utf8.starts(with: covered.utf8)
    }

    /// Whether this list shows the name as a folded prefix, which represents every name that begins with it.
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

    /// The prefix of a hidden name that makes all names with it hidden; nil if there is none. It is that of the gateway's
    /// own objects, or ends with the slash after the first empty segment.
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
