import Glibc
import System
import Wire

/// Builds one log line in a buffer that it owns.
///
/// Untrusted text is appended only with ``quoted(_:)`` or ``word(_:)``. They redact secrets and escape characters that
/// could end the line, close a quote, move a terminal's cursor or change the text direction. So a value can't look like
/// another line or field.
package struct LogLine: ~Copyable {
    /// The maximum length of a text in bytes. Longer text is cut and ends in `…`.
    package static let longestText = 4096
    private var start: UnsafeMutablePointer<UInt8>
    private var capacity = 512
    /// The number of bytes.
    package private(set) var count = 0

    package init() { start = .allocate(capacity: capacity) }

    deinit { start.deallocate() }

    /// Calls `body` with the bytes of the line.
    package borrowing func withBytes(_ body: (UnsafeBufferPointer<UInt8>) -> Void) {
        body(UnsafeBufferPointer(start: start, count: count))
    }

    /// A copy of the bytes.
    package var bytes: [UInt8] { Array(UnsafeBufferPointer(start: start, count: count)) }

    /// Extends the line by `extra` uninitialized bytes, which the caller writes.
    @inline(__always)
    private mutating func extend(_ extra: Int) -> UnsafeMutablePointer<UInt8> {
        if count + extra > capacity { grow(count + extra) }
        defer { count += extra }
        return start + count
    }

    @inline(never)
    private mutating func grow(_ wanted: Int) {
        capacity = max(2 * capacity, wanted)
        let larger = UnsafeMutablePointer<UInt8>.allocate(capacity: capacity)
        larger.update(from: start, count: count)
        start.deallocate()
        start = larger
    }

    /// Appends trusted text unchanged.
    @inline(__always)
    package mutating func raw(_ text: StaticString) {
        extend(text.utf8CodeUnitCount).update(from: text.utf8Start, count: text.utf8CodeUnitCount)
    }

    /// Appends one trusted byte.
    @inline(__always)
    package mutating func byte(_ byte: UInt8) { extend(1).pointee = byte }

    /// Appends a number in decimal, right-aligned to `width` with spaces.
    package mutating func number(_ value: UInt64, width: Int = 1) {
        var length = 1
        var rest = value
        while rest >= 10 {
            rest /= 10
            length += 1
        }
        if length < width {
            extend(width - length).update(repeating: UInt8(ascii: " "), count: width - length)
        }
        digits(value, length)
    }

    /// Appends a number with exactly `count` digits, padded with zeros.
    @inline(__always)
    package mutating func digits(_ value: UInt64, _ count: Int) {
        let output = extend(count)
        var value = value
        var index = count
        while index > 0 {
            index -= 1
            output[index] = UInt8(ascii: "0") &+ UInt8(truncatingIfNeeded: value % 10)
            value /= 10
        }
    }

    /// Appends nanoseconds as milliseconds with three decimals.
    package mutating func milliseconds(_ nanoseconds: UInt64, width: Int = 1) {
        let microseconds = nanoseconds / 1000
        number(microseconds / 1000, width: width)
        byte(UInt8(ascii: "."))
        digits(microseconds % 1000, 3)
    }

    /// Appends spaces until the line is `start + width` bytes long.
    package mutating func pad(from start: Int, to width: Int) {
        while count - start < width { byte(UInt8(ascii: " ")) }
    }

    /// Appends a time in RFC 3339 format, in UTC, with milliseconds.
    package mutating func time(_ time: timespec) {
        let date = CivilDate(seconds: Int64(max(0, time.tv_sec)))
        digits(UInt64(date.year), 4, "-")
        digits(UInt64(date.month), 2, "-")
        digits(UInt64(date.day), 2, "T")
        digits(UInt64(date.hour), 2, ":")
        digits(UInt64(date.minute), 2, ":")
        digits(UInt64(date.second), 2, ".")
        digits(UInt64(time.tv_nsec) / 1_000_000, 3, "Z")
    }

    private mutating func digits(_ value: UInt64, _ count: Int, _ end: Unicode.Scalar) {
        digits(value, count)
        byte(UInt8(ascii: end))
    }

    /// Appends the current time.
    package mutating func now() {
        time(SystemClock.time())
    }

    // MARK: Untrusted text

    /// Appends a text as a JSON string, redacted.
    package mutating func quoted(_ text: String) {
        let span = text.utf8.span
        byte(UInt8(ascii: "\""))
        if LogLine.isPlain(span) {
            copy(span, 0..<span.count)
        } else if let clean = LogRedaction.redacted(span) {
            escape(clean.span)
        } else {
            escape(span)
        }
        byte(UInt8(ascii: "\""))
    }

    /// A text without its secrets, for other places than the log.
    package static func redacted(_ text: String) -> String {
        let span = text.utf8.span
        guard !isPlain(span), let clean = LogRedaction.redacted(span) else { return text }
        return String(decoding: clean, as: UTF8.self)
    }

    /// Appends a text without quotes if it is one word of visible ASCII without `"`, `\` and `=`, and otherwise as a
    /// JSON string. Secrets are redacted in both cases.
    package mutating func word(_ text: String) {
        let span = text.utf8.span
        guard !span.isEmpty, LogLine.isWord(span), LogRedaction.redacted(span) == nil else {
            return quoted(text)
        }
        copy(span, 0..<span.count)
    }

    /// Appends a text of several lines, each redacted, indented and on its own line. A log line begins without a space,
    /// so none of them looks like one. Quotes and backslashes stay as they are.
    package mutating func paragraph(_ text: String) {
        var text = text[...]
        while text.utf8.last == UInt8(ascii: "\n") { text.removeLast() }
        let span = text.utf8.span
        raw(LogLine.indentedLine)
        if let clean = LogRedaction.redacted(span) {
            escape(clean.span, keepsLines: true)
        } else {
            escape(span, keepsLines: true)
        }
    }

    private static let indentedLine: StaticString = "\n    "

    /// Whether a text has nothing to escape and no byte that ``LogRedaction`` looks for: the common case.
    private static func isPlain(_ text: Span<UInt8>) -> Bool {
        guard text.count <= longestText else { return false }
        for index in text.indices {
            switch text[index] {
            case UInt8(ascii: "/") where LogRedaction.isUploadRoot(text, before: index): return false
            // All visible ASCII except " % + : = J \ _.
            case 0x21, 0x23, 0x24, 0x26...0x2a, 0x2c...0x39, 0x3b, 0x3c, 0x3e...0x49, 0x4b...0x5b,
                0x5d, 0x5e, 0x60...0x7e:
                continue
            default: return false
            }
        }
        return true
    }

    private static func isWord(_ text: Span<UInt8>) -> Bool {
        guard text.count <= longestText else { return false }
        for index in text.indices {
            switch text[index] {
            case UInt8(ascii: "\""), UInt8(ascii: "\\"), UInt8(ascii: "="): return false
            case 0x21...0x7e: continue
            default: return false
            }
        }
        return true
    }

    /// - Parameter keepsLines: Whether line feeds, quotes and backslashes are not escaped.
    private mutating func escape(_ text: Span<UInt8>, keepsLines: Bool = false) {
        var end = text.count
        if end > LogLine.longestText {
            end = LogLine.longestText
            while text[end] & 0xc0 == 0x80 { end -= 1 }
        }
        var start = 0
        var index = 0
        while index < end {
            let length = unsafeLength(text, index)
            let byte = text[index]
            if keepsLines, byte == UInt8(ascii: "\n") {
                copy(text, start..<index)
                raw(LogLine.indentedLine)
                start = index + 1
            } else if length > 0,
                !keepsLines || byte != UInt8(ascii: "\"") && byte != UInt8(ascii: "\\")
            {
                copy(text, start..<index)
                escapeOne(text, index, length)
                start = index + length
            }
            index += max(1, length)
        }
        copy(text, start..<end)
        if end < text.count { raw("…") }
    }

    /// Appends a part of a text unchanged. The part must have nothing to redact or escape.
    package mutating func copy(_ text: Span<UInt8>, _ range: Range<Int>) {
        let output = extend(range.count)
        text.extracting(range).withUnsafeBufferPointer { bytes in
            if let first = bytes.baseAddress { output.update(from: first, count: bytes.count) }
        }
    }

    /// The length in bytes of the character at `index` if it must be escaped, otherwise 0.
    private func unsafeLength(_ text: Span<UInt8>, _ index: Int) -> Int {
        switch text[index] {
        case 0x00..<0x20, 0x7f, UInt8(ascii: "\""), UInt8(ascii: "\\"): return 1
        // U+0080…U+009F, the C1 control characters.
        case 0xc2: return text[index + 1] < 0xa0 ? 2 : 0
        case 0xe2:
            // U+200E, U+200F, U+2028…U+202E and U+2066…U+2069: line separators and direction marks.
            let isFirst = text[index + 1] == 0x80
            let last = text[index + 2]
            if isFirst, last == 0x8e || last == 0x8f || (0xa8...0xae).contains(last) { return 3 }
            return text[index + 1] == 0x81 && (0xa6...0xa9).contains(last) ? 3 : 0
        default: return 0
        }
    }

    private mutating func escapeOne(_ text: Span<UInt8>, _ index: Int, _ length: Int) {
        let first = text[index]
        byte(UInt8(ascii: "\\"))
        if first == UInt8(ascii: "\"") || first == UInt8(ascii: "\\") { return byte(first) }
        if first == UInt8(ascii: "\n") { return byte(UInt8(ascii: "n")) }
        var scalar = UInt32(first)
        if length == 2 { scalar = UInt32(first & 0x1f) << 6 | UInt32(text[index + 1] & 0x3f) }
        if length == 3 {
            scalar =
                UInt32(first & 0x0f) << 12 | UInt32(text[index + 1] & 0x3f) << 6
                | UInt32(text[index + 2] & 0x3f)
        }
        byte(UInt8(ascii: "u"))
        for shift in [12, 8, 4, 0] as [UInt32] {
            let digit = UInt8(scalar >> shift & 0xf)
            byte(digit < 10 ? UInt8(ascii: "0") + digit : UInt8(ascii: "a") + digit - 10)
        }
    }
}
