// Every module that imports Wire compares text by its bytes. Swift's own operators compare strings by canonical
// equivalence and search them by grapheme: U+212A equals "K", "a\u{301}" does not begin with "a", and "/" followed by
// U+0301 is not a slash. Stores, signatures and other programs compare bytes.
//
// The declarations below hide Swift's own, so the usual spelling compares bytes: `==`, `switch`, derived `Equatable`,
// `hasPrefix`, `split`. Dictionaries and sets can't be changed this way, so their keys are `BytewiseString`. A tidy
// test searches the compiled objects for calls of Swift's own comparison.

extension String {
    /// Whether the bytes are the same.
    package static func == (left: String, right: String) -> Bool {
        BytewiseString.areEqual(left, right)
    }

    /// Whether the bytes differ.
    package static func != (left: String, right: String) -> Bool {
        !BytewiseString.areEqual(left, right)
    }

    /// Matches a pattern of `switch` by bytes.
    package static func ~= (pattern: String, value: String) -> Bool {
        BytewiseString.areEqual(pattern, value)
    }

    /// The order of the bytes.
    package static func < (left: String, right: String) -> Bool {
        left.utf8.lexicographicallyPrecedes(right.utf8)
    }

    /// The order of the bytes.
    package static func > (left: String, right: String) -> Bool { right < left }

    /// The order of the bytes.
    package static func <= (left: String, right: String) -> Bool { !(right < left) }

    /// The order of the bytes.
    package static func >= (left: String, right: String) -> Bool { !(left < right) }

    /// Whether the bytes begin with the bytes of `prefix`.
    package func hasPrefix(_ prefix: String) -> Bool { utf8.starts(with: prefix.utf8) }

    /// Whether the bytes end with the bytes of `suffix`.
    package func hasSuffix(_ suffix: String) -> Bool {
        utf8.reversed().starts(with: suffix.utf8.reversed())
    }
}

extension String {
    /// The text with each occurrence of `target` replaced. `target` must not be empty.
    package func replacing(_ text: String, with replacement: String) -> String {
        let (bytes, wanted) = (Array(utf8), Array(text.utf8))
        var output: [UInt8] = []
        var index = 0
        while index < bytes.count {
            if bytes[index...].starts(with: wanted) {
                output += replacement.utf8
                index += wanted.count
            } else {
                output.append(bytes[index])
                index += 1
            }
        }
        return String(decoding: output, as: UTF8.self)
    }
}

extension Substring {
    /// Whether the bytes are the same.
    package static func == (left: Substring, right: Substring) -> Bool {
        left.utf8.elementsEqual(right.utf8)
    }

    /// Whether the bytes differ.
    package static func != (left: Substring, right: Substring) -> Bool { !(left == right) }

    /// Whether the bytes are the same.
    package static func == (left: Substring, right: String) -> Bool {
        left.utf8.elementsEqual(right.utf8)
    }

    /// Whether the bytes differ.
    package static func != (left: Substring, right: String) -> Bool { !(left == right) }

    /// Whether the bytes begin with the bytes of `prefix`.
    package func hasPrefix(_ prefix: String) -> Bool { utf8.starts(with: prefix.utf8) }

    /// Whether the bytes end with the bytes of `suffix`.
    package func hasSuffix(_ suffix: String) -> Bool {
        utf8.reversed().starts(with: suffix.utf8.reversed())
    }
}

extension Optional where Wrapped == String {
    /// Whether the bytes are the same.
    package static func == (left: String?, right: String?) -> Bool {
        switch (left, right) {
        case (nil, nil): true
        case (let left?, let right?): BytewiseString.areEqual(left, right)
        default: false
        }
    }

    /// Whether the bytes differ.
    package static func != (left: String?, right: String?) -> Bool { !(left == right) }

    // The compiler prefers these overloads for a literal, which is a String before it is an Optional.

