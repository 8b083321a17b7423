import Buckets
import HTTPServer
import Wire

extension Preconditions {
    /// Whether any of the fields may be a condition: most requests have none, which one pass shows.
    static func mayBe(in fields: HeaderFields) -> Bool {
        fields.contains { $0.first == UInt8(ascii: "i") || $0.first == UInt8(ascii: "x") }
    }

    /// Parses the conditions of a request (RFC 9110, section 13.1). Malformed dates are ignored, as it requires.
    /// - Parameter now: Seconds since 1970.
    /// - Throws: ``Problem`` with `invalid-argument` for a malformed list of tags or a malformed number.
    init(_ fields: HeaderFields, now: @autoclosure () -> Int64) throws(Problem) {
        self.init()
        if let text = fields.list("if-match") {
            ifMatch = try Preconditions.tags(text, "If-Match", keepingWeak: false)
        }
        if let text = fields.list("if-none-match") {
            ifNoneMatch = try Preconditions.tags(text, "If-None-Match", keepingWeak: true)
        }
        // A field with two dates is malformed: it is not clear which one counts.
        if let text = fields.list("if-modified-since") {
            ifModifiedSince = HTTPDate.parse(text.utf8.span, now: now())
        }
        if let text = fields.list("if-unmodified-since") {
            ifUnmodifiedSince = HTTPDate.parse(text.utf8.span, now: now())
        }
        generation = try Preconditions.number(fields, "x-object-generation-match")
        metageneration = try Preconditions.number(fields, "x-object-metageneration-match")
    }

    private static func tags(_ text: String, _ name: String, keepingWeak: Bool) throws(Problem)
        -> Tags
    {
        let bytes = Array(text.utf8)
        if ASCII.trimmed(bytes[...]).elementsEqual("*".utf8) { return .any }
        guard let tags = EntityTag.list(bytes[...]) else {
            throw Problem(.invalidArgument, "\(name) is '*' or a list of entity tags in double quotes.")
        }
        return .tags(tags.filter { keepingWeak || !$0.isWeak }.map(\.value))
    }

    private static func number(_ fields: HeaderFields, _ name: StaticString) throws(Problem)
        -> Int64?
    {
        guard let text = fields.list(name) else { return nil }
        let digits = Array(text.utf8)
        guard let value = Decimal.saturating(digits.span), value <= Int64.max else {
            throw Problem(.invalidArgument, "\(name) is a decimal number.")
        }
        return Int64(value)
    }
}

/// An entity tag (RFC 9110, section 8.8.3).
struct EntityTag: Equatable {
    /// The tag without its quotes.
    var value: String
    var isWeak: Bool

    /// Parses a list of tags. nil if it is malformed or empty.
    static func list(_ text: ArraySlice<UInt8>) -> [EntityTag]? {
        var tags: [EntityTag] = []
        var rest = ASCII.trimmed(text)
        while !rest.isEmpty {
            if rest.first == UInt8(ascii: ",") {
                rest = ASCII.trimmed(rest.dropFirst())
                continue
            }
            guard let tag = first(&rest) else { return nil }
            tags.append(tag)
            rest = ASCII.trimmed(rest)
            guard rest.isEmpty || rest.first == UInt8(ascii: ",") else { return nil }
        }
        return tags.isEmpty ? nil : tags
    }

    /// Parses one tag at the start.
    private static func first(_ rest: inout ArraySlice<UInt8>) -> EntityTag? {
        let isWeak = rest.starts(with: "W/".utf8)
        if isWeak { rest = rest.dropFirst(2) }
        guard rest.first == UInt8(ascii: "\"") else { return nil }
        rest = rest.dropFirst()
        guard let end = rest.firstIndex(of: UInt8(ascii: "\"")) else { return nil }
        let value = rest[..<end]
        guard value.allSatisfy({ ASCII.isVisible($0) || $0 >= 0x80 }) else { return nil }
        rest = rest[(end + 1)...]
        return EntityTag(value: String(decoding: value, as: UTF8.self), isWeak: isWeak)
    }
}

extension RangeRequest {
    /// Parses `Range` and `If-Range`.
    ///
    /// `If-Range` (RFC 9110, section 13.1.5) matches only the same strong tag. A date never matches: an object can be
    /// replaced twice in a second, so `Last-Modified` is a weak validator (section 8.8.2.2). Without a match the whole
    /// object is sent.
    init(_ fields: HeaderFields) {
        guard let range = ByteRange(fields) else { return }
        if let condition = fields.list("if-range") {
            guard let tags = EntityTag.list(Array(condition.utf8)[...]), tags.count == 1,
                !tags[0].isWeak
            else { return }
            entityTag = tags[0].value
        }
        self.range = range
    }
}
