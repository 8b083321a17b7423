/// The name among `candidates` that `name` was likely meant to be; nil where none is near.
func nearestName(to name: String, among candidates: some Sequence<String>) -> String? {
    let limit = max(1, name.utf8.count / 3)
    var best: (name: String, distance: Int)?
    for candidate in candidates where abs(candidate.utf8.count - name.utf8.count) <= limit {
        let sameButCase = candidate.lowercased() == name.lowercased()
        let distance = sameButCase ? 0 : editDistance(Array(name.utf8), Array(candidate.utf8))
        guard distance <= limit, candidate != name else { continue }
        if let known = best, (known.distance, known.name) <= (distance, candidate) { continue }
        best = (candidate, distance)
    }
    return best?.name
}

/// Insertions, deletions, substitutions and swaps of neighbours.
private func editDistance(_ a: [UInt8], _ b: [UInt8]) -> Int {
    guard a.count <= 64, b.count <= 64 else { return .max }
    var rows = [Array(0...b.count)]
    for i in 0..<a.count {
        var row = [i + 1]
        for j in 0..<b.count {
            var least = min(rows[i][j] + (a[i] == b[j] ? 0 : 1), rows[i][j + 1] + 1, row[j] + 1)
            if i > 0, j > 0, a[i] == b[j - 1], a[i - 1] == b[j] {
                least = min(least, rows[i - 1][j - 1] + 1)
            }
            row.append(least)
        }
        rows.append(row)
    }
    return rows[a.count][b.count]
}
