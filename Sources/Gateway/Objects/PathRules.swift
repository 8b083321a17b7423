import Wire

/// The operator's additional restrictions on the names of a bucket.
///
/// A pattern is compared with the whole name, segment by segment. `*` matches any characters within a segment. A
/// segment `**` matches any number of segments, including none; at the end of a pattern it matches at least one, so
/// that `tmp/**` is everything in `tmp`. All other characters match themselves. Matching takes time linear in the
/// name's length.
public struct PathRules: Sendable {
    /// Why a pattern is invalid.
    public struct PatternError: Error, Sendable, Equatable, CustomStringConvertible {
        public var pattern: String
        /// The error, for the operator.
        public var reason: String

        public var description: String { "pattern '\(pattern)': \(reason)" }
    }

    private let allowed: [Pattern]
    private let denied: [Pattern]
    private let maximumDepth: Int?
    private let rejectsDiscouraged: Bool

    /// No restrictions beyond the reference limits.
    public static let none = PathRules()

    private init() {
        allowed = []
        denied = []
        maximumDepth = nil
        rejectsDiscouraged = false
    }

    /// - Parameters:
    ///   - allowed: If there are any, a name must match one of them.
    ///   - denied: A name must match none of them, even if it matches an allowed one.
    ///   - maximumDepth: The maximum number of segments, at least 1.
    ///   - rejectsDiscouraged: Whether names with `#`, `[`, `]`, `*` or `?` are rejected.
    /// - Throws: ``PatternError`` for the first pattern that can never match or is ambiguous.
    public init(
        allowed: [String], denied: [String], maximumDepth: Int? = nil,
        rejectsDiscouraged: Bool = false
    ) throws(PatternError) {
        var compiled: [Pattern] = []
        for pattern in allowed { compiled.append(try Pattern(pattern)) }
        self.allowed = compiled
        compiled = []
        for pattern in denied { compiled.append(try Pattern(pattern)) }
        self.denied = compiled
        self.maximumDepth = maximumDepth
        self.rejectsDiscouraged = rejectsDiscouraged
    }

    private var isEmpty: Bool {
        allowed.isEmpty && denied.isEmpty && maximumDepth == nil && !rejectsDiscouraged
    }

    /// - Throws: ``NameError`` if a name violates a restriction.
    public func check(_ name: ObjectName) throws(NameError) {
        if isEmpty { return }
        if let violation = violation(name.rulesPath) { throw violation }
    }

    private func violation(_ path: String) -> NameError? {
        if isEmpty { return nil }
        let bytes = Array(path.utf8)
        if rejectsDiscouraged, let offset = bytes.firstIndex(where: PathRules.isDiscouraged) {
            return NameError(.discouraged(Character(Unicode.Scalar(bytes[offset]))), at: offset)
        }
        let segments = bytes.split(separator: UInt8(ascii: "/"), omittingEmptySubsequences: false)
        if let maximumDepth, segments.count > maximumDepth {
            return NameError(.tooDeep(maximumDepth), at: segments[max(0, maximumDepth)].startIndex)
        }
        if let pattern = denied.first(where: { $0.matches(segments) }) {
            return NameError(.denied(pattern.source), at: 0)
        }
        let isAllowed = allowed.isEmpty || allowed.contains { $0.matches(segments) }
        return isAllowed ? nil : NameError(.notAllowed, at: 0)
    }

    /// Equal for equal restrictions.
    var fingerprint: String {
        "\(allowed.map(\.source)) \(denied.map(\.source)) \(maximumDepth ?? 0) \(rejectsDiscouraged)"
    }

    /// Whether the name of an object satisfies the restrictions.
    func admits(_ name: String) -> Bool { violation(ObjectName.rulesPath(of: name)) == nil }

    /// Whether any name in a folder can satisfy the restrictions.
    /// - Parameter folder: The bytes of the folder's name, without the final slash.
    func mayServe(below folder: [UInt8]) -> Bool {
        if isEmpty { return true }
        if rejectsDiscouraged, folder.contains(where: PathRules.isDiscouraged) { return false }
        let segments = folder.split(separator: UInt8(ascii: "/"), omittingEmptySubsequences: false)
        if let maximumDepth, segments.count >= maximumDepth { return false }
        if denied.contains(where: { $0.matchesAll(below: segments) }) { return false }
        return allowed.isEmpty || allowed.contains { $0.mayMatch(below: segments) }
    }

