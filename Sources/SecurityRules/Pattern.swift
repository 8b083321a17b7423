import CRE2
import Synchronization

/// A compiled regular expression of RE2's syntax, whose time to match is linear in the text.
///
/// Safety: RE2 objects are immutable once compiled and may be used by several threads; the pointer is freed once.
@safe
final class Pattern: @unchecked Sendable {
    /// The pattern is not one of RE2's.
    struct Invalid: Error {
        var reason: String
    }

    /// What one in the source may take of memory.
    static let maximumMemory: Int64 = 1 << 20
    /// What one computed at run time may take.
    static let maximumComputedMemory: Int64 = 64 << 10
    /// The longest that is compiled at run time, in bytes.
    static let maximumComputedLength = 1024

    private let pointer: OpaquePointer
    /// The number of its groups.
    let groupCount: Int
    /// How many states there are, which bounds the work for a byte of text.
    let size: Int
    /// What is compared instead of running RE2, where the pattern is that simple.
    let shape: Shape

    /// Patterns that need no automaton: by far the most are `image/.*` and its like.
    enum Shape: Sendable {
        case general
        case exactly(Text)
        /// The text, then anything on one line.
        case prefix(Text)
        /// The text, then at least one character on one line.
        case longerPrefix(Text)
    }

    init(_ source: Text, memory: Int64 = Pattern.maximumMemory) throws(Invalid) {
        var reason = [CChar](repeating: 0, count: 256)
        let bytes = source.bytes
        let compiled = unsafe bytes.withUnsafeBufferPointer { bytes in
            unsafe reason.withUnsafeMutableBufferPointer { reason in
                unsafe sluice_re2_compile(
                    bytes.baseAddress, bytes.count, memory, reason.baseAddress, reason.count)
            }
        }
        guard let compiled = unsafe compiled else {
            let text = reason.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }
            throw Invalid(reason: String(decoding: text, as: UTF8.self))
        }
        unsafe pointer = compiled
        groupCount = unsafe Int(sluice_re2_groups(compiled))
        size = unsafe Int(sluice_re2_program_size(compiled))
        shape = Self.shape(of: source)
    }

    deinit { unsafe sluice_re2_free(pointer) }

    // MARK: Matching

    /// Whether all of the text matches.
    func matches(_ text: Text) -> Bool { matchesByShape(text) ?? matchesByRE2(text) }

    /// The answer without RE2; nil where the pattern or the text is not simple enough.
    func matchesByShape(_ text: Text) -> Bool? {
        switch shape {
        case .general: nil
        case .exactly(let literal): text == literal
        case .prefix(let literal): Self.continues(text, literal, atLeast: 0)
        case .longerPrefix(let literal): Self.continues(text, literal, atLeast: 1)
        }
    }

    func matchesByRE2(_ text: Text) -> Bool {
        text.withSpan { span in
            unsafe span.withUnsafeBufferPointer {
                unsafe sluice_re2_full_match(pointer, $0.baseAddress, $0.count) == 1
            }
        }
    }

    /// A full stop matches a character that is not the end of a line; beyond ASCII, RE2 decides what a character is.
    private static func continues(_ text: Text, _ literal: Text, atLeast minimum: Int) -> Bool? {
        guard text.hasPrefix(literal) else { return false }
        guard text.count >= literal.count + minimum else { return false }
        return text.withSpan { bytes -> Bool? in
            var index = literal.count
            while index < bytes.count {
                if bytes[index] >= 0x80 { return nil }
                if bytes[index] == UInt8(ascii: "\n") { return false }
                index &+= 1
            }
            return true
        }
    }

    /// The next match at or after a byte: the whole, then its groups; nil for a group that took no part.
    func find(in text: Text, from start: Int) -> [Range<Int>?]? {
        let count = min(groupCount, 9) + 1
        var found = [sluice_re2_range](
            repeating: sluice_re2_range(begin: -1, end: -1), count: count)
        let isFound = text.withSpan { span in
            unsafe span.withUnsafeBufferPointer { bytes in
                unsafe found.withUnsafeMutableBufferPointer {
                    unsafe sluice_re2_find(
                        pointer, bytes.baseAddress, bytes.count, start, $0.baseAddress, Int32(count)
                    )
                }
            }
        }
        guard isFound == 1 else { return nil }
        return found.map { $0.begin < 0 ? nil : Int($0.begin)..<Int($0.end) }
    }

    // MARK: Shape

    private static func shape(of source: Text) -> Shape {
        let bytes = source.bytes
        var literal: [UInt8] = []
        var index = 0
        while index < bytes.count {
            let byte = bytes[index]
            if byte == UInt8(ascii: "\\"), index + 1 < bytes.count,
                "./-_".utf8.contains(bytes[index + 1])
            {
                literal.append(bytes[index + 1])
                index += 2
                continue
            }
            if byte == UInt8(ascii: "."), index + 2 == bytes.count {
                if bytes[index + 1] == UInt8(ascii: "*") { return .prefix(Text(literal)) }
                if bytes[index + 1] == UInt8(ascii: "+") { return .longerPrefix(Text(literal)) }
            }
            let isPlain = Lexer.isWordPart(byte) || "/-@: ,".utf8.contains(byte)
            guard isPlain else { return .general }
            literal.append(byte)
            index += 1
        }
        return .exactly(Text(literal))
    }
}

/// Patterns that rules computed, kept for the next time.
final class PatternCache: Sendable {
    /// When so many are kept, all are forgotten.
    static let capacity = 128

    private let patterns = Mutex<[Text: Pattern]>([:])

    /// The pattern; nil where it is not one, too long or too large.
    func pattern(_ source: Text) -> Pattern? {
        if let kept = patterns.withLock({ $0[source] }) { return kept }
        guard source.count <= Pattern.maximumComputedLength,
            let made = try? Pattern(source, memory: Pattern.maximumComputedMemory)
        else { return nil }
        // The key owns its bytes, so that the cache keeps no request alive.
        let key = Text(Array(source.bytes))
        patterns.withLock {
            if $0.count >= Self.capacity { $0.removeAll() }
            $0[key] = made
        }
        return made
    }
}
