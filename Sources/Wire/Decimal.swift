/// Decimal numbers in protocols: only ASCII digits, without a sign or spaces.
package enum Decimal {
    /// Parses a number.
    /// - Parameter maximumDigits: Includes leading zeros.
    /// - Returns: nil if the text is empty, has another byte than a digit, or exceeds a maximum.
    package static func parse(
        _ text: Span<UInt8>, maximumDigits: Int = .max, maximum: UInt64 = .max
    ) -> UInt64? {
        guard text.count <= maximumDigits, let number = read(text), !number.overflows,
            number.value <= maximum
        else { return nil }
        return number.value
    }

    /// Parses a number, clamped to the largest `UInt64`.
    /// - Returns: nil if the text is empty or has another byte than a digit.
    package static func saturating(_ text: Span<UInt8>) -> UInt64? {
        read(text).map { $0.overflows ? .max : $0.value }
    }

    /// Parses a number without a limit of its digits.
    package static func parse(_ text: ArraySlice<UInt8>) -> UInt64? { parse(text.span) }

    /// Parses a number, clamped to the largest `UInt64`.
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
