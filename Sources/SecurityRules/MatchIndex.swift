/// Finds the match blocks of a path without trying them all: a tree of their segments, literals sorted.
///
/// Where a capture lies is known from its place in the block, so nothing is recorded on the way.
struct MatchIndex: Sendable {
    private struct Branch: Sendable {
        /// Sorted by text.
        var literals: [(text: Text, node: Int32)] = []
        var single: Int32 = -1
        var glob: Int32 = -1
        /// The blocks that end here, in source order.
        var blocks: [Int32] = []
        /// Behind a glob: how many segments may follow it, each once.
        var tails: [Int] = []
    }

    private var branches = [Branch()]
    /// The fewest segments that `**` takes.
    private let globMinimum: Int

    init(_ blocks: [BlockCode], version: Int) {
        globMinimum = version == 1 ? 1 : 0
        for (index, block) in blocks.enumerated() {
            var node = 0
            for (place, segment) in block.segments.enumerated() {
                node = Int(child(of: node, for: segment.kind))
                if segment.kind == .glob {
                    let tail = block.segments.count - place - 1
                    if !branches[node].tails.contains(tail) { branches[node].tails.append(tail) }
                }
            }
            branches[node].blocks.append(Int32(index))
        }
    }

    private mutating func child(of node: Int, for kind: MatchSegment.Kind) -> Int32 {
        let new = Int32(branches.count)
        switch kind {
        case .literal(let text):
            let place = place(of: text, in: branches[node].literals)
            if place < branches[node].literals.count, branches[node].literals[place].text == text {
                return branches[node].literals[place].node
            }
            branches[node].literals.insert((text, new), at: place)
        case .single:
            if branches[node].single >= 0 { return branches[node].single }
            branches[node].single = new
        case .glob:
            if branches[node].glob >= 0 { return branches[node].glob }
            branches[node].glob = new
        }
        branches.append(Branch())
        return new
    }

    /// The first place whose text is not below `text`.
    private func place(of text: Text, in literals: [(text: Text, node: Int32)]) -> Int {
        var (low, high) = (0, literals.count)
        while low < high {
            let middle = (low + high) / 2
            if literals[middle].text < text { low = middle + 1 } else { high = middle }
        }
        return low
    }

    /// Adds the blocks whose whole path matches all of `segments`.
    func find(_ segments: [Text], into found: inout BlockList) {
        descend(0, segments, 0, &found)
    }

    private func descend(_ node: Int, _ segments: [Text], _ place: Int, _ found: inout BlockList) {
        if place == segments.count {
            for block in branches[node].blocks { found.insert(block) }
        } else {
            let literals = branches[node].literals
            if !literals.isEmpty {
                let at = self.place(of: segments[place], in: literals)
                if at < literals.count, literals[at].text == segments[place] {
                    descend(Int(literals[at].node), segments, place + 1, &found)
                }
            }
            let single = branches[node].single
            if single >= 0 { descend(Int(single), segments, place + 1, &found) }
        }
        let glob = branches[node].glob
        guard glob >= 0 else { return }
        for tail in branches[Int(glob)].tails where segments.count - tail >= place + globMinimum {
            descend(Int(glob), segments, segments.count - tail, &found)
        }
    }
}

/// The few blocks that match a request, in source order; more than eight take memory of their own.
struct BlockList {
    private var few = InlineArray<8, Int32>(repeating: 0)
    private var many: [Int32] = []
    private(set) var count = 0

    subscript(index: Int) -> Int32 { many.isEmpty ? few[index] : many[index] }

    /// Adds a block at its place; one that is there already stays once.
    mutating func insert(_ block: Int32) {
        var place = count
        while place > 0, self[place - 1] >= block {
            if self[place - 1] == block { return }
            place -= 1
        }
        if many.isEmpty, count < 8 {
            var index = count
            while index > place {
                few[index] = few[index - 1]
                index -= 1
            }
            few[place] = block
        } else {
            if many.isEmpty { many = (0..<count).map { few[$0] } }
            many.insert(block, at: place)
        }
        count += 1
    }
}
