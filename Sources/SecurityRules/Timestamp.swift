/// A moment in UTC, to the nanosecond, between 0001-01-01T00:00:00Z and 9999-12-31T23:59:59.999999999Z.
public struct Timestamp: Sendable, Hashable {
    /// Whole seconds since 1970-01-01T00:00:00Z, rounded down.
    public let seconds: Int64
    /// The rest, in `0..<1_000_000_000`.
    public let nanoseconds: Int32

    static let validSeconds: ClosedRange<Int64> = -62_135_596_800...253_402_300_799

    /// A moment by its distance from 1970; nil outside the years 1 to 9999.
    public init?(seconds: Int64, nanoseconds: Int32 = 0) {
        guard Self.validSeconds.contains(seconds), (0..<1_000_000_000).contains(nanoseconds) else {
            return nil
        }
        self.seconds = seconds
        self.nanoseconds = nanoseconds
    }

    /// Midnight at the beginning of a day of the Gregorian calendar; nil where there is no such day.
    init?(year: Int64, month: Int64, day: Int64) {
        guard (1...9999).contains(year), (1...12).contains(month), day >= 1,
            day <= Self.days(inMonth: month, of: year)
        else { return nil }
        self.init(seconds: Self.daysSince1970(year, month, day) * 86_400)
    }

    /// Reads RFC 3339, such as `2024-05-01T12:00:00.5Z`; nil for anything else.
    public init?(rfc3339 text: String) {
        var reader = DigitReader(Array(text.utf8))
        guard let year = reader.number(4), reader.skip("-"), let month = reader.number(2),
            reader.skip("-"), let day = reader.number(2), reader.skip("T") || reader.skip("t"),
            let hour = reader.number(2), hour < 24, reader.skip(":"), let minute = reader.number(2),
            minute < 60, reader.skip(":"), let second = reader.number(2), second < 60,
            let midnight = Timestamp(year: year, month: month, day: day)
        else { return nil }
        let nanoseconds = reader.skip(".") ? reader.fraction() : 0
        guard let nanoseconds, let offset = reader.offset(), reader.isAtEnd else { return nil }
        self.init(
            seconds: midnight.seconds + hour * 3600 + minute * 60 + second - offset,
            nanoseconds: nanoseconds)
    }

    // MARK: Calendar

    private static func isLeap(_ year: Int64) -> Bool {
        year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
    }

    private static func days(inMonth month: Int64, of year: Int64) -> Int64 {
        switch month {
        case 2: isLeap(year) ? 29 : 28
        case 4, 6, 9, 11: 30
        default: 31
        }
    }

    /// Counts years from March, so that a leap day is the last of its year.
    private static func daysSince1970(_ year: Int64, _ month: Int64, _ day: Int64) -> Int64 {
        let shifted = month > 2 ? year : year - 1
        let (era, yearOfEra) = (shifted / 400, shifted % 400)
        let dayOfYear = (153 * ((month + 9) % 12) + 2) / 5 + day - 1
        return era * 146_097 + yearOfEra * 365 + yearOfEra / 4 - yearOfEra / 100 + dayOfYear
            - 719_468
    }

    private var day: Int64 { (seconds - Self.validSeconds.lowerBound) / 86_400 }

    /// Seconds since midnight.
    var secondOfDay: Int64 { (seconds - Self.validSeconds.lowerBound) % 86_400 }

    var midnight: Timestamp { Timestamp(seconds: seconds - secondOfDay) ?? self }

    /// Monday is 1, Sunday 7; 1 January of the year 1 was a Monday.
    var dayOfWeek: Int64 { day % 7 + 1 }

    var civil: (year: Int64, month: Int64, day: Int64) {
        let shifted = day + 306
        let (era, dayOfEra) = (shifted / 146_097, shifted % 146_097)
        let yearOfEra = (dayOfEra - dayOfEra / 1460 + dayOfEra / 36_524 - dayOfEra / 146_096) / 365
        let dayOfYear = dayOfEra - (365 * yearOfEra + yearOfEra / 4 - yearOfEra / 100)
        let monthFromMarch = (5 * dayOfYear + 2) / 153
        let month = monthFromMarch < 10 ? monthFromMarch + 3 : monthFromMarch - 9
        let year = yearOfEra + era * 400 + (month <= 2 ? 1 : 0)
        return (year, month, dayOfYear - (153 * monthFromMarch + 2) / 5 + 1)
    }

    var dayOfYear: Int64 {
        let (year, month, day) = civil
        return Self.daysSince1970(year, month, day) - Self.daysSince1970(year, 1, 1) + 1
    }
}

extension Timestamp: Comparable, CustomStringConvertible {
    public static func < (left: Timestamp, right: Timestamp) -> Bool {
        (left.seconds, left.nanoseconds) < (right.seconds, right.nanoseconds)
    }

    /// As RFC 3339.
    public var description: String {
        let date = civil
        let time = secondOfDay
        let fraction = nanoseconds == 0 ? "" : "." + padded(Int64(nanoseconds), 9)
        return "\(padded(date.year, 4))-\(padded(date.month, 2))-\(padded(date.day, 2))T"
            + "\(padded(time / 3600, 2)):\(padded(time / 60 % 60, 2)):\(padded(time % 60, 2))\(fraction)Z"
    }

