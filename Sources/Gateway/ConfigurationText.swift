extension Configuration {
    /// The whole configuration as YAML, with what overrode the file.
    public func yaml() -> String {
        var lines = YAMLLines()
        for setting in Configuration.settings {
            lines.add(setting.path, setting.print(self), comment: overrides[setting.path])
        }
        for bucket in buckets {
            for setting in Bucket.settings {
                lines.add("buckets.\(bucket.name)/\(setting.path)", setting.print(bucket))
            }
        }
        return lines.text
    }
}

/// Builds nested YAML from dotted paths in order.
private struct YAMLLines {
    private(set) var text = ""
    private var open: [Substring] = []

    /// A `/` after a bucket's name ends it, since a name may have dots.
    mutating func add(_ path: String, _ value: String, comment: String? = nil) {
        var names = path.split(separator: ".")
        if let slash = path.firstIndex(of: "/") {
            let head = path[..<slash]
            names = ["buckets", head.dropFirst("buckets.".count)]
            names += path[path.index(after: slash)...].split(separator: ".")
        }
        let parents = names.dropLast()
        var common = 0
        while common < min(open.count, parents.count), open[common] == parents[common] {
            common += 1
        }
        for depth in common..<parents.count {
            text += String(repeating: "  ", count: depth) + parents[depth] + ":\n"
        }
        open = Array(parents)
        text += String(repeating: "  ", count: parents.count) + names.last! + ": " + value
        text += comment.map { "  # from \($0)\n" } ?? "\n"
    }
}
