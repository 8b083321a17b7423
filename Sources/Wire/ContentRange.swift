/// A `Content-Range` in bytes with a known size (RFC 9110, section 14.4): `bytes 0-9/100`.
package struct ContentRange: Equatable, Sendable {
    /// The range of bytes sent.
    package var range: Range<UInt64>
    /// The complete length in bytes, at most `Int64.max`.
    package var size: UInt64

    /// nil if the text is malformed or inconsistent.
    package init?(_ text: Span<UInt8>) {
        let unit: StaticString = "bytes "
        let start = unit.utf8CodeUnitCount
        guard text.count > start, ASCII.hasPrefix(text, unit),
            let dash = ASCII.firstIndex(of: "-", in: text, from: start),
            let slash = ASCII.firstIndex(of: "/", in: text, from: dash),
            let first = Decimal.parse(text.extracting(start..<dash)),
            let last = Decimal.parse(text.extracting((dash + 1)..<slash)),
            let size = Decimal.parse(text.extracting((slash + 1)..<text.count), maximum: UInt64(Int64.max)),
            first <= last, last < size
        else { return nil }
        range = first..<last + 1
        self.size = size
    }

    /// nil if the text is malformed or inconsistent.
    package init?(_ text: String) { self.init(text.utf8.span) }
}