    private func padded(_ value: Int64, _ width: Int) -> String {
        let digits = String(value)
        return String(repeating: "0", count: max(0, width - digits.count)) + digits
    }
}

/// A length of time, to the nanosecond, of at most 315,576,000,000 seconds either way.
public struct TimeSpan: Sendable, Hashable {
    /// Whole seconds, rounded toward zero.
    public let seconds: Int64
    /// The rest, with the sign of the seconds and less than one second.
    public let nanoseconds: Int32

    static let maximumSeconds: Int64 = 315_576_000_000

    /// So many seconds and nanoseconds, together; nil beyond the limit.
    public init?(seconds: Int64, nanoseconds: Int64 = 0) {
        var (whole, overflow) = seconds.addingReportingOverflow(nanoseconds / 1_000_000_000)
        var rest = nanoseconds % 1_000_000_000
        guard !overflow else { return nil }
        if whole > 0, rest < 0 { (whole, rest) = (whole - 1, rest + 1_000_000_000) }
        if whole < 0, rest > 0 { (whole, rest) = (whole + 1, rest - 1_000_000_000) }
        guard whole.magnitude <= UInt64(Self.maximumSeconds) else { return nil }
        self.seconds = whole
        self.nanoseconds = Int32(rest)
    }

    var negated: TimeSpan? { TimeSpan(seconds: -seconds, nanoseconds: -Int64(nanoseconds)) }

    static func + (left: TimeSpan, right: TimeSpan) -> TimeSpan? {
        TimeSpan(
            seconds: left.seconds + right.seconds,
            nanoseconds: Int64(left.nanoseconds) + Int64(right.nanoseconds))
    }
}

extension TimeSpan: Comparable, CustomStringConvertible {
    public static func < (left: TimeSpan, right: TimeSpan) -> Bool {
        (left.seconds, left.nanoseconds) < (right.seconds, right.nanoseconds)
    }

    /// In seconds, such as `1.5s`.
    public var description: String {
        guard nanoseconds != 0 else { return "\(seconds)s" }
        let sign = seconds < 0 || nanoseconds < 0 ? "-" : ""
        let digits = String(nanoseconds.magnitude + 1_000_000_000).dropFirst()
        return "\(sign)\(seconds.magnitude).\(digits)s"
    }
}

extension Timestamp {
    /// The moment that lies so far from this one; nil outside the years 1 to 9999.
    func advanced(by span: TimeSpan) -> Timestamp? {
        var nanoseconds = self.nanoseconds + span.nanoseconds
        var seconds = self.seconds + span.seconds
        if nanoseconds < 0 { (seconds, nanoseconds) = (seconds - 1, nanoseconds + 1_000_000_000) }
        if nanoseconds >= 1_000_000_000 {
            (seconds, nanoseconds) = (seconds + 1, nanoseconds - 1_000_000_000)
        }
        return Timestamp(seconds: seconds, nanoseconds: nanoseconds)
    }

    /// The time from `other` to this moment.
    func distance(from other: Timestamp) -> TimeSpan? {
        TimeSpan(
            seconds: seconds - other.seconds,
            nanoseconds: Int64(nanoseconds) - Int64(other.nanoseconds))
    }
}

/// Reads the parts of an RFC 3339 time.
private struct DigitReader {
    private let bytes: [UInt8]
    private var index = 0

    init(_ bytes: [UInt8]) { self.bytes = bytes }

    var isAtEnd: Bool { index == bytes.count }

    mutating func skip(_ character: Unicode.Scalar) -> Bool {
        guard index < bytes.count, bytes[index] == UInt8(ascii: character) else { return false }
        index += 1
        return true
    }

    mutating func number(_ digits: Int) -> Int64? {
        guard index + digits <= bytes.count else { return nil }
        var value: Int64 = 0
        for byte in bytes[index..<index + digits] {
            guard Lexer.isDigit(byte) else { return nil }
            value = value * 10 + Int64(byte - UInt8(ascii: "0"))
        }
        index += digits
        return value
    }

    mutating func fraction() -> Int32? {
        var value: Int32 = 0
        var digits = 0
        while index < bytes.count, Lexer.isDigit(bytes[index]), digits < 9 {
            value = value * 10 + Int32(bytes[index] - UInt8(ascii: "0"))
            digits += 1
            index += 1
        }
        guard digits > 0 else { return nil }
        for _ in digits..<9 { value *= 10 }
        return value
    }

    /// `Z` or a distance from UTC, in seconds.
    mutating func offset() -> Int64? {
        if skip("Z") || skip("z") { return 0 }
        let sign: Int64 = skip("+") ? 1 : skip("-") ? -1 : 0
        guard sign != 0, let hours = number(2), skip(":"), let minutes = number(2) else {
            return nil
        }
        return sign * (hours * 3600 + minutes * 60)
    }
}
