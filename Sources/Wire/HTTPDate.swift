/// Dates in the formats of HTTP. All are in UTC, in the proleptic Gregorian calendar.
package enum HTTPDate {
    private static let days: StaticString = "MonTueWedThuFriSatSun"
    private static let months: StaticString = "JanFebMarAprMayJunJulAugSepOctNovDec"
    private static let longDays = [
        "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday",
    ]

    /// Formats a time as `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110, section 5.6.7), clamped to the years 1970 to 9999.
    package static func imfFixdate(seconds: Int64) -> String {
        let seconds = clamped(seconds)
        let time = CivilDate(seconds: seconds)
        // 1 January 1970 was a Thursday.
        let weekday = Int(seconds / 86_400 + 3) % 7
        return String(unsafeUninitializedCapacity: 29) { buffer in
            var text = DateWriter(buffer)
            text.letters(days, at: weekday)
            text.put(", ")
            text.decimal(time.day, 2)
            text.put(" ")
            text.letters(months, at: time.month - 1)
            text.put(" ")
            text.decimal(time.year, 4)
            text.put(" ")
            text.clock(time)
            text.put(" GMT")
            return text.count
        }
    }

    /// Parses the three formats of RFC 9110, section 5.6.7: IMF-fixdate, and the obsolete RFC 850 and `asctime`.
    /// - Parameter now: Seconds since 1970. A two-digit year is at most 50 years after it.
    /// - Returns: Seconds since 1970; nil if the text is not a date.
    package static func parse(_ text: Span<UInt8>, now: Int64) -> Int64? {
        guard text.count <= 40 else { return nil }
        return text.withUnsafeBufferPointer { text in
            var reader = Reader(text)
            guard let comma = text.firstIndex(of: UInt8(ascii: ",")) else {
                return reader.asctime()
            }
            return comma == 3 ? reader.imfFixdate() : reader.rfc850(now: now)
        }
    }

    /// Parses the same formats.
    package static func parse(_ text: ArraySlice<UInt8>, now: Int64) -> Int64? {
        parse(text.span, now: now)
    }

    private static func clamped(_ seconds: Int64) -> Int64 {
        max(0, min(seconds, 253_402_300_799))
    }

    private struct Reader {
        private var text: DateReader
        private var time = CivilDate()

        init(_ text: UnsafeBufferPointer<UInt8>) { self.text = DateReader(text) }

        mutating func imfFixdate() -> Int64? {
            guard dayName(), text.skip(", "), let day = text.number(2), text.skip(" "), month(),
                text.skip(" "), let year = text.number(4), text.skip(" "), clockAndZone()
            else { return nil }
            (time.day, time.year) = (day, year)
            return time.seconds
        }

        mutating func rfc850(now: Int64) -> Int64? {
            guard text.skip(anyOf: HTTPDate.longDays), text.skip(", "), let day = text.number(2), text.skip("-"),
                month(), text.skip("-"), let year = text.number(2), text.skip(" "), clockAndZone()
            else { return nil }
            let current = CivilDate(seconds: HTTPDate.clamped(now)).year
            var full = current - current % 100 + year
            if full > current + 50 { full -= 100 }
            if full <= current - 50 { full += 100 }
            (time.day, time.year) = (day, full)
            return time.seconds
        }

        mutating func asctime() -> Int64? {
            guard dayName(), text.skip(" "), month(), text.skip(" ") else { return nil }
            let isPadded = text.skip(" ")
            guard let day = text.number(isPadded ? 1 : 2), text.skip(" "),
                text.clock(into: &time), text.skip(" "), let year = text.number(4),
                text.isAtEnd
            else { return nil }
            (time.day, time.year) = (day, year)
            return time.seconds
        }

        private mutating func dayName() -> Bool { text.name(of: HTTPDate.days) != nil }

        private mutating func month() -> Bool {
            guard let index = text.name(of: HTTPDate.months) else { return false }
            time.month = index + 1
            return true
        }

        private mutating func clockAndZone() -> Bool {
            text.clock(into: &time) && text.skip(" GMT") && text.isAtEnd
        }
    }
}
