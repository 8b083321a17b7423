import Wire

/// Values by name: a hash table of the operator's names, so clients can't make names collide.
struct NameTable<Value: Sendable>: Sendable {
    /// With linear probing. At least half of them are nil, so that every search ends.
    private let entries: [(name: String, value: Value)?]

    /// - Parameter values: If two have the same name, the last one counts.
    init(_ values: [(name: String, value: Value)]) {
        var entries = [(name: String, value: Value)?](repeating: nil, count: 2 * values.count + 1)
        for entry in values {
            var slot = BytewiseString.hash(of: entry.name, below: entries.count)
            while let other = entries[slot], !BytewiseString.areEqual(other.name, entry.name) {
                slot = (slot + 1) % entries.count
            }
            entries[slot] = entry
        }
        self.entries = entries
    }

    /// In no particular order.
    var values: [Value] { entries.compactMap { $0?.value } }

    subscript(name: String) -> Value? {
        var slot = BytewiseString.hash(of: name, below: entries.count)
        while entries[slot] != nil {
            if BytewiseString.areEqual(entries[slot]!.name, name) { return entries[slot]!.value }
            slot += 1
            if slot == entries.count { slot = 0 }
        }
        return nil
    }
}
