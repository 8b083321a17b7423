/// The position of a request in a distributed trace: the `traceparent` field of W3C Trace Context.
public struct TraceContext: Sendable, Equatable {
    /// The trace ID in 32 hexadecimal digits, not all zero.
    public let traceID: String
    /// The ID of the span that sends the request, in 16 hexadecimal digits, not all zero.
    public let spanID: String
    /// The flags that version 00 and level 2 define: sampled (1) and random (2).
    public let flags: UInt8

    private static let sampled: UInt8 = 1
    private static let length = 55

    /// A new span of a trace.
    package init(traceID: String, spanID: String, flags: UInt8) {
        self.traceID = traceID
        self.spanID = spanID
        self.flags = flags & 3
    }

    /// Parses a field value (section 3.2.2): `00-`, 32 digits, `-`, 16 digits, `-`, 2 digits, in lower case. Later
    /// versions may continue after another `-`. A malformed value gives nil and must be ignored.
    package init?(_ text: UnsafeBufferPointer<UInt8>) {
        guard text.count >= TraceContext.length, text[2] == 0x2d, text[35] == 0x2d, text[52] == 0x2d,
            let version = TraceContext.byte(text[0], text[1]), version != 0xff,
            text.count == TraceContext.length || version > 0 && text[55] == 0x2d,
            let flags = TraceContext.byte(text[53], text[54]), let traceID = TraceContext.identifier(text[3..<35]),
            let spanID = TraceContext.identifier(text[36..<52])
        else { return nil }
        self.init(traceID: traceID, spanID: spanID, flags: flags)
    }

    /// Whether the trace's spans are recorded.
    public var isSampled: Bool { flags & TraceContext.sampled != 0 }

    /// The field's value, in version 00.
    package var field: String { "00-\(traceID)-\(spanID)-0\(flags)" }

    /// The start of a trace, with random ids.
    package static func root(isSampled: Bool) -> TraceContext {
        TraceContext(traceID: newID() + newID(), spanID: newID(), flags: 2 | (isSampled ? sampled : 0))
    }

    /// The same trace with a new random span.
    package func child() -> TraceContext {
        TraceContext(traceID: traceID, spanID: TraceContext.newID(), flags: flags)
    }

    private static func newID() -> String {
        let number = UInt64.random(in: 1...UInt64.max)
        return Hexadecimal.encode((0..<8).map { UInt8(truncatingIfNeeded: number >> (56 - 8 * $0)) })
    }

    private static func identifier(_ digits: Slice<UnsafeBufferPointer<UInt8>>) -> String? {
        guard digits.allSatisfy({ digit($0) != nil }), digits.contains(where: { $0 != 0x30 }) else { return nil }
        return String(decoding: digits, as: UTF8.self)
    }

    private static func byte(_ high: UInt8, _ low: UInt8) -> UInt8? {
        guard let high = digit(high), let low = digit(low) else { return nil }
        return high << 4 | low
    }

    private static func digit(_ byte: UInt8) -> UInt8? {
        switch byte {
        case UInt8(ascii: "0")...UInt8(ascii: "9"): byte - UInt8(ascii: "0")
        case UInt8(ascii: "a")...UInt8(ascii: "f"): byte - UInt8(ascii: "a") + 10
        default: nil
        }
    }
}

/// The `tracestate` field of W3C Trace Context, which is forwarded unchanged.
package enum TraceState {
    private static let maximumBytes = 512
    private static let maximumMembers = 32

    /// The field lines as one value; nil if it is empty, exceeds 512 bytes or 32 members, has a byte other than visible
    /// ASCII, space and tab, or has a member without a key or value.
    package static func joined(_ lines: [String]) -> String? {
        let text = lines.joined(separator: ",")
        guard (1...maximumBytes).contains(text.utf8.count),
            text.utf8.allSatisfy({ ASCII.isVisible($0) || $0 == 0x20 || $0 == 0x09 })
        else { return nil }
        // An empty member is allowed (section 3.3.1.1).
        let members = text.utf8.split(separator: UInt8(ascii: ",")).map {
            ASCII.trimmed(Array($0)[...])
        }
        .filter { !$0.isEmpty }
        let isList = members.allSatisfy { member in
            let parts = member.split(separator: UInt8(ascii: "="), maxSplits: 2, omittingEmptySubsequences: false)
            return parts.count == 2 && !parts[0].isEmpty && !parts[1].isEmpty && parts[0].count <= 256
        }
        return (1...maximumMembers).contains(members.count) && isList ? text : nil
    }
}
