/// Writes the parts of a date into a buffer, which must be large enough.
struct DateWriter {
    private let buffer: UnsafeMutableBufferPointer<UInt8>
    private(set) var count = 0

    init(_ buffer: UnsafeMutableBufferPointer<UInt8>) { self.buffer = buffer }

    mutating func put(_ text: StaticString) {
        text.withUTF8Buffer { for byte in $0 { put(byte) } }
    }

    private mutating func put(_ byte: UInt8) {
        buffer[count] = byte
        count += 1
    }

    /// Writes entry `index` of a table of three-letter names.
    mutating func letters(_ table: StaticString, at index: Int) {
        for offset in 0..<3 { put(table.utf8Start[index * 3 + offset]) }
    }

    mutating func decimal(_ value: Int, _ digits: Int) {
        var divisor = 1
        for _ in 1..<digits { divisor *= 10 }
        while divisor > 0 {
            put(UInt8(value / divisor % 10) + 0x30)
            divisor /= 10
        }
    }

    mutating func clock(_ time: CivilDate) {
        decimal(time.hour, 2)
        put(":")
        decimal(time.minute, 2)
        put(":")
        decimal(time.second, 2)
    }
}

/// Parses the parts of a date in sequence, while the text is lent. A part that does not match consumes nothing.
struct DateReader {
    private let text: UnsafeBufferPointer<UInt8>
    /// The index of the next byte.
    private var next = 0

    init(_ text: UnsafeBufferPointer<UInt8>) { self.text = text }

    /// Whether all bytes were consumed.
    var isAtEnd: Bool { next == text.endIndex }

    mutating func skip(_ expected: StaticString) -> Bool {
        let count = expected.utf8CodeUnitCount
        guard text.endIndex - next >= count else { return false }
        for offset in 0..<count where text[next + offset] != expected.utf8Start[offset] {
            return false
        }
        next += count
        return true
    }

    /// Skips one of several words.
    mutating func skip(anyOf words: [String]) -> Bool {
        guard let word = words.first(where: { text[next...].starts(with: $0.utf8) }) else {
            return false
        }
        next += word.utf8.count
        return true
    }

    /// Parses a number of exactly `digits` digits, at most 18.
    mutating func number(_ digits: Int) -> Int? {
        guard text.endIndex - next >= digits else { return nil }
        var value = 0
        for index in next..<next + digits {
            guard ASCII.isDigit(text[index]) else { return nil }
            value = value * 10 + Int(text[index] - 0x30)
        }
        next += digits
        return value
    }

    mutating func digit() -> Int? { number(1) }

    /// Parses a three-letter name; returns its index in the table.
    mutating func name(of table: StaticString) -> Int? {
        guard text.endIndex - next >= 3 else { return nil }
        let (a, b, c) = (text[next], text[next + 1], text[next + 2])
        for index in stride(from: 0, to: table.utf8CodeUnitCount, by: 3)
        where table.utf8Start[index] == a && table.utf8Start[index + 1] == b
            && table.utf8Start[index + 2] == c
        {
            next += 3
            return index / 3
        }
        return nil
    }

    /// Parses a time such as `08:49:37`.
    mutating func clock(into date: inout CivilDate) -> Bool {
        guard let hour = number(2), skip(":"), let minute = number(2), skip(":"),
            let second = number(2)
        else { return false }
        (date.hour, date.minute, date.second) = (hour, minute, second)
        return true
    }
}
