extension Ruleset {
    /// The candidate that a mistyped word was probably meant to be; nil if none is similar.
    package static func suggestion(for word: String, among candidates: [String]) -> String? {
        nearestName(to: word, among: candidates)
    }
}
