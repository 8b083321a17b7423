/// A time such as `1994-11-06T08:49:37.123456Z` (RFC 3339, section 5.6). Only the syntax is checked.
package struct RFC3339 {
    /// Date and time in the zone of ``offsetSeconds``.
    package private(set) var date = CivilDate()
    /// The number of digits of the fraction.
    package private(set) var fractionDigits = 0
    /// The fraction of the second, truncated.
    package private(set) var nanoseconds = 0
    /// The offset from UTC, positive to the east.
    package private(set) var offsetSeconds = 0
    /// Whether the offset is less than a day, and its minutes less than an hour.
    package private(set) var isOffsetValid = true

    /// Parses a text; nil if the syntax is wrong.
    package init?(_ text: String) {
        let isWellFormed = text.utf8.span.withUnsafeBufferPointer { bytes in
            var reader = DateReader(bytes)
            return readAll(&reader)
        }
        if !isWellFormed { return nil }
    }

    private mutating func readAll(_ reader: inout DateReader) -> Bool {
        guard let year = reader.number(4), reader.skip("-"), let month = reader.number(2), reader.skip("-"),
            let day = reader.number(2), reader.skip("T") || reader.skip("t"), reader.clock(into: &date)
        else { return false }
        (date.year, date.month, date.day) = (year, month, day)
        if reader.skip(".") {
            var scale = 100_000_000
            while let digit = reader.digit() {
                nanoseconds += digit * scale
                scale /= 10
                fractionDigits += 1
            }
            if fractionDigits == 0 { return false }
        }
        return readOffset(&reader) && reader.isAtEnd
    }

    private mutating func readOffset(_ reader: inout DateReader) -> Bool {
        if reader.skip("Z") || reader.skip("z") { return true }
        let isWest = reader.skip("-")
        guard isWest || reader.skip("+"), let hours = reader.number(2), reader.skip(":"), let minutes = reader.number(2)
        else { return false }
        offsetSeconds = (hours * 60 + minutes) * (isWest ? -60 : 60)
        isOffsetValid = hours < 24 && minutes < 60
        return true
    }
}

extension HTTPDate {
    /// Formats a time as `1994-11-06T08:49:37.000Z` (RFC 3339) with three decimals, clamped to the years 1970 to 9999.
    package static func rfc3339(milliseconds: Int64) -> String {
        let milliseconds = max(0, min(milliseconds, 253_402_300_799_999))
        let time = CivilDate(seconds: milliseconds / 1000)
        return String(unsafeUninitializedCapacity: 24) { buffer in
            var text = DateWriter(buffer)
            text.decimal(time.year, 4)
            text.put("-")
            text.decimal(time.month, 2)
            text.put("-")
            text.decimal(time.day, 2)
            text.put("T")
            text.clock(time)
            text.put(".")
            text.decimal(Int(milliseconds % 1000), 3)
            text.put("Z")
            return text.count
        }
    }

    /// Parses a time such as `1994-11-06T08:49:37.123456Z`, with any offset (RFC 3339, section 5.6).
    /// - Returns: Milliseconds since 1970, rounded down; nil if the text is not such a time.
    package static func parse(rfc3339 text: String) -> Int64? {
        guard let time = RFC3339(text), time.isOffsetValid, let seconds = time.date.seconds else {
            return nil
        }
        return (seconds - Int64(time.offsetSeconds)) * 1000 + Int64(time.nanoseconds / 1_000_000)
    }
}
