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
    /// For each line, the byte and the code point with which it begins.
    private let lines: [(byte: Int, point: Int)]

    init(_ source: String, fileName: String) {
        self.fileName = fileName
        bytes = Array(source.utf8)
        var lines = [(byte: 0, point: 0)]
        var points = 0
        for (index, byte) in bytes.enumerated() {
            if byte & 0xC0 != 0x80 { points += 1 }
            if byte == UInt8(ascii: "\n") { lines.append((index + 1, points)) }
        }
        self.lines = lines
    }

    func position(_ byte: Int32) -> SourcePosition {
        let byte = min(Int(byte), bytes.count)
        var (low, high) = (0, lines.count)
        while high - low > 1 {
            let middle = (low + high) / 2
            if lines[middle].byte <= byte { low = middle } else { high = middle }
        }
        let column = bytes[lines[low].byte..<byte].count { $0 & 0xC0 != 0x80 }
        return SourcePosition(line: low + 1, column: column + 1, offset: lines[low].point + column)
    }

    func range(_ span: Span32) -> Range<SourcePosition> {
        position(span.start)..<position(max(span.start, span.end))
    }

    /// The text of a span.
    func text(_ span: Span32) -> String {
        let end = min(Int(span.end), bytes.count)
        return String(decoding: bytes[min(Int(span.start), end)..<end], as: UTF8.self)
    }

    /// The number of lines.
    var lineCount: Int { lines.count }

    /// The text of a line, counted from 1, without its end.
    func line(_ number: Int) -> String {
        let start = lines[number - 1].byte
        var end = number < lines.count ? lines[number].byte - 1 : bytes.count
        if end > start, bytes[end - 1] == UInt8(ascii: "\r") { end -= 1 }
        return String(decoding: bytes[start..<end], as: UTF8.self)
    }
}

extension SourcePosition: Comparable {
    public static func < (left: SourcePosition, right: SourcePosition) -> Bool {
        left.offset < right.offset
    }
}
