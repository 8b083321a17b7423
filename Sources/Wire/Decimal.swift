/// Decimal numbers as protocols write them: ASCII digits alone, without a sign or spaces.
package enum Decimal {
    /// The value of the digits.
    /// - Parameters:
    ///   - maximumDigits: Leading zeros count.
    ///   - maximum: The largest value.
    /// - Returns: nil where the text is empty, has a byte that is no digit, has too many digits, or is too large.
    package static func parse(
        _ text: Span<UInt8>, maximumDigits: Int = .max, maximum: UInt64 = .max
    ) -> UInt64? {
        guard text.count <= maximumDigits, let number = read(text), !number.overflows,
            number.value <= maximum
        else { return nil }
        return number.value
    }

    /// The value of the digits, or the largest `UInt64` where it does not fit.
    /// - Returns: nil where the text is empty or has a byte that is no digit.
    package static func saturating(_ text: Span<UInt8>) -> UInt64? {
        read(text).map { $0.overflows ? .max : $0.value }
    }

    /// The same of a slice, without bounds.
    package static func parse(_ text: ArraySlice<UInt8>) -> UInt64? { parse(text.span) }

    /// The same of a slice.
    package static func saturating(_ text: ArraySlice<UInt8>) -> UInt64? { saturating(text.span) }

    private static func read(_ text: Span<UInt8>) -> (value: UInt64, overflows: Bool)? {
        guard !text.isEmpty else { return nil }
        var value: UInt64 = 0
        var overflows = false
        for index in text.indices {
            let digit = text[index] &- UInt8(ascii: "0")
            guard digit <= 9 else { return nil }
            let (product, isProductTooLarge) = value.multipliedReportingOverflow(by: 10)
            let (sum, isSumTooLarge) = product.addingReportingOverflow(UInt64(digit))
            overflows = overflows || isProductTooLarge || isSumTooLarge
            value = sum
        }
        return (value, overflows)
    }
}
