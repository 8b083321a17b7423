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

/// Parses the parts of a date one after the other. If a part does not match, nothing is consumed.
struct DateReader {
    private(set) var rest: ArraySlice<UInt8>

    init(_ text: ArraySlice<UInt8>) { rest = text }

    mutating func skip(_ text: StaticString) -> Bool {
        guard ASCII.hasPrefix(rest.span, text) else { return false }
        rest = rest.dropFirst(text.utf8CodeUnitCount)
        return true
    }

    /// Skips one of several words.
    mutating func skip(anyOf words: [String]) -> Bool {
        guard let word = words.first(where: { rest.starts(with: $0.utf8) }) else { return false }
        rest = rest.dropFirst(word.utf8.count)
        return true
    }

    /// Parses a number of exactly `digits` digits.
    mutating func number(_ digits: Int) -> Int? {
        guard rest.count >= digits, let value = Decimal.parse(rest.prefix(digits)) else {
            return nil
        }
        rest = rest.dropFirst(digits)
        return Int(value)
    }

    /// Parses one digit.
    mutating func digit() -> Int? {
        guard let byte = rest.first, ASCII.isDigit(byte) else { return nil }
        rest = rest.dropFirst()
        return Int(byte - 0x30)
    }

    /// Parses a three-letter name; returns its index in the table.
    mutating func name(of table: StaticString) -> Int? {
        guard rest.count >= 3 else { return nil }
        let first = rest.startIndex
        let (a, b, c) = (rest[first], rest[first + 1], rest[first + 2])
        return table.withUTF8Buffer { names in
            for index in stride(from: 0, to: names.count, by: 3)
            where names[index] == a && names[index + 1] == b && names[index + 2] == c {
                rest = rest[(first + 3)...]
                return index / 3
            }
            return nil
        }
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
