import Wire

/// A `Range` field (RFC 9110, section 14.2).
public enum ByteRange: Equatable, Sendable {
    /// From an offset to a last byte; nil means the end.
    case from(UInt64, through: UInt64?)
    /// The last bytes of the object, by their number.
    case suffix(UInt64)

    /// The part of an object to send.
    public enum Selection: Equatable, Sendable {
        /// The whole object.
        case whole
        /// A part: not empty and within the object.
        case part(Range<UInt64>)
        /// The range lies outside the object: respond with 416.
        case unsatisfiable
    }

    /// The single range of a request; nil if several `Range` lines form a list.
    package init?(_ fields: HeaderFields) {
        guard let text = fields.list("range") else { return nil }
        self.init(Array(text.utf8)[...])
    }

    /// Parses a single range. nil (the whole body) for several ranges, other units and malformed fields.
    package init?(_ field: ArraySlice<UInt8>) {
        let text = ASCII.trimmed(field)
        guard let equals = text.firstIndex(of: UInt8(ascii: "=")) else { return nil }
        let unit = text[..<equals]
        guard ASCII.isEqual(unit.span, ignoringCase: "bytes") else { return nil }
        let ranges = text[(equals + 1)...].split(separator: UInt8(ascii: ","))
            .map(ASCII.trimmed).filter { !$0.isEmpty }
        guard ranges.count == 1, let range = ranges.first,
            let dash = range.firstIndex(of: UInt8(ascii: "-"))
        else { return nil }
        let first = range[..<dash]
        let last = range[(dash + 1)...]
        if first.isEmpty {
            guard let length = Decimal.saturating(last) else { return nil }
            self = .suffix(length)
            return
        }
        guard let start = Decimal.saturating(first) else { return nil }
        if last.isEmpty {
            self = .from(start, through: nil)
            return
        }
        guard let end = Decimal.saturating(last), start <= end else { return nil }
        self = .from(start, through: end)
    }

    /// Applies the range to an object of `size` bytes.
    public func select(size: UInt64) -> Selection {
        switch self {
        case .from(let start, let last):
            guard start < size else { return .unsatisfiable }
            let end = min(last ?? size - 1, size - 1)
            return .part(start..<end + 1)
        case .suffix(let length):
            if length == 0 { return .unsatisfiable }
            return size == 0 ? .whole : .part(size - min(length, size)..<size)
        }
    }
}
