import Testing
import Wire

/// Numbers of digits alone, at their limits.
@Suite struct DecimalTests {
    private func parse(_ text: String) -> UInt64? { Decimal.parse(text.utf8.span) }

    private func saturating(_ text: String) -> UInt64? { Decimal.saturating(text.utf8.span) }

    @Test(arguments: [
        ("0", 0), ("7", 7), ("00", 0), ("007", 7), ("18446744073709551615", UInt64.max),
        ("00000000000000000000018446744073709551615", UInt64.max),
        ("9223372036854775807", UInt64(Int64.max)),
        ("9999999999999999999", 9_999_999_999_999_999_999),
    ])
    func readsDigits(text: String, value: UInt64) {
        #expect(parse(text) == value)
        #expect(saturating(text) == value)
    }

    @Test(arguments: [
        "", "+1", "-1", " 1", "1 ", "1a", "0x1", "1_0", "1.0", "1,0", "/", ":", "\u{0}1",
        "\u{0661}",
        "\u{FF11}", "²", "18446744073709551616a",
    ])
    func takesNothingElse(text: String) {
        #expect(parse(text) == nil)
        #expect(saturating(text) == nil)
    }

    @Test(arguments: [
        "18446744073709551616", "18446744073709551625", "99999999999999999999",
        "184467440737095516160", "340282366920938463463374607431768211456",
    ])
    func endsAtTheLargest(text: String) {
        #expect(parse(text) == nil)
        #expect(saturating(text) == .max)
    }

    /// As for `Content-Length`.
    @Test(arguments: [
        ("9223372036854775807", UInt64(Int64.max)), ("9223372036854775808", nil),
        ("0000000000000000001", 1), ("00000000000000000001", nil), ("", nil),
    ])
    func keepsToTheBoundsOfItsCaller(text: String, value: UInt64?) {
        let read = Decimal.parse(
            text.utf8.span, maximumDigits: 19, maximum: UInt64(Int64.max))
        #expect(read == value)
    }
}
