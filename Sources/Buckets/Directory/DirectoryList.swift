import Wire

/// Lists by range seeks on the primary key, without scanning folded or hidden names.
extension IndexReader {
    /// One page, and its cost in steps of SQLite's virtual machine, which does not depend on the bucket's size.
    func list(_ query: ListQuery, after: String?) throws(SQLiteError) -> (ListPage, steps: Int) {
        let walk = ListWalk(query)
        let seek = query.withProperties ? seekListed : seek
        let before = seek.machineSteps
        defer { seek.reset() }
        var page = ListPage()
        var last = ""
        var start: [UInt8]? = walk.start(after: after)
        while let from = start {
            start = nil
            seek.reset()
            seek.bind(1, text: from)
            if query.withProperties { seek.bind(2, query.withS3Tags ? 1 : 0) }
            rows: while try seek.step() {
                let found = seek.withBytes(0) { walk.classify($0) }
                if found.isVisible {
                    if page.items.count + page.prefixes.count == query.limit {
                        page.end = last
                        break rows
                    }
                    last = found.name
                    if found.isPrefix {
                        page.prefixes.append(last)
                    } else {
                        page.items.append(last)
                        if query.withProperties {
                            page.properties[BytewiseString(last)] = IndexSchema.listed(seek)
                        }
                    }
                }
                if found.isEnd { break rows }
                if let next = found.skipTo {
                    start = next
                    break rows
                }
            }
        }
        return (page, seek.machineSteps - before)
    }
}

struct ListWalk {
    struct Found {
        /// Neither this name nor a later one belongs to the list.
        var isEnd = false
        var isVisible = false
        /// The entry is a folded name.
        var isPrefix = false
        var name = ""
        /// The name to continue at, if not the next one.
        var skipTo: [UInt8]?
    }

    private static let slash = UInt8(ascii: "/")
    private let prefix: [UInt8]
    private let delimited: Bool
    private let markers: Bool

    init(_ query: ListQuery) {
        prefix = [UInt8](query.prefix.utf8)
        delimited = query.delimited
        markers = query.markers
    }

    /// The lowest name that can follow `after`.
    func start(after: String?) -> [UInt8] {
        guard let after else { return prefix }
        let bytes = [UInt8](after.utf8)
        let isFolded =
            delimited && bytes.count > prefix.count && bytes.starts(with: prefix)
            && bytes[prefix.count...].firstIndex(of: ListWalk.slash) == bytes.count - 1
        let next = isFolded ? ListWalk.successor(bytes[...]) : bytes + [0]
        return next.lexicographicallyPrecedes(prefix) ? prefix : next
    }

    func classify(_ name: UnsafeRawBufferPointer) -> Found {
        guard name.starts(with: prefix) else { return Found(isEnd: true) }
        if delimited, let slash = name[prefix.count...].firstIndex(of: ListWalk.slash) {
            let folded = name[...slash]
            let next = ListWalk.successor(folded)
            guard ListWalk.emptySegment(folded) == nil, let text = ListWalk.text(folded) else {
                return Found(skipTo: next)
            }
            return Found(isVisible: true, isPrefix: true, name: text, skipTo: next)
        }
        if let hidden = ListWalk.emptySegment(name[...]) {
            // All names with this prefix are hidden, and the whole list is if its prefix is one of them.
            if hidden < prefix.count { return Found(isEnd: true) }
            return Found(skipTo: ListWalk.successor(name[...hidden]))
        }
        guard markers || name.last != ListWalk.slash, let text = ListWalk.text(name[...]) else {
            return Found()
        }
        return Found(isVisible: true, name: text)
    }

    /// nil if the bytes are not UTF-8: another program's name, which can't be requested here.
    private static func text(_ name: Slice<UnsafeRawBufferPointer>) -> String? {
        String(validating: UnsafeRawBufferPointer(rebasing: name), as: UTF8.self)
    }

    /// The lowest name after all that begin with `folded`, which ends in `/`: the byte after `/` is `0`.
    private static func successor(_ folded: some Collection<UInt8>) -> [UInt8] {
        Array(folded.dropLast()) + [slash + 1]
    }

    /// The index of the `/` that ends the first empty segment.
    private static func emptySegment(_ name: Slice<UnsafeRawBufferPointer>) -> Int? {
        var previous = slash
        for index in name.indices {
            if name[index] == slash && previous == slash { return index }
            previous = name[index]
        }
        return nil
    }
}
