/// The string type of the language: a slice of shared bytes. Splitting a name into segments copies nothing.
///
/// The bytes are UTF-8. A lone surrogate, which slicing by UTF-16 index can produce, is encoded in three bytes as if it
/// were a character. Texts are equal if their bytes are equal; there is no Unicode normalization.
struct Text: Sendable {
    private let storage: [UInt8]
    private let start: Int32
    private let end: Int32

    init(_ bytes: [UInt8]) {
        storage = bytes
        start = 0
        end = Int32(clamping: bytes.count)
    }

    init(_ string: String) { self.init(Array(string.utf8)) }

    private init(_ storage: [UInt8], _ start: Int32, _ end: Int32) {
        self.storage = storage
        self.start = start
        self.end = end
    }

    /// The length in bytes.
    var count: Int { Int(end &- start) }

    var isEmpty: Bool { start == end }

    /// The byte at an index. The caller must check that the index is within the text.
    subscript(index: Int) -> UInt8 { storage[Int(start) + index] }

    /// A slice by byte offsets within the text. It shares the storage.
    func slice(_ range: Range<Int>) -> Text {
        precondition(range.upperBound <= count)
        return Text(storage, start + Int32(range.lowerBound), start + Int32(range.upperBound))
    }

    /// The bytes. They are copied unless the text covers its whole storage.
    var bytes: [UInt8] {
        count == storage.count ? storage : Array(storage[Int(start)..<Int(end)])
    }

    /// Calls `body` with the bytes.
    @inline(__always)
    func withSpan<Result>(_ body: (borrowing Span<UInt8>) -> Result) -> Result {
        body(storage.span.extracting(Int(start)..<Int(end)))
    }

    /// The text as a Swift string. Invalid UTF-8 becomes U+FFFD.
    var string: String { String(decoding: storage[Int(start)..<Int(end)], as: UTF8.self) }

    func hasPrefix(_ other: Text) -> Bool {
        count >= other.count && slice(0..<other.count) == other
    }

    func hasSuffix(_ other: Text) -> Bool {
        count >= other.count && slice(count - other.count..<count) == other
    }
}

extension Text: Hashable, Comparable, ExpressibleByStringLiteral {
    init(stringLiteral value: String) { self.init(value) }

    static func == (left: Text, right: Text) -> Bool {
        guard left.count == right.count else { return false }
        return left.withSpan { a in
            right.withSpan { b in
                var index = 0
                while index < a.count {
                    if a[index] != b[index] { return false }
                    index &+= 1
                }
                return true
            }
        }
    }

    /// Compares by UTF-16 code units, as the hosted service does. A character above U+FFFF begins with a surrogate
    /// there, so it sorts before U+E000…U+FFFF.
    static func < (left: Text, right: Text) -> Bool {
        left.withSpan { x in
            right.withSpan { y in
                let shorter = min(x.count, y.count)
                var index = 0
                while index < shorter, x[index] == y[index] { index &+= 1 }
                guard index < shorter else { return x.count < y.count }
                let (a, b) = (x[index], y[index])
                if a >= 0xEE, b >= 0xEE, (a >= 0xF0) != (b >= 0xF0) { return a >= 0xF0 }
                return a < b
            }
        }
    }

    /// Compares by code points, as the keys of maps are sorted. This is the order of the UTF-8 bytes.
    func precedes(_ other: Text) -> Bool {
        withSpan { x in
            other.withSpan { y in
                let shorter = min(x.count, y.count)
                var index = 0
                while index < shorter, x[index] == y[index] { index &+= 1 }
                return index < shorter ? x[index] < y[index] : x.count < y.count
            }
        }
    }

    func hash(into hasher: inout Hasher) {
        withSpan { bytes in
            hasher.combine(bytes.count)
            for index in bytes.indices { hasher.combine(bytes[index]) }
        }
    }
}

// MARK: UTF-16

extension Text {
    private var isASCII: Bool {
        withSpan { bytes in
            for index in bytes.indices where bytes[index] >= 0x80 { return false }
            return true
        }
    }

    /// The length in UTF-16 code units.
    var utf16Count: Int {
        withSpan { bytes in
            var total = 0
            for index in bytes.indices {
                let byte = bytes[index]
                if byte & 0xC0 != 0x80 { total += byte >= 0xF0 ? 2 : 1 }
            }
            return total
        }
    }

    /// The text between two UTF-16 indices, which must be ordered and within `0...utf16Count`.
    func utf16Slice(_ range: Range<Int>) -> Text {
        if isASCII { return slice(range) }
        var units = 0
        var result: [UInt8] = []
        var index = 0
        while index < count, units < range.upperBound {
            let lead = self[index]
            let length = min(Self.length(lead), count - index)
            let width = length == 4 ? 2 : 1
            switch (units >= range.lowerBound, units + width <= range.upperBound) {
            case (true, true): for offset in 0..<length { result.append(self[index + offset]) }
            case (true, false): result += surrogate(at: index, high: true)
            case (false, _):
                if units + width > range.lowerBound {
                    result += surrogate(at: index, high: false)
                }
            }
            units += width
            index += length
        }
        return Text(result)
    }

    /// The high or low surrogate of the four-byte character at `index`.
    private func surrogate(at index: Int, high: Bool) -> [UInt8] {
        var scalar = UInt32(self[index] & 0x07)
        for offset in 1..<4 { scalar = scalar << 6 | UInt32(self[index + offset] & 0x3F) }
        scalar -= 0x10000
        let half = high ? 0xD800 + (scalar >> 10) : 0xDC00 + (scalar & 0x3FF)
        return [
            UInt8(0xE0 | half >> 12), UInt8(0x80 | half >> 6 & 0x3F), UInt8(0x80 | half & 0x3F),
        ]
    }

    /// The number of bytes of a character, by its first byte.
    private static func length(_ lead: UInt8) -> Int {
        lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4
    }

    static func + (left: Text, right: Text) -> Text { Text(left.bytes + right.bytes) }
}
