import Wire

/// Suggestions for misspelled words.
enum Spelling {
    /// The candidate with the smallest edit distance, if that is at most a third of the word.
    static func nearest(to word: String, among candidates: [String]) -> String? {
        let word = Array(word.asciiLowercased().utf8)
        let scored = candidates.map {
            ($0, EditDistance.between(word, Array($0.asciiLowercased().utf8)))
        }
        guard let best = scored.min(by: { $0.1 < $1.1 }) else { return nil }
        return best.1 <= max(1, word.count / 3) ? best.0 : nil
    }
}
