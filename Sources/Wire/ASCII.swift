#if canImport(Darwin)
    import Darwin
#else
    import Glibc
#endif

/// The character classes of HTTP and JSON.
package enum ASCII {
    /// `DIGIT`.
    package static func isDigit(_ byte: UInt8) -> Bool { byte >= 0x30 && byte <= 0x39 }

    /// `a` to `z`.
    package static func isLowercase(_ byte: UInt8) -> Bool { byte >= 0x61 && byte <= 0x7a }

    /// `A` to `Z`.
    package static func isUppercase(_ byte: UInt8) -> Bool { byte >= 0x41 && byte <= 0x5a }

    /// `ALPHA`.
    package static func isLetter(_ byte: UInt8) -> Bool { isLowercase(byte | 0x20) }

    /// `VCHAR`: a visible character, which excludes the space.
    package static func isVisible(_ byte: UInt8) -> Bool { byte >= 0x21 && byte <= 0x7e }

    /// A space or tab.
    package static func isSpace(_ byte: UInt8) -> Bool { byte == 0x20 || byte == 0x09 }

    /// `CTL`.
    package static func isControl(_ byte: UInt8) -> Bool { byte < 0x20 || byte == 0x7f }

    /// The byte in lower case if it is a letter, otherwise unchanged.
    package static func lowercased(_ byte: UInt8) -> UInt8 {
        isUppercase(byte) ? byte | 0x20 : byte
    }

    /// Every byte is 1.
    @inline(__always)
    private static var ones: UInt64 { 0x0101_0101_0101_0101 }

    /// The eight bytes of `word`, each in lower case if it is a letter.
    @inline(__always)
    package static func lowercased(_ word: UInt64) -> UInt64 {
        let low = word & (ones &* 0x7f)
        // The high bit of each byte says whether the byte is at least `A`, or greater than `Z`. No addition carries.
        let atLeastA = low &+ ones &* (0x80 - 0x41)
        let aboveZ = low &+ ones &* (0x80 - 0x5b)
        return word | (atLeastA & ~aboveZ & ~word & (ones &* 0x80)) >> 2
    }

    /// Converts letters to lower case, eight bytes at a time; the last eight overlap the preceding ones.
    package static func lowercase(_ bytes: UnsafeMutableRawBufferPointer) {
        guard bytes.count >= 8 else {
            for index in bytes.indices { bytes[index] = lowercased(bytes[index]) }
            return
        }
        let last = bytes.count - 8
        var offset = 0
        while true {
            let word = bytes.loadUnaligned(fromByteOffset: offset, as: UInt64.self)
            bytes.storeBytes(of: lowercased(word), toByteOffset: offset, as: UInt64.self)
            if offset == last { return }
            offset = min(offset + 8, last)
        }
    }

    /// Bit n is set if byte n is a `tchar`. Literals: a computed constant would be loaded for each byte.
    private static let tokenBits: (UInt64, UInt64) = (
        0x03ff_6cfa_0000_0000, 0x57ff_ffff_c7ff_fffe
    )

    /// `tchar` (RFC 9110, section 5.6.2).
    @inline(__always)
    package static func isToken(_ byte: UInt8) -> Bool {
        let bits = byte < 64 ? tokenBits.0 : tokenBits.1
        return byte < 128 && bits &>> UInt64(byte & 63) & 1 == 1
    }

    /// Copies the bytes before the first one that is not a `tchar`, in lower case. Eight bytes are examined at once while
    /// they are letters, digits and hyphens, which make nearly every field name.
    /// - Parameter output: Has space for all of `bytes`. Bytes behind the copied ones may change.
    /// - Returns: Their number.
    @inline(__always)
    package static func copyToken(
        _ bytes: UnsafeRawBufferPointer, lowercasedTo output: UnsafeMutableRawBufferPointer
    ) -> Int {
        precondition(output.count >= bytes.count)
        var length = 0
        while length + 8 <= bytes.count {
            let word = bytes.loadUnaligned(fromByteOffset: length, as: UInt64.self)
            output.storeBytes(of: lowercased(word), toByteOffset: length, as: UInt64.self)
            let others = othersThanNameBytes(word)
            length += others.trailingZeroBitCount / 8
            if others == 0 { continue }
            guard isToken(bytes[length]) else { return length }
            length += 1
        }
        while length < bytes.count, isToken(bytes[length]) {
            output[length] = lowercased(bytes[length])
            length += 1
        }
        return length
    }

    /// The high bit of each byte of `word` that is not a letter, digit or hyphen.
    @inline(__always)
    private static func othersThanNameBytes(_ word: UInt64) -> UInt64 {
        let low = word & (ones &* 0x7f)
        let folded = low | (ones &* 0x20)
        // High bit of each byte of a sum: the byte is at least the number subtracted from 0x80. No addition carries.
        let letters = (folded &+ ones &* (0x80 - 0x61)) & ~(folded &+ ones &* (0x80 - 0x7b))
        let digits = (low &+ ones &* (0x80 - 0x30)) & ~(low &+ ones &* (0x80 - 0x3a))
        let hyphens = ~((low ^ (ones &* 0x2d)) &+ ones &* 0x7f)
        return ~((letters | digits | hyphens) & ~word) & (ones &* 0x80)
    }

    /// `unreserved` (RFC 3986, section 2.3).
    package static func isUnreserved(_ byte: UInt8) -> Bool {
        switch byte {
        case 0x30...0x39, 0x41...0x5a, 0x61...0x7a, 0x2d, 0x2e, 0x5f, 0x7e: true
        default: false
        }
    }

    /// The value of a hexadecimal digit.
    package static func hexadecimal(_ byte: UInt8) -> UInt8? {
        switch byte {
        case 0x30...0x39: byte - 0x30
        case 0x41...0x46: byte - 0x41 + 10
        case 0x61...0x66: byte - 0x61 + 10
        default: nil
        }
    }

    /// Sanitizes untrusted text for a log: visible ASCII, with other bytes as spaces, at most 200 bytes.
    package static func plainWords(_ text: String) -> String {
        String(
            decoding: text.utf8.prefix(200).map { $0 == 0x20 || isVisible($0) ? $0 : 0x20 },
            as: UTF8.self)
    }

    /// The bytes without leading and trailing spaces and tabs.
    package static func trimmed(_ bytes: ArraySlice<UInt8>) -> ArraySlice<UInt8> {
        var bytes = bytes
        while let first = bytes.first, isSpace(first) { bytes.removeFirst() }
        while let last = bytes.last, isSpace(last) { bytes.removeLast() }
        return bytes
    }

    /// The index of the first byte that is at most `limit` (below 0x80), at or after `start`; nil if there is none. Eight
    /// bytes are examined at once.
    @inline(__always)
    package static func firstIndex(atMost limit: UInt8, in text: Span<UInt8>, from start: Int) -> Int? {
        text.withUnsafeBytes { text in
            var index = start
            while index + 8 <= text.count {
                let word = text.loadUnaligned(fromByteOffset: index, as: UInt64.self)
                // The high bit of each byte says whether the byte is greater. No addition carries.
                let greater = (word & (ones &* 0x7f)) &+ ones &* UInt64(0x7f - limit) | word
                let found = ~greater & (ones &* 0x80)
                if found != 0 { return index + UInt64(littleEndian: found).trailingZeroBitCount / 8 }
                index += 8
            }
            while index < text.count {
                if text[index] <= limit { return index }
                index += 1
            }
            return nil
        }
    }

    /// The index of the first byte that is not `unreserved`, at or after `start`; the count if there is none. Eight bytes
    /// are examined at once while they are letters, digits and hyphens.
    package static func firstReserved(in text: UnsafeBufferPointer<UInt8>, from start: Int) -> Int {
        let bytes = UnsafeRawBufferPointer(text)
        var index = start
        while index + 8 <= bytes.count,
            othersThanNameBytes(bytes.loadUnaligned(fromByteOffset: index, as: UInt64.self)) == 0
        {
            index += 8
        }
        while index < bytes.count, isUnreserved(bytes[index]) { index += 1 }
        return index
    }

    /// Whether `text` equals `lower`, which is in lower case, ignoring the case of ASCII letters only. Unicode folds
    /// the Kelvin sign to `k`, so a proxy and this program could interpret a field differently.
    package static func isEqual(_ text: Span<UInt8>, ignoringCase lower: StaticString) -> Bool {
        guard text.count == lower.utf8CodeUnitCount else { return false }
        return text.withUnsafeBytes { text in
            guard text.count >= 8 else {
                for index in text.indices where lowercased(text[index]) != lower.utf8Start[index] {
                    return false
                }
                return true
            }
            let wanted = UnsafeRawPointer(lower.utf8Start)
            let last = text.count - 8
            var offset = 0
            while true {
                let word = text.loadUnaligned(fromByteOffset: offset, as: UInt64.self)
                if lowercased(word) != wanted.loadUnaligned(fromByteOffset: offset, as: UInt64.self) {
                    return false
                }
                if offset == last { return true }
                offset = min(offset + 8, last)
            }
        }
    }

    /// Whether a media type is `type`, which is in lower case, ignoring its parameters (RFC 9110, section 8.3.1).
    package static func isMediaType(_ text: String, _ type: StaticString) -> Bool {
        let text = text.utf8.span
        var (start, end) = (0, firstIndex(of: ";", in: text, from: 0) ?? text.count)
        while start < end, isSpace(text[start]) { start += 1 }
        while end > start, isSpace(text[end - 1]) { end -= 1 }
        return isEqual(text.extracting(start..<end), ignoringCase: type)
    }

    /// Whether `text` begins with `prefix`, in the same case.
    package static func hasPrefix(_ text: Span<UInt8>, _ prefix: StaticString) -> Bool {
        guard text.count >= prefix.utf8CodeUnitCount else { return false }
        for index in 0..<prefix.utf8CodeUnitCount where text[index] != prefix.utf8Start[index] {
            return false
        }
        return true
    }

    /// The index of the first `character` at or after `start`.
    package static func firstIndex(
        of character: Unicode.Scalar, in text: Span<UInt8>, from start: Int
    ) -> Int? {
        guard start < text.count else { return nil }
        return text.withUnsafeBytes { bytes in
            let first = bytes.baseAddress!
            return memchr(first + start, Int32(character.value), bytes.count - start).map {
                UnsafeRawPointer($0) - first
            }
        }
    }
}
