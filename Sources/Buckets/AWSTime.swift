import Glibc
import Wire

/// Times as AWS's services write them.
package enum AWSTime {
    /// Seconds since 1970, now.
    package static func now() -> Int64 { DirectoryBucket.systemClock() / 1_000_000 }

    /// `20260102T030405Z`.
    package static func stamp(_ seconds: Int64) -> String {
        var text = HTTPDate.rfc3339(milliseconds: seconds * 1000)
        text.removeLast(5)  // .000Z
        text.removeAll { $0 == "-" || $0 == ":" }
        return text + "Z"
    }

    /// Seconds since 1970 of `2026-01-02T03:04:05Z`, whatever decimals the seconds have (RFC 3339 in UTC).
    package static func parse(_ text: String) -> Int64? {
        let bytes = Array(text.utf8)
        guard bytes.count >= 20, bytes.last == UInt8(ascii: "Z") else { return nil }
        func number(_ range: Range<Int>) -> Int32? {
            ASCII.saturatingDecimal(bytes[range]).map { Int32($0) }
        }
        guard let year = number(0..<4), let month = number(5..<7), let day = number(8..<10),
            let hour = number(11..<13), let minute = number(14..<16), let second = number(17..<19)
        else { return nil }
        var time = tm()
        (time.tm_year, time.tm_mon, time.tm_mday) = (year - 1900, month - 1, day)
        (time.tm_hour, time.tm_min, time.tm_sec) = (hour, minute, second)
        return Int64(timegm(&time))
    }
}
