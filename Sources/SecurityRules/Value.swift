/// A value of the language, as callers give it: a claim, a field of a document, a property of an object.
public enum Value: Sendable, Hashable {
    /// `null`.
    case null
    /// `true` or `false`.
    case bool(Bool)
    /// A signed integer of 64 bits.
    case int(Int64)
    /// A double.
    case float(Double)
    /// A string.
    case string(String)
    /// Bytes.
    case bytes([UInt8])
    /// Values in order.
    case list([Value])
    /// Values by name.
    case map([String: Value])
    /// A path, by its segments.
    case path([String])
    /// A moment.
    case timestamp(Timestamp)
    /// A length of time.
    case duration(TimeSpan)
    /// A place on Earth, in degrees: latitude in -90...90, longitude in -180...180.
    case latlng(latitude: Double, longitude: Double)

    /// A number of JSON: an integer where it is one, as the hosted service reads claims and documents.
    public init(number: Double) {
        self = Int64(exactly: number).map(Value.int) ?? .float(number)
    }
}

extension Value: ExpressibleByStringLiteral, ExpressibleByIntegerLiteral, ExpressibleByFloatLiteral,
    ExpressibleByBooleanLiteral, ExpressibleByNilLiteral, ExpressibleByArrayLiteral,
    ExpressibleByDictionaryLiteral
{
    public init(stringLiteral value: String) { self = .string(value) }
    public init(integerLiteral value: Int64) { self = .int(value) }
    public init(floatLiteral value: Double) { self = .float(value) }
    public init(booleanLiteral value: Bool) { self = .bool(value) }
    public init(nilLiteral: ()) { self = .null }
    public init(arrayLiteral elements: Value...) { self = .list(elements) }
    public init(dictionaryLiteral elements: (String, Value)...) {
        self = .map(Dictionary(elements) { $1 })
    }
}
