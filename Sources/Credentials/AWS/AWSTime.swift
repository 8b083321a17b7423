import Wire

/// Times in the formats of AWS's services.
package enum AWSTime {
    /// `20260102T030405Z`.
    package static func stamp(_ seconds: Int64) -> String {
        var text = HTTPDate.rfc3339(milliseconds: seconds * 1000)
        text.removeLast(5)  // .000Z
        text.removeAll { $0 == "-" || $0 == ":" }
        return text + "Z"
    }

    /// Parses `2026-01-02T03:04:05Z`, with any decimals of the seconds (RFC 3339 in UTC), as seconds since 1970.
    package static func parse(_ text: String) -> Int64? {
        guard text.hasSuffix("Z") else { return nil }
        return HTTPDate.parse(rfc3339: text).map { $0 / 1000 }
    }
}
