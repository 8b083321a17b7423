/// Number conversions with the semantics of Java, which the hosted service uses.
enum JavaNumber {
    /// Truncates a float toward zero. Values beyond 64 bits become the nearest integer, and NaN becomes zero.
    static func integer(_ value: Double) -> Int64 {
        if value.isNaN { return 0 }
        return Int64(exactly: value.rounded(.towardZero)) ?? (value < 0 ? .min : .max)
    }

    // MARK: To text

    /// Formats like `Double.toString`: in scientific notation below 0.001 and from 10,000,000.
    static func text(_ value: Double) -> String {
        if value.isNaN { return "NaN" }
        let sign = value.sign == .minus ? "-" : ""
        if value.isInfinite { return sign + "Infinity" }
        if value == 0 { return sign + "0.0" }
        var (digits, exponent) = shortest(value.magnitude)
        if digits.count == 1, value.magnitude.bitPattern <= 20 {
            (digits, exponent) = twoDigits(value.magnitude.bitPattern)
        }
        if (-3..<7).contains(exponent) {
            // Pads with zeros, so that the decimal point has a digit on both sides.
            if exponent < 0 {
                digits = [UInt8](repeating: zero, count: -exponent) + digits
            } else {
                digits += [UInt8](repeating: zero, count: max(0, exponent + 2 - digits.count))
            }
            return sign + text(digits, whole: max(exponent, 0) + 1)
        }
        if digits.count == 1 { digits.append(zero) }
        return sign + text(digits, whole: 1) + "E\(exponent)"
    }

    private static let zero = UInt8(ascii: "0")

    private static func text(_ digits: [UInt8], whole: Int) -> String {
        String(decoding: digits[..<whole], as: UTF8.self) + "." + String(decoding: digits[whole...], as: UTF8.self)
    }

    /// The shortest digits that identify a positive number, and the decimal exponent of the first digit.
    private static func shortest(_ value: Double) -> (digits: [UInt8], exponent: Int) {
        let parts = value.description.utf8.split(separator: UInt8(ascii: "e"))
        let mantissa = parts[0].split(separator: UInt8(ascii: "."), omittingEmptySubsequences: false)
        var exponent = mantissa[0].count - 1
        if parts.count == 2 { exponent += Int(String(decoding: parts[1], as: UTF8.self)) ?? 0 }
        var digits = mantissa.flatMap(Array.init)
        let zeros = digits.prefix { $0 == zero }.count
        digits.removeFirst(zeros)
        while digits.count > 1, digits.last == zero { digits.removeLast() }
        return (digits, exponent - zeros)
    }

    /// Java prints two digits where one would do. This differs only for the smallest numbers.
    private static func twoDigits(_ multiple: UInt64) -> (digits: [UInt8], exponent: Int) {
        var (value, exponent) = (Double(multiple) * 4.940656458412465, -324)
        while value >= 9.95 { (value, exponent) = (value / 10, exponent + 1) }
        let tenths = UInt8((value * 10).rounded())
        return ([zero + tenths / 10, zero + tenths % 10], exponent)
    }

    // MARK: From text

    /// Parses like `Double.parseDouble`; nil if the text is not a number.
    static func float(_ text: [UInt8]) -> Double? {
        guard let first = text.firstIndex(where: { $0 > 0x20 }),
            let last = text.lastIndex(where: { $0 > 0x20 })
        else { return nil }
        var rest = text[first...last]
        var sign = 1.0
        if rest.first == UInt8(ascii: "+") || rest.first == UInt8(ascii: "-") {
            sign = rest.removeFirst() == UInt8(ascii: "-") ? -1 : 1
        }
        if rest.elementsEqual("NaN".utf8) { return .nan }
        if rest.elementsEqual("Infinity".utf8) { return sign * .infinity }
        var isHexadecimal = false
        if rest.starts(with: "0x".utf8) || rest.starts(with: "0X".utf8) {
            isHexadecimal = true
            rest = rest.dropFirst(2)
        }
        return magnitude(&rest, isHexadecimal).map { sign * $0 }
    }

    /// Parses digits with a point, an exponent and a type suffix. Hexadecimal numbers must have an exponent.
    private static func magnitude(_ rest: inout ArraySlice<UInt8>, _ isHexadecimal: Bool) -> Double? {
        func isDigit(_ byte: UInt8) -> Bool {
            Lexer.isDigit(byte) || (isHexadecimal && (UInt8(ascii: "a")...UInt8(ascii: "f")).contains(byte | 0x20))
        }
        let whole = take(&rest, isDigit)
        var fraction: ArraySlice<UInt8> = []
        if rest.first == UInt8(ascii: ".") {
            rest.removeFirst()
            fraction = take(&rest, isDigit)
        }
        guard !(whole.isEmpty && fraction.isEmpty) else { return nil }
        var exponent = "0"
        let mark = isHexadecimal ? UInt8(ascii: "p") : UInt8(ascii: "e")
        if let letter = rest.first, letter | 0x20 == mark {
            rest.removeFirst()
            let isNegative = rest.first == UInt8(ascii: "-")
            if isNegative || rest.first == UInt8(ascii: "+") { rest.removeFirst() }
            let digits = take(&rest, Lexer.isDigit)
            guard !digits.isEmpty else { return nil }
            exponent = (isNegative ? "-" : "") + String(decoding: digits, as: UTF8.self)
        } else if isHexadecimal {
            return nil
        }
        if let letter = rest.first, "fFdD".utf8.contains(letter) { rest.removeFirst() }
        guard rest.isEmpty else { return nil }
        let digits =
            String(decoding: whole.isEmpty ? [zero] : whole, as: UTF8.self) + "."
            + String(decoding: fraction.isEmpty ? [zero] : fraction, as: UTF8.self)
        return Double((isHexadecimal ? "0x" : "") + digits + (isHexadecimal ? "p" : "e") + exponent)
    }

    private static func take(
        _ rest: inout ArraySlice<UInt8>, _ isPart: (UInt8) -> Bool
    ) -> ArraySlice<UInt8> {
        let taken = rest.prefix(while: isPart)
        rest.removeFirst(taken.count)
        return taken
    }
}
