extension Ruleset {
    /// Warnings of statements that allow lists at a fixed depth, where a list of the folder above is denied.
    ///
    /// A list is evaluated on the path of its folder, which has a segment less than the objects in it. So
    /// `match /{uid}/{file} { allow read; }` allows to get `/alice/a.jpg`, but not to list `/alice`. There is no warning if
    /// another block may allow that list, or if a deeper block shows that the path is meant as a folder. Takes milliseconds.
    public func fixedDepthListWarnings() -> [Diagnostic] {
        guard version != 1 else { return [] }
        let listing = program.blocks.map { block in
            block.allows.filter { mayAllowList(program.allows[$0]) }
        }
        var warnings: [Diagnostic] = []
        for (index, block) in program.blocks.enumerated() {
            // Below /b/{bucket}/o.
            guard let allow = listing[index].first, block.glob < 0, block.segments.count > 3,
                block.segments.last?.name != nil
            else { continue }
            let folder = block.segments.dropLast()
            let isCovered = zip(program.blocks, listing).contains { other, lists in
                !lists.isEmpty && other.matches(folder)
            }
            let isFolder = program.blocks.contains { $0.isBelow(block.segments) }
            if isCovered || isFolder { continue }
            warnings.append(
                Diagnostic(
                    severity: .warning, fileName: fileName, range: program.source.range(program.allows[allow].headSpan),
                    message: "This allows no list of the folder that has the objects: a list is "
                        + "evaluated on the folder's path, which has a segment less.",
                    hint:
                        "match {\(block.segments.last?.name?.text ?? "file")=**}, or allow "
                        + "'get' if lists are not meant"))
        }
        return warnings.sorted()
    }

    private func mayAllowList(_ allow: AllowCode) -> Bool {
        allow.methods.contains(Method.Set(.list)) && StaticAnalysis.condition(of: allow, program, .list) != nil
    }
}

extension BlockCode {
    /// Whether some path matches both this block and the pattern `folder`, which has no glob.
    fileprivate func matches(_ folder: ArraySlice<MatchSegment>) -> Bool {
        guard glob >= 0 else {
            return segments.count == folder.count && zip(segments, folder).allSatisfy(mayBeEqual)
        }
        let head = segments.prefix(Int(glob))
        let tail = segments.suffix(segments.count - Int(glob) - 1)
        return head.count + tail.count <= folder.count && zip(head, folder).allSatisfy(mayBeEqual)
            && zip(tail, folder.suffix(tail.count)).allSatisfy(mayBeEqual)
    }

    /// Whether it matches only paths below a path that the pattern `folder` may match.
    fileprivate func isBelow(_ folder: [MatchSegment]) -> Bool {
        segments.count > folder.count && (glob < 0 || Int(glob) >= folder.count)
            && zip(segments, folder).allSatisfy(mayBeEqual)
    }

    private func mayBeEqual(_ pair: (MatchSegment, MatchSegment)) -> Bool {
        guard case .literal(let one) = pair.0.kind, case .literal(let other) = pair.1.kind else {
            return true
        }
        return one == other
    }
}
