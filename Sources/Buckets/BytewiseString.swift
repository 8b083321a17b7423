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
        left.utf8.elementsEqual(right.utf8)
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
}
