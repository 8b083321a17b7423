#if canImport(Glibc)
    import Glibc
#else
    import Darwin
#endif

/// A text that is compared and ordered by its bytes.
///
/// Swift compares by canonical equivalence: "é" as one code point equals "é" as two. Stores differ.
public struct BytewiseString: Sendable, Hashable, Comparable, ExpressibleByStringLiteral,
    CustomStringConvertible
{
    /// The text itself.
    public let text: String

    public init(_ text: String) { self.text = text }

    public init(stringLiteral text: String) { self.text = text }

    /// The bytes of the text.
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
        // Separates the parts of a compound value: ("a", "bc") must not hash like ("ab", "c").
        hasher.combine(0xff as UInt8)
    }

    /// Whether two texts have the same bytes.
    package static func areEqual(_ left: String, _ right: String) -> Bool {
        // Most texts differ in length, which is cheaper to compare.
        guard left.utf8.count == right.utf8.count else { return false }
        return left.utf8.span.withUnsafeBufferPointer { left in
            right.utf8.span.withUnsafeBufferPointer { right in
                // An empty text may have no address.
                left.isEmpty || memcmp(left.baseAddress!, right.baseAddress!, left.count) == 0
            }
        }
    }

    /// Whether a text has these bytes.
    package static func areEqual(_ text: String, _ bytes: UnsafeBufferPointer<UInt8>) -> Bool {
        guard text.utf8.count == bytes.count else { return false }
        return text.utf8.span.withUnsafeBufferPointer { text in
            text.isEmpty || memcmp(text.baseAddress!, bytes.baseAddress!, text.count) == 0
        }
    }

    /// A hash of the bytes (FNV-1a) for a cache of fixed size, where a collision costs one more lookup. Not for growing
    /// tables: an attacker can choose colliding names.
    package static func hash(of text: String, below count: Int) -> Int {
        var hash: UInt64 = 0xcbf2_9ce4_8422_2325
        let bytes = text.utf8.span
        for index in bytes.indices { hash = (hash ^ UInt64(bytes[index])) &* 0x100_0000_01b3 }
        return Int(truncatingIfNeeded: (hash ^ hash >> 32) % UInt64(count))
    }
}
