import Wire

/// An error or a warning about the source of a ruleset.
public struct Diagnostic: Sendable, Hashable {
    /// The severity of a diagnostic.
    public enum Severity: String, Sendable, Hashable {
        /// The ruleset does not load.
        case error = "ERROR"
        /// The ruleset loads.
        case warning = "WARNING"
    }

    /// The severity of the diagnostic.
    public var severity: Severity
    /// The file name given to the source.
    public var fileName: String
    /// The location in code points; nil if the diagnostic concerns the whole file.
    public var range: Range<SourcePosition>?
    /// One sentence. It uses the hosted service's text where that is known.
    public var message: String
    /// Advice on how to fix it, if there is any.
    public var hint: String?

    /// Creates a diagnostic.
    public init(
        severity: Severity, fileName: String, range: Range<SourcePosition>? = nil, message: String, hint: String? = nil
    ) {
        self.severity = severity
        self.fileName = fileName
        self.range = range
        self.message = message
        self.hint = hint
    }
}

extension Diagnostic: Comparable {
    /// Diagnostics of the whole file first, then by position, then by message.
    public static func < (left: Diagnostic, right: Diagnostic) -> Bool {
        let (a, b) = (left.range?.lowerBound.offset ?? -1, right.range?.lowerBound.offset ?? -1)
        return a != b ? a < b : left.message < right.message
    }
}

/// The error thrown for a source that cannot be loaded.
public struct RulesetError: Error, Sendable, Hashable {
    /// All diagnostics, sorted. At least one is an error.
    public var diagnostics: [Diagnostic]
}

/// Collects diagnostics while a ruleset is loaded.
struct DiagnosticSink {
    /// Further errors are dropped.
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
            severity: severity, fileName: source.fileName, range: span.map(source.range), message: message, hint: hint)
        if diagnostics.last != diagnostic { diagnostics.append(diagnostic) }
    }
}
