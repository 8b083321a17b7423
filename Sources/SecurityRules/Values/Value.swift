import Wire

/// A value of the rules language as callers supply it: a claim, a document field or a property of an object.
public enum Value: Sendable, Hashable {
    /// `null`.
    case null
    /// `true` or `false`.
    case bool(Bool)
    /// A signed integer of 64 bits.
    case int(Int64)
    /// An IEEE 754 double.
    case float(Double)
    /// A string.
    case string(String)
    /// Bytes.
    case bytes([UInt8])
    /// A list.
    case list([Value])
    /// A map. Its keys are compared by their bytes.
    case map([Key: Value])
    /// A path, by its segments.
    case path([String])
    /// A moment in time.
    case timestamp(Timestamp)
    /// A duration.
    case duration(TimeSpan)
    /// A geographical position in degrees: latitude in -90...90, longitude in -180...180.
    case latlng(latitude: Double, longitude: Double)

    /// The key of a map, whose type's module users of the library do not import: make one by its initializer from a
    /// `String`, or write a literal.
    public typealias Key = BytewiseString

    /// A JSON number: an int if it is integral, as the hosted service reads claims and documents.
    public init(number: Double) {
        self = Int64(exactly: number).map(Value.int) ?? .float(number)
    }
}

extension Value: ExpressibleByStringLiteral, ExpressibleByIntegerLiteral, ExpressibleByFloatLiteral,
    ExpressibleByBooleanLiteral, ExpressibleByNilLiteral, ExpressibleByArrayLiteral, ExpressibleByDictionaryLiteral
{
    public init(stringLiteral value: String) { self = .string(value) }
    public init(integerLiteral value: Int64) { self = .int(value) }
    public init(floatLiteral value: Double) { self = .float(value) }
    public init(booleanLiteral value: Bool) { self = .bool(value) }
    public init(nilLiteral: ()) { self = .null }
    public init(arrayLiteral elements: Value...) { self = .list(elements) }
    public init(dictionaryLiteral elements: (Key, Value)...) {
        self = .map(Dictionary(elements) { $1 })
    }
}
