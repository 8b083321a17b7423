import Testing
import Wire

/// The calendar, and the texts that are made of it.
@Suite struct CivilDateTests {
    private func date(
        _ year: Int, _ month: Int, _ day: Int, _ hour: Int = 0, _ minute: Int = 0, _ second: Int = 0
    ) -> CivilDate {
        var date = CivilDate(year: year, month: month, day: day)
        (date.hour, date.minute, date.second) = (hour, minute, second)
        return date
    }

    /// From the year 1 on, against the rule of the calendar itself.
    @Test func everyDayFollowsTheOneBefore() {
        let lengths = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
        var seconds: Int64 = -62_135_596_800
        var wrong = 0
        for year in 1...9999 {
            let isLeap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
            for month in 1...12 {
                for day in 1...lengths[month - 1] + (month == 2 && isLeap ? 1 : 0) {
                    let date = CivilDate(year: year, month: month, day: day)
                    if date.seconds != seconds || CivilDate(seconds: seconds) != date { wrong += 1 }
                    seconds += 86_400
                }
            }
        }
        #expect(wrong == 0 && seconds == 253_402_300_800)
    }

    @Test func timesOfDay() {
        #expect(CivilDate(seconds: -1) == date(1969, 12, 31, 23, 59, 59))
        #expect(CivilDate(seconds: 784_111_777) == date(1994, 11, 6, 8, 49, 37))
        #expect(date(1994, 11, 6, 8, 49, 37).seconds == 784_111_777)
        #expect(date(0, 1, 1).seconds == -62_167_219_200)
        #expect(date(2016, 12, 31, 23, 59, 60).seconds == date(2016, 12, 31, 23, 59, 59).seconds)
    }

    @Test func invalidTimes() {
        for wrong in [
            date(2023, 2, 29), date(1900, 2, 29), date(2023, 4, 31), date(2023, 0, 1),
            date(2023, 13, 1), date(2023, 1, 0), date(2023, 1, 32), date(-1, 1, 1),
            date(10_000, 1, 1), date(.max, 1, 1), date(2023, 1, 1, 24), date(2023, 1, 1, 0, 60),
            date(2023, 1, 1, 0, 0, 61), date(2023, 1, 1, -1),
        ] { #expect(wrong.seconds == nil, "\(wrong)") }
    }

    @Test(arguments: [
        ("1994-11-06T08:49:37Z", 784_111_777_000), ("1994-11-06t08:49:37z", 784_111_777_000),
        ("1994-11-06T08:49:37.1Z", 784_111_777_100),
        ("1994-11-06T08:49:37.123999999999Z", 784_111_777_123),
        ("1994-11-06T09:49:37+01:00", 784_111_777_000),
        ("1994-11-06T03:19:37-05:30", 784_111_777_000), ("1970-01-01T00:00:60Z", 59_000),
    ])
    func readsRFC3339(text: String, milliseconds: Int64) {
        #expect(HTTPDate.parse(rfc3339: text) == milliseconds)
    }

    @Test(arguments: [
        "", "1994-11-06", "1994-11-06T08:49:37", "1994-11-06 08:49:37Z", "1994-11-06T08:49Z",
        "1994-11-06T08:49:37.Z", "1994-11-06T08:49:37,5Z", "1994-11-06T24:00:00Z",
        "1994-11-06T08:60:00Z", "1994-11-06T08:49:61Z", "1994-02-29T08:49:37Z",
        "1994-11-06T08:49:37+24:00", "1994-11-06T08:49:37+01:60", "1994-11-06T08:49:37+0100",
        "1994-11-06T08:49:37Z ", " 1994-11-06T08:49:37Z", "+994-11-06T08:49:37Z",
        "94-11-06T08:49:37Z", "1994-11-6T08:49:37Z", "１994-11-06T08:49:37Z",
    ])
    func takesNothingElse(text: String) {
        #expect(HTTPDate.parse(rfc3339: text) == nil)
    }

    @Test func keepsTheSpelling() throws {
        let time = try #require(RFC3339("2024-05-01T12:00:60.1234567891+99:99"))
        #expect(time.date == date(2024, 5, 1, 12, 0, 60) && time.nanoseconds == 123_456_789)
        #expect(time.fractionDigits == 10 && time.offsetSeconds == 362_340 && !time.isOffsetValid)
    }

    @Test func weekdays() {
        let days = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"]
        for day in 0..<1000 {
            let text = HTTPDate.imfFixdate(seconds: Int64(day) * 86_400 + 86_399)
            #expect(text.hasPrefix(days[day % 7]) && text.hasSuffix(" 23:59:59 GMT"))
        }
    }
}