    /// Whether the bytes are the same.
    package static func == (left: String?, right: String) -> Bool {
        left.map { BytewiseString.areEqual($0, right) } ?? false
    }

    /// Whether the bytes differ.
    package static func != (left: String?, right: String) -> Bool { !(left == right) }

    /// Whether the bytes are the same.
    package static func == (left: String, right: String?) -> Bool { right == left }

    /// Matches a pattern of `switch` by bytes.
    package static func ~= (pattern: String, value: String?) -> Bool { value == pattern }
}

extension Array where Element == String {
    /// Whether the bytes are the same.
    package static func == (left: [String], right: [String]) -> Bool {
        left.count == right.count && left.indices.allSatisfy { left[$0] == right[$0] }
    }

    /// Whether the bytes differ.
    package static func != (left: [String], right: [String]) -> Bool { !(left == right) }
}

extension Sequence where Element == String {
    /// Whether an element has the same bytes.
    package func contains(_ text: String) -> Bool { contains { $0 == text } }

    /// The strings in the order of their bytes.
    package func sorted() -> [String] { sorted { $0 < $1 } }
}

extension Collection where Element == String {
    /// The first index of these bytes.
    package func firstIndex(of text: String) -> Index? { firstIndex { $0 == text } }
}

/// Searches for an ASCII character. Each function traps if the character is not ASCII.
extension StringProtocol where SubSequence == Substring, UTF8View: BidirectionalCollection {
    /// Whether the text contains an ASCII character.
    package func contains(_ character: Character) -> Bool {
        firstIndex(of: character) != nil
    }

    /// The first index of an ASCII character.
    package func firstIndex(of character: Character) -> String.Index? {
        utf8.firstIndex(of: byte(of: character))
    }

    /// The last index of an ASCII character.
    package func lastIndex(of character: Character) -> String.Index? {
        utf8.lastIndex(of: byte(of: character))
    }

    /// Splits at an ASCII character.
    package func split(
        separator: Character, maxSplits: Int = .max, omittingEmptySubsequences: Bool = true
    ) -> [Substring] {
        utf8.split(
            separator: byte(of: separator), maxSplits: maxSplits, omittingEmptySubsequences: omittingEmptySubsequences
        ).map { self[$0.startIndex..<$0.endIndex] }
    }

    /// The byte of an ASCII character. CRLF is rejected: Swift treats it as one character of two bytes.
    private func byte(of character: Character) -> UInt8 {
        precondition(character.utf8.count == 1, "a search is for one character of ASCII")
        return character.utf8.first!
    }

    /// The text with A–Z in lower case. Other characters are unchanged, even U+212A, whose lower case is "k".
    package func asciiLowercased() -> String {
        String(decoding: utf8.map(ASCII.lowercased), as: UTF8.self)
    }

    /// The text with a–z in upper case. Other characters are unchanged.
    package func asciiUppercased() -> String {
        String(decoding: utf8.map { ASCII.isLowercase($0) ? $0 ^ 0x20 : $0 }, as: UTF8.self)
    }
}

extension Dictionary where Key == BytewiseString {
    /// The value of a key with these bytes.
    package subscript(key: String) -> Value? {
        get { self[BytewiseString(key)] }
        set { self[BytewiseString(key)] = newValue }
    }

    /// The value of a key with these bytes.
    package subscript(key: String, default value: @autoclosure () -> Value) -> Value {
        get { self[BytewiseString(key), default: value()] }
        set { self[BytewiseString(key)] = newValue }
    }
}

extension Set where Element == BytewiseString {
    /// Whether an element has the same bytes.
    package func contains(_ text: String) -> Bool { contains(BytewiseString(text)) }

    /// Whether none of `texts` is in the set.
    package func isDisjoint(with texts: [String]) -> Bool { !texts.contains { contains($0) } }

    /// Inserts a text, compared by its bytes.
    package mutating func insert(_ text: String) { insert(BytewiseString(text)) }
}
