/// A part of a source file, in bytes of its UTF-8.
struct Span32: Sendable, Equatable {
    var start: Int32
    var end: Int32

    init(_ start: Int, _ end: Int) {
        self.start = Int32(start)
        self.end = Int32(end)
    }

    /// From the beginning of one to the end of another.
    init(from first: Span32, to last: Span32) {
        start = first.start
        end = max(first.end, last.end)
    }
}

/// A position in a source file, counted in code points.
public struct SourcePosition: Sendable, Hashable {
    /// The line, from 1.
    public var line: Int
    /// The column, from 1.
    public var column: Int
    /// The distance from the beginning of the file, from 0.
    public var offset: Int
}

/// The source of one ruleset, with what it takes to say where something is in it.
struct SourceText: Sendable {
    let fileName: String
    let bytes: [UInt8]
    /// The bytes with which lines begin.
    private let lines: [Int]
    /// How many code points come before every 64th byte.
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

    /// How many code points come before a byte.
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

    /// The text of a line, counted from 1, without its end.
    func line(_ number: Int) -> String {
        let start = lines[number - 1]
        var end = number < lines.count ? lines[number] - 1 : bytes.count
        if end > start, bytes[end - 1] == UInt8(ascii: "\r") { end -= 1 }
        return String(decoding: bytes[start..<end], as: UTF8.self)
    }
}

extension SourcePosition: Comparable {
    public static func < (left: SourcePosition, right: SourcePosition) -> Bool {
        left.offset < right.offset
    }
}
