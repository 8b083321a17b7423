/// The open streams of an HTTP/2 connection by identifier: a hash table with linear probing. Callbacks look up a stream
/// about six times per request, and `Dictionary` would spend most of that time on its hash, which resists chosen keys.
/// Here a peer gains nothing by choosing identifiers: ``ServerLimits/concurrentStreams`` limits the entries and so the
/// longest search.
struct StreamTable {
    /// The position of an entry, valid until an entry is inserted or removed.
    struct Index { fileprivate let slot: Int }

    /// The identifier in each slot; 0 for a free one. The count is a power of two and at least twice the number of
    /// entries, so a search always reaches a free slot.
    private var ids: [Int32]
    private var entries: [HTTP2Stream?]
    private(set) var count = 0
    /// The number of low bits to drop from a 32-bit product to get a slot.
    private let shift: UInt32

    init() { self.init(capacity: 8) }

    private init(capacity: Int) {
        ids = Array(repeating: 0, count: capacity)
        entries = Array(repeating: nil, count: capacity)
        shift = UInt32(32 - capacity.trailingZeroBitCount)
    }

    var isEmpty: Bool { count == 0 }

    subscript(id: Int32) -> ServerStream? { entries[slot(of: id)]?.stream }

    subscript(index: Index) -> HTTP2Stream {
        get { entries[index.slot]! }
        _modify { yield &entries[index.slot]! }
    }

    func index(of id: Int32) -> Index? {
        let slot = slot(of: id)
        return ids[slot] == 0 ? nil : Index(slot: slot)
    }

    /// The positions of all entries, unordered.
    var indices: some Sequence<Index> {
        ids.indices.lazy.filter { [ids] in ids[$0] != 0 }.map { Index(slot: $0) }
    }

    /// All streams, unordered.
    var streams: some Sequence<ServerStream> { entries.lazy.compactMap { $0?.stream } }

    /// Adds a stream, whose identifier is new, because a client uses each one once (RFC 9113, section 5.1.1).
    mutating func insert(_ entry: HTTP2Stream) {
        if count * 2 == ids.count { grow() }
        put(entry)
        count += 1
    }

    mutating func remove(_ id: Int32) -> HTTP2Stream? {
        var free = slot(of: id)
        guard let removed = entries[free] else { return nil }
        // Move each following entry whose search passes the free slot into it, and free its own slot.
        var next = following(free)
        while ids[next] != 0 {
            if distance(home(of: ids[next]), next) >= distance(free, next) {
                ids[free] = ids[next]
                entries.swapAt(free, next)
                free = next
            }
            next = following(next)
        }
        ids[free] = 0
        entries[free] = nil
        count -= 1
        return removed
    }

    /// The slot of `id`, or the free one where its search ends.
    private func slot(of id: Int32) -> Int {
        var slot = home(of: id)
        while ids[slot] != id, ids[slot] != 0 { slot = following(slot) }
        return slot
    }

    /// The start of the search for `id`: the high bits of a product (Fibonacci hashing), which spreads a client's
    /// numbers 1, 3, 5 so well that few entries are adjacent.
    private func home(of id: Int32) -> Int {
        Int((UInt32(bitPattern: id) &* 0x9e37_79b1) >> shift)
    }

    private func following(_ slot: Int) -> Int { (slot + 1) & (ids.count - 1) }

    private func distance(_ from: Int, _ to: Int) -> Int { (to - from) & (ids.count - 1) }

    private mutating func put(_ entry: HTTP2Stream) {
        let slot = slot(of: entry.stream.id)
        assert(ids[slot] == 0, "a client uses a stream's identifier once")
        ids[slot] = entry.stream.id
        entries[slot] = entry
    }

    private mutating func grow() {
        var larger = StreamTable(capacity: ids.count * 2)
        for case let entry? in entries { larger.put(entry) }
        larger.count = count
        self = larger
    }
}
