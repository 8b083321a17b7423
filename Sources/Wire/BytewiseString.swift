/// A text that equals another only where their bytes are the same, and is ordered by them.
///
/// Swift's strings are equal already where they look the same (canonical equivalence): "é" in one code point and in
/// two. To a store these are two names.
public struct BytewiseString: Sendable, Hashable, Comparable, ExpressibleByStringLiteral,
    CustomStringConvertible
{
    /// The text itself.
    public let text: String

    public init(_ text: String) { self.text = text }

    public init(stringLiteral text: String) { self.text = text }

    /// The bytes that count.
    public var utf8: String.UTF8View { text.utf8 }

    public var description: String { text }

    public static func == (left: BytewiseString, right: BytewiseString) -> Bool {
        areEqual(left.text, right.text)
    }

    public static func < (left: BytewiseString, right: BytewiseString) -> Bool {
        left.utf8.lexicographicallyPrecedes(right.utf8)
    }

    public func hash(into hasher: inout Hasher) {
        var text = text
        text.withUTF8 { hasher.combine(bytes: UnsafeRawBufferPointer($0)) }
        // So that neighbours in a compound value do not run into each other.
        hasher.combine(0xff as UInt8)
    }

    /// Whether two texts have the same bytes.
    package static func areEqual(_ left: String, _ right: String) -> Bool {
        // Most texts differ in length, which costs less to read than their bytes.
        guard left.utf8.count == right.utf8.count else { return false }
        let (left, right) = (left.utf8.span, right.utf8.span)
        for index in left.indices where left[index] != right[index] { return false }
        return true
    }

    /// A number from the bytes (FNV-1a) for places in a cache, where a collision costs a look elsewhere. Not for tables
    /// that grow: names can be made that collide.
    package static func hash(of text: String, below count: Int) -> Int {
        var hash: UInt64 = 0xcbf2_9ce4_8422_2325
        let bytes = text.utf8.span
        for index in bytes.indices { hash = (hash ^ UInt64(bytes[index])) &* 0x100_0000_01b3 }
        return Int(truncatingIfNeeded: (hash ^ hash >> 32) % UInt64(count))
    }
}
