/// What is wrong, or doubtful, in the source of a ruleset.
public struct Diagnostic: Sendable, Hashable {
    /// How much it matters.
    public enum Severity: String, Sendable, Hashable {
        /// The ruleset does not load.
        case error = "ERROR"
        /// The ruleset loads.
        case warning = "WARNING"
    }

    /// How much it matters.
    public var severity: Severity
    /// The name given to the source.
    public var fileName: String
    /// Where it is, in code points; nil for what concerns the file as a whole.
    public var range: Range<SourcePosition>?
    /// One sentence, in the hosted service's words where those are known.
    public var message: String
    /// What to do about it, where there is something to say.
    public var hint: String?

    /// Creates a diagnostic.
    public init(
        severity: Severity, fileName: String, range: Range<SourcePosition>? = nil, message: String,
        hint: String? = nil
    ) {
        self.severity = severity
        self.fileName = fileName
        self.range = range
        self.message = message
        self.hint = hint
    }
}

extension Diagnostic: Comparable {
    /// First what concerns the whole file, then by position, then by text.
    public static func < (left: Diagnostic, right: Diagnostic) -> Bool {
        let (a, b) = (left.range?.lowerBound.offset ?? -1, right.range?.lowerBound.offset ?? -1)
        return a != b ? a < b : left.message < right.message
    }
}

/// The source of a ruleset did not load.
public struct RulesetError: Error, Sendable, Hashable {
    /// All that was found, sorted; at least one is an error.
    public var diagnostics: [Diagnostic]
}

/// Collects diagnostics while a ruleset is read.
struct DiagnosticSink {
    /// More errors than these say no more.
    static let maximumErrors = 50

    let source: SourceText
    private(set) var diagnostics: [Diagnostic] = []
    private(set) var errorCount = 0

    init(_ source: SourceText) { self.source = source }

    var hasErrors: Bool { errorCount > 0 }

    mutating func error(_ message: String, at span: Span32, hint: String? = nil) {
        errorCount += 1
        guard errorCount <= Self.maximumErrors else { return }
        add(.error, message, span, hint)
    }

    mutating func warning(_ message: String, at span: Span32?, hint: String? = nil) {
        add(.warning, message, span, hint)
    }

    private mutating func add(
        _ severity: Diagnostic.Severity, _ message: String, _ span: Span32?, _ hint: String?
    ) {
        let diagnostic = Diagnostic(
            severity: severity, fileName: source.fileName, range: span.map(source.range),
            message: message, hint: hint)
        if diagnostics.last != diagnostic { diagnostics.append(diagnostic) }
    }
}
