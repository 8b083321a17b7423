/// Dates as HTTP and JSON write them. All are UTC in the proleptic Gregorian calendar.
package enum HTTPDate {
    private static let days: StaticString = "MonTueWedThuFriSatSun"
    private static let months: StaticString = "JanFebMarAprMayJunJulAugSepOctNovDec"
    private static let longDays = [
        "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday",
    ]

    /// `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110, section 5.6.7). Before 1970 and after 9999 the nearest end.
    package static func imfFixdate(seconds: Int64) -> String {
        let time = Civil(seconds: clamped(seconds))
        return String(unsafeUninitializedCapacity: 29) { buffer in
            var text = Writer(buffer)
            text.letters(days, at: (time.weekday + 6) % 7)
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

    /// `1994-11-06T08:49:37.000Z` (RFC 3339), with exactly three decimals.
    package static func rfc3339(milliseconds: Int64) -> String {
        let milliseconds = max(0, min(milliseconds, 253_402_300_799_999))
        let time = Civil(seconds: milliseconds / 1000)
        return String(unsafeUninitializedCapacity: 24) { buffer in
            var text = Writer(buffer)
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

    /// Reads the three forms of RFC 9110, section 5.6.7: IMF-fixdate, and the obsolete ones of RFC 850 and `asctime`.
    /// - Parameter now: Seconds since 1970; a two-digit year lies at most 50 years after it.
    /// - Returns: Seconds since 1970; nil where it is no date.
    package static func parse(_ text: ArraySlice<UInt8>, now: Int64) -> Int64? {
        guard text.count <= 40 else { return nil }
        var reader = Reader(text)
        guard let comma = text.firstIndex(of: UInt8(ascii: ",")) else {
            return reader.asctime()
        }
        return comma - text.startIndex == 3 ? reader.imfFixdate() : reader.rfc850(now: now)
    }

    /// Reads `1994-11-06T08:49:37.123456Z` or another offset (RFC 3339, section 5.6).
    /// - Returns: Milliseconds since 1970, what is finer cut off; nil where it is no such time.
    package static func parse(rfc3339 text: String) -> Int64? {
        var reader = Reader(Array(text.utf8)[...])
        return reader.rfc3339()
    }

    private static func clamped(_ seconds: Int64) -> Int64 {
        max(0, min(seconds, 253_402_300_799))
    }

    /// A moment in the calendar's parts.
    private struct Civil {
        var year = 1970
        var month = 1
        var day = 1
        var hour = 0
        var minute = 0
        var second = 0
        /// 0 is Sunday.
        var weekday = 4

        init() {}

        /// - Parameter seconds: Since 1970, not negative.
        init(seconds: Int64) {
            let days = Int(seconds / 86_400)
            let rest = Int(seconds % 86_400)
            (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60)
            weekday = (days + 4) % 7
            // Years are counted from 1 March, in eras of 400 years: leap days are at the ends.
            let shifted = days + 719_468
            let era = shifted / 146_097
            let dayOfEra = shifted % 146_097
            let yearOfEra =
                (dayOfEra - dayOfEra / 1460 + dayOfEra / 36_524 - dayOfEra / 146_096) / 365
            let dayOfYear = dayOfEra - (365 * yearOfEra + yearOfEra / 4 - yearOfEra / 100)
            let monthFromMarch = (5 * dayOfYear + 2) / 153
            day = dayOfYear - (153 * monthFromMarch + 2) / 5 + 1
            month = monthFromMarch < 10 ? monthFromMarch + 3 : monthFromMarch - 9
            year = era * 400 + yearOfEra + (month <= 2 ? 1 : 0)
        }

        /// nil where there is no such moment; a leap second counts as the one before it.
        var seconds: Int64? {
            guard hour < 24, minute < 60, second <= 60, (1...12).contains(month), day >= 1,
                day <= daysOfMonth
            else { return nil }
            let shiftedYear = month <= 2 ? year - 1 : year
            // Year 0 of the four-digit years still has days of the era before.
            let era = (shiftedYear + 400) / 400 - 1
            let yearOfEra = shiftedYear - era * 400
            let dayOfYear = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1
            let dayOfEra = yearOfEra * 365 + yearOfEra / 4 - yearOfEra / 100 + dayOfYear
            let days = era * 146_097 + dayOfEra - 719_468
            return Int64(days * 86_400 + hour * 3600 + minute * 60 + min(second, 59))
        }

        private var daysOfMonth: Int {
            switch month {
            case 2: year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) ? 29 : 28
            case 4, 6, 9, 11: 30
            default: 31
            }
        }
    }

    private struct Writer {
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

        mutating func clock(_ time: Civil) {
            decimal(time.hour, 2)
            put(":")
            decimal(time.minute, 2)
            put(":")
            decimal(time.second, 2)
        }
    }

    private struct Reader {
        private var rest: ArraySlice<UInt8>
        private var time = Civil()

        init(_ text: ArraySlice<UInt8>) { rest = text }

        mutating func imfFixdate() -> Int64? {
            guard dayName(), skip(", "), let day = number(2), skip(" "), month(), skip(" "),
                let year = number(4), skip(" "), clock(), skip(" GMT"), rest.isEmpty
            else { return nil }
            (time.day, time.year) = (day, year)
            return time.seconds
        }

        mutating func rfc850(now: Int64) -> Int64? {
            guard longDayName(), skip(", "), let day = number(2), skip("-"), month(), skip("-"),
                let year = number(2), skip(" "), clock(), skip(" GMT"), rest.isEmpty
            else { return nil }
            let current = Civil(seconds: HTTPDate.clamped(now)).year
            var full = current - current % 100 + year
            if full > current + 50 { full -= 100 }
            if full <= current - 50 { full += 100 }
            (time.day, time.year) = (day, full)
            return time.seconds
        }

        mutating func asctime() -> Int64? {
            guard dayName(), skip(" "), month(), skip(" ") else { return nil }
            let isPadded = skip(" ")
            guard let day = number(isPadded ? 1 : 2), skip(" "), clock(), skip(" "),
                let year = number(4), rest.isEmpty
            else { return nil }
            (time.day, time.year) = (day, year)
            return time.seconds
        }

        mutating func rfc3339() -> Int64? {
            guard let year = number(4), skip("-"), let month = number(2), skip("-"),
                let day = number(2), skip("T") || skip("t"), clock()
            else { return nil }
            (time.year, time.month, time.day) = (year, month, day)
            var milliseconds = 0
            if skip(".") {
                var scale = 100
                guard let first = rest.first, ASCII.isDigit(first) else { return nil }
                while let digit = rest.first, ASCII.isDigit(digit) {
                    milliseconds += Int(digit - 0x30) * scale
                    scale /= 10
                    rest = rest.dropFirst()
                }
            }
            var offset = 0
            if !skip("Z"), !skip("z") {
                let isWest = skip("-")
                guard isWest || skip("+"), let hours = number(2), hours < 24, skip(":"),
                    let minutes = number(2), minutes < 60
                else { return nil }
                offset = (hours * 60 + minutes) * (isWest ? -60 : 60)
            }
            guard rest.isEmpty, let seconds = time.seconds else { return nil }
            return (seconds - Int64(offset)) * 1000 + Int64(milliseconds)
        }

        private mutating func skip(_ text: StaticString) -> Bool {
            text.withUTF8Buffer { wanted in
                guard rest.count >= wanted.count else { return false }
                for (offset, byte) in wanted.enumerated()
                where rest[rest.startIndex + offset] != byte {
                    return false
                }
                rest = rest[(rest.startIndex + wanted.count)...]
                return true
            }
        }

        private mutating func number(_ digits: Int) -> Int? {
            guard rest.count >= digits else { return nil }
            var value = 0
            for index in rest.startIndex..<rest.startIndex + digits {
                guard ASCII.isDigit(rest[index]) else { return nil }
                value = value * 10 + Int(rest[index] - 0x30)
            }
            rest = rest[(rest.startIndex + digits)...]
            return value
        }

        private mutating func name(of table: StaticString) -> Int? {
            guard rest.count >= 3 else { return nil }
            let first = rest.startIndex
            let (a, b, c) = (rest[first], rest[first + 1], rest[first + 2])
            return table.withUTF8Buffer { names in
                for place in stride(from: 0, to: names.count, by: 3)
                where names[place] == a && names[place + 1] == b && names[place + 2] == c {
                    rest = rest[(first + 3)...]
                    return place / 3
                }
                return nil
            }
        }

        private mutating func dayName() -> Bool { name(of: HTTPDate.days) != nil }

        private mutating func longDayName() -> Bool {
            guard let day = HTTPDate.longDays.first(where: { rest.starts(with: $0.utf8) }) else {
                return false
            }
            rest = rest.dropFirst(day.utf8.count)
            return true
        }

        private mutating func month() -> Bool {
            guard let index = name(of: HTTPDate.months) else { return false }
            time.month = index + 1
            return true
        }

        private mutating func clock() -> Bool {
            guard let hour = number(2), skip(":"), let minute = number(2), skip(":"),
                let second = number(2)
            else { return false }
            (time.hour, time.minute, time.second) = (hour, minute, second)
            return true
        }
    }
}
