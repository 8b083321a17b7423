import Glibc

/// Builds one log line in bytes of its own, which are freed with it.
///
/// Text that others chose goes in through ``quoted(_:)`` or ``word(_:)`` only, which redact it and escape whatever
/// could end the line, close a quote, move a terminal's cursor or turn the direction of reading: nothing inside a
/// value can look like another line or field.
struct LogLine: ~Copyable {
    /// Bytes of a text that are kept; what is longer ends in `…`.
    static let longestText = 4096
    private var start: UnsafeMutablePointer<UInt8>
    private var capacity = 512
    private(set) var count = 0

    init() { start = .allocate(capacity: capacity) }

    deinit { start.deallocate() }

    /// Lends what has been built.
    borrowing func withBytes(_ body: (UnsafeBufferPointer<UInt8>) -> Void) {
        body(UnsafeBufferPointer(start: start, count: count))
    }

    /// A copy of what has been built.
    var bytes: [UInt8] { Array(UnsafeBufferPointer(start: start, count: count)) }

    /// Makes room for `extra` bytes and moves the end behind them; the caller writes them.
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

    /// Appends text of our own, as it is.
    @inline(__always)
    mutating func raw(_ text: StaticString) {
        extend(text.utf8CodeUnitCount).update(from: text.utf8Start, count: text.utf8CodeUnitCount)
    }

    @inline(__always)
    mutating func byte(_ byte: UInt8) { extend(1).pointee = byte }

    /// Appends a number in decimal, right-aligned to `width` with spaces.
    mutating func number(_ value: UInt64, width: Int = 1) {
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

    /// Appends a number with exactly `count` digits, zeros in front.
    @inline(__always)
    mutating func digits(_ value: UInt64, _ count: Int) {
        let place = extend(count)
        var value = value
        var index = count
        while index > 0 {
            index -= 1
            place[index] = UInt8(ascii: "0") &+ UInt8(truncatingIfNeeded: value % 10)
            value /= 10
        }
    }

    /// Appends nanoseconds as milliseconds with three decimals.
    mutating func milliseconds(_ nanoseconds: UInt64, width: Int = 1) {
        let microseconds = nanoseconds / 1000
        number(microseconds / 1000, width: width)
        byte(UInt8(ascii: "."))
        digits(microseconds % 1000, 3)
    }

    /// Appends spaces until `width` bytes stand after the first `start`.
    mutating func pad(from start: Int, to width: Int) {
        while count - start < width { byte(UInt8(ascii: " ")) }
    }

    /// Appends a time as RFC 3339 says, in UTC, with milliseconds.
    mutating func time(_ time: timespec) {
        let seconds = UInt64(max(0, time.tv_sec))
        // Days to a date of the Gregorian calendar, in eras of 400 years that begin on 1 March.
        let days = seconds / 86400 + 719_468
        let dayOfEra = days % 146_097
        let yearOfEra = (dayOfEra - dayOfEra / 1460 + dayOfEra / 36524 - dayOfEra / 146_096) / 365
        let dayOfYear = dayOfEra - (365 * yearOfEra + yearOfEra / 4 - yearOfEra / 100)
        let shifted = (5 * dayOfYear + 2) / 153
        let month = shifted < 10 ? shifted + 3 : shifted - 9
        digits(yearOfEra + days / 146_097 * 400 + (month <= 2 ? 1 : 0), 4)
        byte(UInt8(ascii: "-"))
        digits(month, 2)
        byte(UInt8(ascii: "-"))
        digits(dayOfYear - (153 * shifted + 2) / 5 + 1, 2)
        byte(UInt8(ascii: "T"))
        digits(seconds / 3600 % 24, 2)
        byte(UInt8(ascii: ":"))
        digits(seconds / 60 % 60, 2)
        byte(UInt8(ascii: ":"))
        digits(seconds % 60, 2)
        byte(UInt8(ascii: "."))
        digits(UInt64(time.tv_nsec) / 1_000_000, 3)
        byte(UInt8(ascii: "Z"))
    }

    /// Appends the present time.
    mutating func now() {
        var time = timespec()
        clock_gettime(CLOCK_REALTIME, &time)
        self.time(time)
    }

    // MARK: Text of others

    /// Appends a text as a JSON string, redacted.
    mutating func quoted(_ text: String) {
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

    /// Appends a text bare where it is one word of visible ASCII without `"`, `\` and `=`, otherwise as a JSON
    /// string; redacted in both cases.
    mutating func word(_ text: String) {
        let span = text.utf8.span
        guard !span.isEmpty, LogLine.isWord(span), LogRedaction.redacted(span) == nil else {
            return quoted(text)
        }
        copy(span, 0..<span.count)
    }

    /// Whether a text holds nothing to escape, and none of the bytes that ``LogRedaction`` looks for: most do not.
    private static func isPlain(_ text: Span<UInt8>) -> Bool {
        guard text.count <= longestText else { return false }
        for index in text.indices {
            switch text[index] {
            // Not " % + : = J \ and _.
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

    private mutating func escape(_ text: Span<UInt8>) {
        var end = text.count
        if end > LogLine.longestText {
            end = LogLine.longestText
            while text[end] & 0xc0 == 0x80 { end -= 1 }
        }
        var start = 0
        var index = 0
        while index < end {
            let length = unsafeLength(text, index)
            if length > 0 {
                copy(text, start..<index)
                escapeOne(text, index, length)
                start = index + length
            }
            index += max(1, length)
        }
        copy(text, start..<end)
        if end < text.count { raw("…") }
    }

    /// Appends a part of a text as it is: of one that holds nothing to redact or escape.
    mutating func copy(_ text: Span<UInt8>, _ range: Range<Int>) {
        let place = extend(range.count)
        text.extracting(range).withUnsafeBufferPointer { bytes in
            if let first = bytes.baseAddress { place.update(from: first, count: bytes.count) }
        }
    }

    /// Bytes of the character at `index` that must be escaped; 0 for one that may stand as it is.
    private func unsafeLength(_ text: Span<UInt8>, _ index: Int) -> Int {
        switch text[index] {
        case 0x00..<0x20, 0x7f, UInt8(ascii: "\""), UInt8(ascii: "\\"): return 1
        // U+0080…U+009F, the C1 controls.
        case 0xc2: return text[index + 1] < 0xa0 ? 2 : 0
        case 0xe2:
            // U+200E, U+200F, U+2028…U+202E and U+2066…U+2069: line ends and directions.
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