    private static func isDiscouraged(_ byte: UInt8) -> Bool {
        switch byte {
        case UInt8(ascii: "#"), UInt8(ascii: "["), UInt8(ascii: "]"), UInt8(ascii: "*"),
            UInt8(ascii: "?"):
            true
        default: false
        }
    }
}

/// One pattern of ``PathRules``.
private struct Pattern: Sendable {
    private enum Segment: Sendable, Equatable {
        /// The bytes between stars. A segment without a star is one piece.
        case pieces([[UInt8]])
        /// `**`
        case anySegments
    }
    let source: String
    private let segments: [Segment]

    init(_ source: String) throws(PathRules.PatternError) {
        func fail(_ reason: String) -> PathRules.PatternError {
            PathRules.PatternError(pattern: source, reason: reason)
        }
        if source.isEmpty { throw fail("it is empty") }
        if source.utf8.count > ObjectName.maximumBytes { throw fail("it has more than 1024 bytes") }
        var segments: [Segment] = []
        for text in source.utf8.split(separator: 0x2f, omittingEmptySubsequences: false) {
            let segment = Array(text)
            if segment.isEmpty {
                throw fail("it has an empty segment, which no name has; begin and end without '/'")
            }
            if segment == [0x2e] || segment == [0x2e, 0x2e] {
                throw fail("it has a segment '.' or '..', which no name has")
            }
            if segment.contains(where: { $0 == 0 || $0 == 0x0a || $0 == 0x0d }) {
                throw fail("it has a NUL, CR or LF, which no name has")
            }
            if segment == [0x2a, 0x2a] {
                if segments.last != .anySegments { segments.append(.anySegments) }
                continue
            }
            let pieces = segment.split(separator: 0x2a, omittingEmptySubsequences: false)
            if pieces.count > 2, pieces.dropFirst().dropLast().contains(where: \.isEmpty) {
                throw fail("'**' must be a whole segment")
            }
            segments.append(.pieces(pieces.map(Array.init)))
        }
        // A final `**` matches at least one segment.
        if segments.last == .anySegments { segments.append(.pieces([[], []])) }
        self.source = source
        self.segments = segments
    }

    func matches(_ name: [ArraySlice<UInt8>]) -> Bool { positions(after: name)[segments.count] }

    /// Whether the pattern can match a name in this folder.
    func mayMatch(below folder: [ArraySlice<UInt8>]) -> Bool {
        positions(after: folder)[..<segments.count].contains(true)
    }

    /// Whether the pattern matches every name below this folder: its final `**` has been reached.
    func matchesAll(below folder: [ArraySlice<UInt8>]) -> Bool {
        guard segments.suffix(2) == [.anySegments, .pieces([[], []])] else { return false }
        return positions(after: folder)[segments.count - 2]
    }

    /// All positions in the pattern that can be reached after these segments.
    private func positions(after name: [ArraySlice<UInt8>]) -> [Bool] {
        var positions = [Bool](repeating: false, count: segments.count + 1)
        positions[0] = true
        skipAny(&positions)
        for segment in name {
            var next = [Bool](repeating: false, count: segments.count + 1)
            for index in segments.indices where positions[index] {
                switch segments[index] {
                case .anySegments: next[index] = true
                case .pieces(let pieces): if Pattern.matches(pieces, segment) { next[index + 1] = true }
                }
            }
            skipAny(&next)
            positions = next
        }
        return positions
    }

    private func skipAny(_ positions: inout [Bool]) {
        for index in segments.indices where positions[index] && segments[index] == .anySegments {
            positions[index + 1] = true
        }
    }

    /// Matches the first piece at the start, the last at the end, and the others as early as possible between them.
    private static func matches(_ pieces: [[UInt8]], _ segment: ArraySlice<UInt8>) -> Bool {
        guard let first = pieces.first, let last = pieces.last, segment.starts(with: first) else {
            return false
        }
        if pieces.count == 1 { return segment.count == first.count }
        var rest = segment.dropFirst(first.count)
        guard rest.count >= last.count, rest.suffix(last.count).elementsEqual(last) else {
            return false
        }
        rest = rest.dropLast(last.count)
        for piece in pieces.dropFirst().dropLast() {
            guard let found = Pattern.position(of: piece, in: rest) else { return false }
            rest = rest[(found + piece.count)...]
        }
        return true
    }

    private static func position(of piece: [UInt8], in text: ArraySlice<UInt8>) -> Int? {
        guard piece.count <= text.count else { return nil }
        for start in text.startIndex...(text.endIndex - piece.count)
        where text[start..<start + piece.count].elementsEqual(piece) {
            return start
        }
        return nil
    }
}
