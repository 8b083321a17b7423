import Wire

/// The candidate that `name` is probably a misspelling of; nil if none is similar.
func nearestName(to name: String, among candidates: some Sequence<String>) -> String? {
    let limit = max(1, name.utf8.count / 3)
    var best: (name: String, distance: Int)?
    for candidate in candidates where abs(candidate.utf8.count - name.utf8.count) <= limit {
        let sameButCase = candidate.asciiLowercased() == name.asciiLowercased()
        let distance = sameButCase ? 0 : distance(name, candidate)
        guard distance <= limit, candidate != name else { continue }
        if let known = best, (known.distance, known.name) <= (distance, candidate) { continue }
        best = (candidate, distance)
    }
    return best?.name
}

/// Nobody has mistyped a longer name by a few letters; the time to compare grows with the square of the length.
private func distance(_ a: String, _ b: String) -> Int {
    guard a.utf8.count <= 64, b.utf8.count <= 64 else { return .max }
    return EditDistance.between(Array(a.utf8), Array(b.utf8))
}
