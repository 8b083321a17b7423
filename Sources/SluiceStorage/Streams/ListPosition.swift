import Wire

/// How far a list has come, by which its next page is checked: something between that ignores the query returns another
/// folder, or the same page for ever.
struct ListPosition {
    /// What all names begin with: the folder with a slash, or nothing for the root.
    let prefix: String
    /// The gateway's token; nil at the beginning, and at the end.
    let token: String?
    /// The last names so far. Those that follow are greater, by their bytes.
    private let folder: String
    private let object: String

    /// - Parameter pageToken: ``pageToken`` after the page before, or the gateway's own token, which has no names.
    init(of prefix: String, pageToken: String?) {
        let parts = (pageToken ?? "").split(separator: " ", omittingEmptySubsequences: false)
        let names = parts.dropFirst().compactMap { ListPosition.decoded($0) }
        let isOwn = parts.count == 3 && names.count == 2
        self.init(
            prefix: prefix, token: isOwn ? String(parts[0]) : pageToken,
            folder: isOwn ? names[0] : "", object: isOwn ? names[1] : "")
    }

    private init(prefix: String, token: String?, folder: String, object: String) {
        (self.prefix, self.token, self.folder, self.object) = (prefix, token, folder, object)
    }

    private static func decoded(_ name: Substring) -> String? {
        (try? PercentEncoding.decode(Array(name.utf8)[...])).map {
            String(decoding: $0, as: UTF8.self)
        }
    }

    /// Continues the list: the gateway's token and the last names. nil at the end.
    var pageToken: String? {
        token.map {
            "\($0) \(PercentEncoding.encodeSegment(folder)) \(PercentEncoding.encodeSegment(object))"
        }
    }

    /// The position after a page.
    /// - Parameter token: The gateway's token for the page that follows.
    /// - Returns: nil if it is not the next page: of another folder, not in the order of the names' bytes, or followed by
    ///   itself.
    func next(folders: [String], objects: [String], token: String?) -> ListPosition? {
        guard let folder = last(folders, after: folder), let object = last(objects, after: object),
            token == nil || token != self.token
        else { return nil }
        return ListPosition(prefix: prefix, token: token, folder: folder, object: object)
    }

    private func last(_ names: [String], after last: String) -> String? {
        var last = last
        for name in names {
            guard name.hasPrefix(prefix), name > last else { return nil }
            last = name
        }
        return last
    }
}
