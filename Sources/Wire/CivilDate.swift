/// A date and time of day in UTC, in the proleptic Gregorian calendar.
package struct CivilDate: Equatable, Sendable {
    package var year = 1970
    /// 1 is January.
    package var month = 1
    package var day = 1
    package var hour = 0
    package var minute = 0
    /// Up to 60, for a leap second.
    package var second = 0

    /// Seconds from 1 March of the year 0 to 1970.
    private static let secondsBefore1970: Int64 = 719_468 * 86_400

    package init() {}

    /// The start of a day, which need not exist.
    package init(year: Int, month: Int, day: Int) {
        (self.year, self.month, self.day) = (year, month, day)
    }

    /// - Parameter seconds: Since 1970; not before 1 March of the year 0.
    package init(seconds: Int64) {
        // Years begin on 1 March, so that a leap day is the last day of its year. An era is 400 years.
        let shifted = Int(seconds + CivilDate.secondsBefore1970)
        let (days, rest) = (shifted / 86_400, shifted % 86_400)
        (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60)
        let (era, dayOfEra) = (days / 146_097, days % 146_097)
        let yearOfEra = (dayOfEra - dayOfEra / 1460 + dayOfEra / 36_524 - dayOfEra / 146_096) / 365
        let dayOfYear = dayOfEra - (365 * yearOfEra + yearOfEra / 4 - yearOfEra / 100)
        let monthFromMarch = (5 * dayOfYear + 2) / 153
        day = dayOfYear - (153 * monthFromMarch + 2) / 5 + 1
        month = monthFromMarch < 10 ? monthFromMarch + 3 : monthFromMarch - 9
        year = era * 400 + yearOfEra + (month <= 2 ? 1 : 0)
    }

    /// Seconds since 1970; nil if there is no such time. A leap second counts as the second before it.
    package var seconds: Int64? {
        guard (0...9999).contains(year), (1...12).contains(month), day >= 1, day <= daysOfMonth,
            (0..<24).contains(hour), (0..<60).contains(minute), (0...60).contains(second)
        else { return nil }
        let shiftedYear = month <= 2 ? year - 1 : year
        // January and February of the year 0 belong to the previous era.
        let era = (shiftedYear + 400) / 400 - 1
        let yearOfEra = shiftedYear - era * 400
        let dayOfYear = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1
        let dayOfEra = yearOfEra * 365 + yearOfEra / 4 - yearOfEra / 100 + dayOfYear
        let secondOfDay = hour * 3600 + minute * 60 + min(second, 59)
        return Int64((era * 146_097 + dayOfEra) * 86_400 + secondOfDay) - CivilDate.secondsBefore1970
    }

    private var daysOfMonth: Int {
        switch month {
        case 2: year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) ? 29 : 28
        case 4, 6, 9, 11: 30
        default: 31
        }
    }
}
