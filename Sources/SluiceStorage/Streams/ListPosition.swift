import Wire

/// The position in a list, to check its next page: a proxy that ignores the query returns another
/// folder, or the same page for ever.
struct ListPosition {
    /// The prefix of all names: the folder with a slash, or nothing for the root.
    let prefix: String
    /// The gateway's token; nil at the beginning, and at the end.
    let token: String?
    /// The last names so far. Those that follow are greater, by their bytes.
    private let folder: String
    private let object: String
    /// The number of pages without names since the last name.
    private let emptyPages: Int

    /// The maximum number of consecutive pages without names. Stores return some where part of a list was deleted.
    private static let maximumEmptyPages = 1000

    /// - Parameter pageToken: ``pageToken`` after the page before, or the gateway's own token, which has no names.
    init(of prefix: String, pageToken: String?) {
        let parts = (pageToken ?? "").split(separator: " ", omittingEmptySubsequences: false)
        let names = parts.dropFirst().prefix(2).compactMap { ListPosition.decoded($0) }
        let empty = parts.count == 4 ? Int(parts[3]) : nil
        guard names.count == 2, let empty else {
            self.init(prefix: prefix, token: pageToken, folder: "", object: "", emptyPages: 0)
            return
        }
        self.init(
            prefix: prefix, token: String(parts[0]), folder: names[0], object: names[1],
            emptyPages: empty)
    }

    private init(prefix: String, token: String?, folder: String, object: String, emptyPages: Int) {
        (self.prefix, self.token, self.folder, self.object) = (prefix, token, folder, object)
        self.emptyPages = emptyPages
    }

    private static func decoded(_ name: Substring) -> String? {
        (try? PercentEncoding.decode(Array(name.utf8)[...])).map {
            String(decoding: $0, as: UTF8.self)
        }
    }

    /// Continues the list: the gateway's token, the last names and the number of empty pages. nil at the end.
    var pageToken: String? {
        token.map {
            "\($0) \(PercentEncoding.encodeSegment(folder)) \(PercentEncoding.encodeSegment(object)) \(emptyPages)"
        }
    }

    /// The position after a page.
    /// - Parameter token: The gateway's token for the page that follows.
    /// - Returns: nil if it is not the next page: of another folder, out of order, or followed by itself.
    /// - Throws: ``StorageError`` if the list has only had empty pages for too long.
    func next(folders: [String], objects: [String], token: String?)
        throws(StorageError) -> ListPosition?
    {
        guard let folder = last(folders, after: folder), let object = last(objects, after: object),
            token == nil || token != self.token
        else { return nil }
        let empty = folders.isEmpty && objects.isEmpty ? emptyPages + 1 : 0
        guard token == nil || empty <= ListPosition.maximumEmptyPages else {
            throw StorageError(
                .internalError,
                "The list has had no names for \(empty) pages, and does not end.")
        }
        return ListPosition(prefix: prefix, token: token, folder: folder, object: object, emptyPages: empty)
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
