import SecurityRules
import Wire

/// A place where the analysis knows less than the engine: an operation whose result can be anything.
struct Approximation: Hashable {
    var fileName: String
    var position: SourcePosition
    /// The operation, as it is written.
    var text: String
    var reason: String
}
