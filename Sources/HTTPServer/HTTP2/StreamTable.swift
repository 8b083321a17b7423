/// The open streams of an HTTP/2 connection by their identifiers: a hash table with linear probing.
///
/// The callbacks look a stream up about six times per request, and `Dictionary` would spend most of that time on a hash
/// that resists chosen keys. Here a peer that chooses its identifiers gains nothing: there are never more entries than
/// ``ServerLimits/concurrentStreams`` allows, which bounds the longest search.
struct StreamTable {
    /// The position of an entry. Valid until an entry is inserted or removed.
    struct Index { fileprivate let slot: Int }

    /// The identifier in each slot; 0 if the slot is free. A power of two, at least twice as many as entries, so that a
    /// search always meets a free slot.
    private var ids: [Int32]
    private var entries: [HTTP2Stream?]
    private(set) var count = 0
    /// How many bits of a product of 32 bits don't number a slot.
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

    /// The positions of all entries, in no order.
    var indices: some Sequence<Index> {
        ids.indices.lazy.filter { [ids] in ids[$0] != 0 }.map { Index(slot: $0) }
    }

    /// All streams, in no order.
    var streams: some Sequence<ServerStream> { entries.lazy.compactMap { $0?.stream } }

    /// Adds a stream. Its identifier is not in the table, because a client uses each one once (RFC 9113, section 5.1.1).
    mutating func insert(_ entry: HTTP2Stream) {
        if count * 2 == ids.count { grow() }
        put(entry)
        count += 1
    }

    mutating func remove(_ id: Int32) -> HTTP2Stream? {
        var free = slot(of: id)
        guard let removed = entries[free] else { return nil }
        // Each entry behind whose search passes the free slot moves into it, and leaves its own free.
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

    /// The slot of the entry of `id`, or the free one where the search for it ends.
    private func slot(of id: Int32) -> Int {
        var slot = home(of: id)
        while ids[slot] != id, ids[slot] != 0 { slot = following(slot) }
        return slot
    }

    /// Where the search for `id` begins: the upper bits of a product (Fibonacci hashing), which spreads the numbers 1, 3, 5
    /// of a client so well that few entries stand beside each other.
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
