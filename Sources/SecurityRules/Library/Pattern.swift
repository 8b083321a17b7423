import CRE2
import Synchronization

/// A compiled regular expression in RE2 syntax. Matching takes time linear in the length of the text.
///
/// Safety: RE2 objects are immutable once compiled and may be used by several threads; the pointer is freed once.
@safe
final class Pattern: @unchecked Sendable {
    /// The pattern is not valid RE2 syntax, or too large.
    struct Invalid: Error {
        var reason: String
    }

    /// The memory limit of a pattern in the source, in bytes.
    static let maximumMemory: Int64 = 1 << 20
    /// The maximum number of states of a pattern in the source, which follows from the memory limit.
    static let maximumSize = 1 << 16
    /// The maximum number of states of all patterns in one source.
    static let maximumTotalSize = 1 << 19
    /// The memory limit of a pattern computed at run time, in bytes.
    static let maximumComputedMemory: Int64 = 64 << 10
    /// The maximum length of a pattern computed at run time, in bytes.
    static let maximumComputedLength = 1024

    private let pointer: OpaquePointer
    /// The number of capture groups.
    let groupCount: Int
    /// The number of states, which bounds the work for each byte of text.
    let size: Int
    /// A simple equivalent of the pattern that needs no RE2, if there is one.
    let shape: Shape

    /// The simple forms of patterns. Most patterns in rules look like `image/.*`.
    enum Shape: Sendable {
        case general
        case exactly(Text)
        /// The text, then any number of characters without a line break.
        case prefix(Text)
        /// The text, then at least one character without a line break.
        case longerPrefix(Text)
    }

    init(_ source: Text, memory: Int64 = Pattern.maximumMemory) throws(Invalid) {
        var reason = [CChar](repeating: 0, count: 256)
        let bytes = source.bytes
        let compiled = unsafe bytes.withUnsafeBufferPointer { bytes in
            unsafe reason.withUnsafeMutableBufferPointer { reason in
                unsafe sluice_re2_compile(bytes.baseAddress, bytes.count, memory, reason.baseAddress, reason.count)
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

    /// Whether the pattern matches the whole text.
    func matches(_ text: Text) -> Bool { matchesByShape(text) ?? matchesByRE2(text) }

    /// The result without RE2; nil if the pattern or the text is not simple enough.
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

    /// `.` matches any character except a line break. Text that is not ASCII is left to RE2.
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

    /// The next match at or after a byte offset: the whole match, then its groups; nil for an unused group.
    func find(in text: Text, from start: Int) -> [Range<Int>?]? {
        let count = min(groupCount, 9) + 1
        var found = [sluice_re2_range](repeating: sluice_re2_range(begin: -1, end: -1), count: count)
        let isFound = text.withSpan { span in
            unsafe span.withUnsafeBufferPointer { bytes in
                unsafe found.withUnsafeMutableBufferPointer {
                    unsafe sluice_re2_find(pointer, bytes.baseAddress, bytes.count, start, $0.baseAddress, Int32(count))
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

/// A cache of compiled patterns that rules computed.
final class PatternCache: Sendable {
    /// The maximum number of patterns. When it is reached, the cache is emptied.
    static let capacity = 128

    private let patterns = Mutex<[Text: Pattern]>([:])

    /// The compiled pattern; nil if it is invalid, too long or too large.
    func pattern(_ source: Text) -> Pattern? {
        if let kept = patterns.withLock({ $0[source] }) { return kept }
        guard source.count <= Pattern.maximumComputedLength,
            let made = try? Pattern(source, memory: Pattern.maximumComputedMemory)
        else { return nil }
        // The key is a copy, so that the cache does not keep a request's bytes alive.
        let key = Text(Array(source.bytes))
        patterns.withLock {
            if $0.count >= Self.capacity { $0.removeAll() }
            $0[key] = made
        }
        return made
    }
}
