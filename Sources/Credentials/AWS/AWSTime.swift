import Wire

/// Times as AWS's services write them.
package enum AWSTime {
    /// `20260102T030405Z`.
    package static func stamp(_ seconds: Int64) -> String {
        var text = HTTPDate.rfc3339(milliseconds: seconds * 1000)
        text.removeLast(5)  // .000Z
        text.removeAll { $0 == "-" || $0 == ":" }
        return text + "Z"
    }

    /// Seconds since 1970 of `2026-01-02T03:04:05Z`, whatever decimals the seconds have (RFC 3339 in UTC).
    package static func parse(_ text: String) -> Int64? {
        guard text.hasSuffix("Z") else { return nil }
        return HTTPDate.parse(rfc3339: text).map { $0 / 1000 }
    }
}
