/// A value during evaluation, or a placeholder for one: an error, or an input that is not known yet.
///
/// Three machine words. Scalars, slices of the request's strings and literals need no allocation.
enum Datum: Sendable {
    case null
    case bool(Bool)
    case int(Int64)
    case float(Double)
    case string(Text)
    case bytes([UInt8])
    case list([Datum])
    case set([Datum])
    case map([MapEntry])
    case mapDiff(MapDiff)
    case path(PathValue)
    /// A range of segments of the request's own path.
    case requestPath(Int32, Int32)
    case timestamp(Timestamp)
    case duration(TimeSpan)
    case latlng(Double, Double)
    /// `request`, `request.resource` or `resource`. They are read property by property.
    case record(Record)
    case unknown(Unknown)
    case failure(Failure)
}

/// The objects with properties that are not copied as a whole.
enum Record: UInt8, Sendable {
    case request
    case incoming
    case existing
}

/// A value that depends on inputs not known yet.
struct Unknown: Sendable, Equatable {
    /// The inputs that it depends on.
    var bits: InputBits
    /// Whether the value may turn out to be an error.
    var mayFail: Bool
}

/// An evaluation error. The recorder keeps the message for its node.
struct Failure: Sendable, Equatable {
    var node: Int32
}

struct MapEntry: Sendable {
    var key: Text
    var value: Datum
    /// Its index in source order.
    var order: Int32 = 0
}

/// The difference of two maps: the keys that were added, removed, changed or kept.
final class MapDiff: Sendable {
    let added: [Datum]
    let removed: [Datum]
    let changed: [Datum]
    let unchanged: [Datum]

    init(added: [Datum], removed: [Datum], changed: [Datum], unchanged: [Datum]) {
        self.added = added
        self.removed = removed
        self.changed = changed
        self.unchanged = unchanged
    }
}

/// A path that was created by rules.
final class PathValue: Sendable {
    enum Segment: Sendable, Equatable {
        case text(Text)
        /// `{name}`, which `bind` replaces.
        case binding(Text)

        /// The segment as text.
        var text: Text {
            switch self {
            case .text(let text): text
            case .binding(let name): Text("{\(name.string)}")
            }
        }
    }

    let segments: [Segment]
    /// The values that `bind` inserted, by name, sorted.
    let bound: [MapEntry]

    init(_ segments: [Segment], bound: [MapEntry] = []) {
        self.segments = segments
        self.bound = bound
    }

    /// Splits text at slashes. A slash at either end is ignored, and `{name}` is a binding. Empty segments inside are
    /// kept: no document or object has such a path.
    convenience init(parsing text: Text) {
        let slash = UInt8(ascii: "/")
        var bytes = text.bytes[...]
        if bytes.first == slash { bytes.removeFirst() }
        if bytes.last == slash { bytes.removeLast() }
        let parts = bytes.isEmpty ? [] : bytes.split(separator: slash, omittingEmptySubsequences: false)
        self.init(
            parts.map { part in
                if part.first == UInt8(ascii: "{"), part.last == UInt8(ascii: "}"), part.count > 2 {
                    return .binding(Text(Array(part.dropFirst().dropLast())))
                }
                return .text(Text(Array(part)))
            })
    }
}

/// The types of the language.
enum TypeName: String, Sendable, CaseIterable {
    case null, bool, int, float, string, bytes, list, set, map
    case mapDiff = "map_diff"
    case path, timestamp, duration, latlng
    /// `int` or `float`; only for `is`.
    case number
    /// The checker's type of conditions. No value has it.
    case constraint

    /// A dense number, for table lookups.
    var index: Int {
        switch self {
        case .null: 0
        case .bool: 1
        case .int: 2
        case .float: 3
        case .string: 4
        case .bytes: 5
        case .list: 6
        case .set: 7
        case .map: 8
        case .mapDiff: 9
        case .path: 10
        case .timestamp: 11
        case .duration: 12
        case .latlng: 13
        case .number: 14
        case .constraint: 15
        }
    }

    /// A set of types.
    struct Mask: Sendable {
        private var bits: UInt16 = 0

        /// Parses a list of types such as `int|float`. An empty list means any type.
        init(types: String) {
            if types.isEmpty { bits = .max }
            for type in types.split(separator: "|").compactMap({ TypeName(rawValue: String($0)) }) {
                bits |= 1 << UInt16(type.index)
            }
        }

        func contains(_ type: TypeName) -> Bool { bits & 1 << UInt16(type.index) != 0 }
    }
}

extension Datum {
    /// The type; nil for a placeholder.
    var type: TypeName? {
        switch self {
        case .null: .null
        case .bool: .bool
        case .int: .int
        case .float: .float
        case .string: .string
        case .bytes: .bytes
        case .list: .list
        case .set: .set
        case .map, .record: .map
        case .mapDiff: .mapDiff
        case .path, .requestPath: .path
        case .timestamp: .timestamp
        case .duration: .duration
        case .latlng: .latlng
        case .unknown, .failure: nil
        }
    }

    var typeName: String { type?.rawValue ?? "error" }

    init(_ value: Value) {
        switch value {
        case .null: self = .null
        case .bool(let value): self = .bool(value)
        case .int(let value): self = .int(value)
        case .float(let value): self = .float(value)
        case .string(let value): self = .string(Text(value))
        case .bytes(let value): self = .bytes(value)
        case .list(let values): self = .list(values.map(Datum.init))
        case .map(let values):
            var entries = values.map { MapEntry(key: Text($0.key.text), value: Datum($0.value)) }
            entries.putInOrder()
            self = .map(entries)
        case .path(let segments): self = .path(PathValue(segments.map { .text(Text($0)) }))
        case .timestamp(let value): self = .timestamp(value)
        case .duration(let value): self = .duration(value)
        case .latlng(let latitude, let longitude): self = .latlng(latitude, longitude)
        }
    }

    /// Creates a map, sorted by key, from entries in source order. For a duplicate key, the first entry determines the
    /// index and the last one the value.
    static func makeMap(_ entries: [MapEntry]) -> Datum {
        var sorted: [MapEntry] = []
        sorted.reserveCapacity(entries.count)
        let order = entries.indices.sorted {
            entries[$0].key == entries[$1].key
                ? $0 < $1 : entries[$0].key.precedes(entries[$1].key)
        }
        for index in order {
            if let last = sorted.last, last.key == entries[index].key {
                sorted[sorted.count - 1].value = entries[index].value
            } else {
                var entry = entries[index]
                entry.order = Int32(index)
                sorted.append(entry)
            }
        }
        return .map(sorted)
    }
}

extension [MapEntry] {
    /// Sorts the entries by key and numbers them in that order, for a map that has no source order.
    mutating func putInOrder() {
        sort { $0.key.precedes($1.key) }
        for index in indices { self[index].order = Int32(index) }
    }

    /// Looks up a key in a sorted map.
    subscript(key: Text) -> Datum? {
        if count <= 8 {
            for entry in self where entry.key == key { return entry.value }
            return nil
        }
        var (low, high) = (0, count)
        while low < high {
            let middle = (low + high) / 2
            if self[middle].key.precedes(key) { low = middle + 1 } else { high = middle }
        }
        return low < count && self[low].key == key ? self[low].value : nil
    }
}
