/// A range of UTF-8 bytes of a source file.
struct Span32: Sendable, Equatable {
    var start: Int32
    var end: Int32

    init(_ start: Int, _ end: Int) {
        self.start = Int32(start)
        self.end = Int32(end)
    }

    /// A span from the start of one span to the end of another.
    init(from first: Span32, to last: Span32) {
        start = first.start
        end = max(first.end, last.end)
    }
}

extension Span32 {
    /// The first `count` bytes of the span.
    func prefix(_ count: Int) -> Span32 {
        Span32(Int(start), min(Int(end), Int(start) + count))
    }
}

/// A position in a source file, counted in code points.
public struct SourcePosition: Sendable, Hashable {
    /// The line, from 1.
    public var line: Int
    /// The column, from 1.
    public var column: Int
    /// The offset from the start of the file, from 0.
    public var offset: Int
}

/// The source of one ruleset, with the tables that map bytes to positions.
struct SourceText: Sendable {
    let fileName: String
    let bytes: [UInt8]
    /// The offset of the first byte of each line.
    private let lines: [Int]
    /// The number of code points before every 64th byte.
    private let points: [Int]

    init(_ source: String, fileName: String) {
        self.fileName = fileName
        bytes = Array(source.utf8)
        var lines = [0]
        var points: [Int] = []
        var count = 0
        for index in bytes.indices {
            if index % 64 == 0 { points.append(count) }
            if bytes[index] & 0xC0 != 0x80 { count += 1 }
            if bytes[index] == UInt8(ascii: "\n") { lines.append(index + 1) }
        }
        if bytes.count % 64 == 0 { points.append(count) }
        self.lines = lines
        self.points = points
    }

    /// The number of code points before a byte.
    private func codePoints(before byte: Int) -> Int {
        var count = points[byte / 64]
        for index in byte / 64 * 64..<byte where bytes[index] & 0xC0 != 0x80 { count += 1 }
        return count
    }

    func position(_ byte: Int32) -> SourcePosition {
        let byte = min(Int(byte), bytes.count)
        var (low, high) = (0, lines.count)
        while high - low > 1 {
            let middle = (low + high) / 2
            if lines[middle] <= byte { low = middle } else { high = middle }
        }
        let offset = codePoints(before: byte)
        let column = offset - codePoints(before: lines[low]) + 1
        return SourcePosition(line: low + 1, column: column, offset: offset)
    }

    func range(_ span: Span32) -> Range<SourcePosition> {
        position(span.start)..<position(max(span.start, span.end))
    }

    /// The text of a span.
    func text(_ span: Span32) -> String {
        let end = min(Int(span.end), bytes.count)
        return String(decoding: bytes[min(Int(span.start), end)..<end], as: UTF8.self)
    }

    /// All code points.
    var scalars: [Unicode.Scalar] { Array(String(decoding: bytes, as: UTF8.self).unicodeScalars) }

    /// The number of lines.
    var lineCount: Int { lines.count }

    /// The byte range of a line, counted from 1, without its line break.
    func lineBytes(_ number: Int) -> Range<Int> {
        let start = lines[number - 1]
        var end = number < lines.count ? lines[number] - 1 : bytes.count
        if end > start, bytes[end - 1] == UInt8(ascii: "\r") { end -= 1 }
        return start..<end
    }

    /// At most `count` code points from an offset within a byte range, and whether the range has more.
    func scalars(
        from offset: Int, most count: Int, within range: Range<Int>
    ) -> (scalars: [Unicode.Scalar], isCut: Bool) {
        let start = max(range.lowerBound, byte(ofPoint: offset))
        guard start < range.upperBound else { return ([], false) }
        // A code point has at most four bytes.
        let end = min(range.upperBound, start + 4 * count)
        let text = String(decoding: bytes[start..<end], as: UTF8.self).unicodeScalars
        let scalars = Array(text.prefix(count))
        return (scalars, start + scalars.reduce(0) { $0 + UTF8.width($1) } < range.upperBound)
    }

    /// The byte offset of a code point, counted from 0.
    private func byte(ofPoint offset: Int) -> Int {
        var (low, high) = (0, points.count)
        while high - low > 1 {
            let middle = (low + high) / 2
            if points[middle] <= offset { low = middle } else { high = middle }
        }
        var byte = low * 64
        var count = points.isEmpty ? 0 : points[low]
        while byte < bytes.count {
            if bytes[byte] & 0xC0 != 0x80 {
                if count == offset { break }
                count += 1
            }
            byte += 1
        }
        return byte
    }
}

extension SourcePosition: Comparable {
    public static func < (left: SourcePosition, right: SourcePosition) -> Bool {
        left.offset < right.offset
    }
}
