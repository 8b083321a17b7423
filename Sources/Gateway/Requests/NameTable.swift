import Wire

/// Values by name: a hash table of the operator's names, so nobody else can make names collide.
struct NameTable<Value: Sendable>: Sendable {
    private let lists: [[(name: String, value: Value)]]

    /// - Parameter values: If two have the same name, the last one counts.
    init(_ values: [(name: String, value: Value)]) {
        var lists = [[(name: String, value: Value)]](repeating: [], count: 2 * values.count + 1)
        for entry in values.reversed() {
            lists[BytewiseString.hash(of: entry.name, below: lists.count)].append(entry)
        }
        self.lists = lists
    }

    subscript(name: String) -> Value? {
        let list = lists[BytewiseString.hash(of: name, below: lists.count)]
        for entry in list where BytewiseString.areEqual(entry.name, name) { return entry.value }
        return nil
    }
}
