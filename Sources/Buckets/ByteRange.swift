import Wire

/// A `Range` field (RFC 9110, section 14.2).
public enum ByteRange: Equatable, Sendable {
    /// From an offset to the end, or to a last byte.
    case from(UInt64, through: UInt64?)
    /// So many bytes at the end.
    case suffix(UInt64)

    /// What is to be sent of an object.
    public enum Selection: Equatable, Sendable {
        /// All of it.
        case whole
        /// Not empty and within the object.
        case part(Range<UInt64>)
        /// 416.
        case unsatisfiable
    }

    /// Reads a single range. nil, that is the whole body, for several ranges, other units and whatever is malformed.
    package init?(_ field: ArraySlice<UInt8>) {
        let text = ASCII.trimmed(field)
        guard let equals = text.firstIndex(of: UInt8(ascii: "=")),
            text[..<equals].map(ASCII.lowercased).elementsEqual("bytes".utf8)
        else { return nil }
        let ranges = text[(equals + 1)...].split(separator: UInt8(ascii: ","))
            .map(ASCII.trimmed).filter { !$0.isEmpty }
        guard ranges.count == 1, let range = ranges.first,
            let dash = range.firstIndex(of: UInt8(ascii: "-"))
        else { return nil }
        let first = range[..<dash]
        let last = range[(dash + 1)...]
        if first.isEmpty {
            guard let length = ASCII.saturatingDecimal(last) else { return nil }
            self = .suffix(length)
            return
        }
        guard let start = ASCII.saturatingDecimal(first) else { return nil }
        if last.isEmpty {
            self = .from(start, through: nil)
            return
        }
        guard let end = ASCII.saturatingDecimal(last), start <= end else { return nil }
        self = .from(start, through: end)
    }

    /// What this selects of an object of `size` bytes.
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
