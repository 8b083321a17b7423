import Wire

/// A moment in UTC, to the nanosecond, between 0001-01-01T00:00:00Z and 9999-12-31T23:59:59.999999999Z.
public struct Timestamp: Sendable, Hashable {
    /// Whole seconds since 1970-01-01T00:00:00Z, rounded down.
    public let seconds: Int64
    /// The remaining nanoseconds, in `0..<1_000_000_000`.
    public let nanoseconds: Int32

    /// The latest representable moment.
    public static let latest = Timestamp(seconds: validSeconds.upperBound, nanoseconds: 999_999_999)!

    static let validSeconds: ClosedRange<Int64> = -62_135_596_800...253_402_300_799

    /// A moment by its distance from 1970-01-01T00:00:00Z; nil outside the years 1 to 9999.
    public init?(seconds: Int64, nanoseconds: Int32 = 0) {
        guard Self.validSeconds.contains(seconds), (0..<1_000_000_000).contains(nanoseconds) else {
            return nil
        }
        self.seconds = seconds
        self.nanoseconds = nanoseconds
    }

    /// Midnight at the start of a day of the Gregorian calendar; nil if the date does not exist.
    init?(year: Int64, month: Int64, day: Int64) {
        let date = CivilDate(year: Int(year), month: Int(month), day: Int(day))
        guard year >= 1, let seconds = date.seconds else { return nil }
        self.init(seconds: seconds)
    }

    /// Parses RFC 3339, such as `2024-05-01T12:00:00.5Z`; nil for anything else.
    public init?(rfc3339 text: String) {
        guard let time = RFC3339(text), time.date.year >= 1, time.date.second < 60,
            time.fractionDigits <= 9, let seconds = time.date.seconds
        else { return nil }
        self.init(seconds: seconds - Int64(time.offsetSeconds), nanoseconds: Int32(time.nanoseconds))
    }

    // MARK: Calendar

    private var day: Int64 { (seconds - Self.validSeconds.lowerBound) / 86_400 }

    /// Seconds since midnight.
    var secondOfDay: Int64 { (seconds - Self.validSeconds.lowerBound) % 86_400 }

    var midnight: Timestamp { Timestamp(seconds: seconds - secondOfDay) ?? self }

    /// The day of the week, from Monday = 1 to Sunday = 7. 1 January of the year 1 was a Monday.
    var dayOfWeek: Int64 { day % 7 + 1 }

    var civil: CivilDate { CivilDate(seconds: seconds) }

    var dayOfYear: Int64 {
        let firstDay = CivilDate(year: civil.year, month: 1, day: 1).seconds ?? 0
        return (seconds - firstDay) / 86_400 + 1
    }
}

extension Timestamp: Comparable, CustomStringConvertible {
    public static func < (left: Timestamp, right: Timestamp) -> Bool {
        (left.seconds, left.nanoseconds) < (right.seconds, right.nanoseconds)
    }

    /// The moment in RFC 3339 format.
    public var description: String {
        let time = civil
        let fraction = nanoseconds == 0 ? "" : "." + padded(Int(nanoseconds), 9)
        return "\(padded(time.year, 4))-\(padded(time.month, 2))-\(padded(time.day, 2))T"
            + "\(padded(time.hour, 2)):\(padded(time.minute, 2)):\(padded(time.second, 2))\(fraction)Z"
    }

    private func padded(_ value: Int, _ width: Int) -> String {
        let digits = String(value)
        return String(repeating: "0", count: max(0, width - digits.count)) + digits
    }
}

/// A duration in nanoseconds resolution, of at most 315,576,000,000 seconds in either direction.
public struct TimeSpan: Sendable, Hashable {
    /// Whole seconds, rounded toward zero.
    public let seconds: Int64
    /// The remaining nanoseconds: less than one second, with the sign of the seconds.
    public let nanoseconds: Int32

    static let maximumSeconds: Int64 = 315_576_000_000

    /// The sum of seconds and nanoseconds; nil beyond the limit.
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

    /// The duration in seconds, such as `1.5s`.
    public var description: String {
        guard nanoseconds != 0 else { return "\(seconds)s" }
        let sign = seconds < 0 || nanoseconds < 0 ? "-" : ""
        let digits = String(nanoseconds.magnitude + 1_000_000_000).dropFirst()
        return "\(sign)\(seconds.magnitude).\(digits)s"
    }
}

extension Timestamp {
    /// The moment at this distance; nil outside the years 1 to 9999.
    func advanced(by span: TimeSpan) -> Timestamp? {
        var nanoseconds = self.nanoseconds + span.nanoseconds
        var seconds = self.seconds + span.seconds
        if nanoseconds < 0 { (seconds, nanoseconds) = (seconds - 1, nanoseconds + 1_000_000_000) }
        if nanoseconds >= 1_000_000_000 {
            (seconds, nanoseconds) = (seconds + 1, nanoseconds - 1_000_000_000)
        }
        return Timestamp(seconds: seconds, nanoseconds: nanoseconds)
    }

    /// The duration from `other` to this moment.
    func distance(from other: Timestamp) -> TimeSpan? {
        TimeSpan(
            seconds: seconds - other.seconds,
            nanoseconds: Int64(nanoseconds) - Int64(other.nanoseconds))
    }
}
