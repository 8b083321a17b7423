/// Finds the match blocks for a path without trying each of them: a tree of their segments, with sorted literals.
///
/// Captures are not recorded during the search, because their positions follow from the block.
struct MatchIndex: Sendable {
    /// A node of the tree. A trivial type: its lists are ranges of the arrays below.
    private struct Branch: Sendable {
        /// A range of `texts` and `children`, sorted by text.
        var literals: (start: Int32, count: Int32) = (0, 0)
        var single: Int32 = -1
        var glob: Int32 = -1
        /// A range of `blocks`: those that end here, in source order.
        var blocks: (start: Int32, count: Int32) = (0, 0)
        /// A range of `tails`, for a glob: the distinct numbers of segments that may follow it.
        var tails: (start: Int32, count: Int32) = (0, 0)
    }

    private var branches: [Branch] = []
    private var texts: [Text] = []
    private var children: [Int32] = []
    private var blocks: [Int32] = []
    private var tails: [Int32] = []
    /// The minimum number of segments that `**` matches.
    private let globMinimum: Int

    init(_ blocks: [BlockCode], version: Int) {
        globMinimum = version == 1 ? 1 : 0
        var builder = MatchIndexBuilder()
        for (index, block) in blocks.enumerated() { builder.add(Int32(index), block.segments) }
        for node in builder.nodes {
            var branch = Branch(single: node.single, glob: node.glob)
            branch.literals = (Int32(texts.count), Int32(node.literals.count))
            for literal in node.literals.sorted(by: { $0.key < $1.key }) {
                texts.append(literal.key)
                children.append(literal.value)
            }
            branch.blocks = (Int32(self.blocks.count), Int32(node.blocks.count))
            self.blocks += node.blocks
            branch.tails = (Int32(tails.count), Int32(node.tails.count))
            tails += node.tails
            branches.append(branch)
        }
    }

    /// Adds the blocks whose path matches all of `segments`.
    func find(_ segments: [Text], into found: inout BlockList) {
        descend(0, segments, 0, &found)
        found.finish()
    }

    private func descend(_ node: Int, _ segments: [Text], _ depth: Int, _ found: inout BlockList) {
        let branch = branches[node]
        if depth == segments.count {
            for index in branch.blocks.start..<branch.blocks.start + branch.blocks.count {
                found.insert(blocks[Int(index)])
            }
        } else {
            let child = literal(branch, segments[depth])
            if child >= 0 { descend(Int(child), segments, depth + 1, &found) }
            if branch.single >= 0 { descend(Int(branch.single), segments, depth + 1, &found) }
        }
        guard branch.glob >= 0 else { return }
        let ends = branches[Int(branch.glob)].tails
        for index in ends.start..<ends.start + ends.count {
            let end = segments.count - Int(tails[Int(index)])
            if end >= depth + globMinimum { descend(Int(branch.glob), segments, end, &found) }
        }
    }

    private func literal(_ branch: Branch, _ text: Text) -> Int32 {
        var low = Int(branch.literals.start)
        let end = low + Int(branch.literals.count)
        var high = end
        while low < high {
            let middle = (low + high) / 2
            if texts[middle] < text { low = middle + 1 } else { high = middle }
        }
        return low < end && texts[low] == text ? children[low] : -1
    }
}

/// The tree during construction.
private struct MatchIndexBuilder {
    struct Node {
        var literals: [Text: Int32] = [:]
        var single: Int32 = -1
        var glob: Int32 = -1
        var blocks: [Int32] = []
        var tails: [Int32] = []
    }

    private(set) var nodes = [Node()]

    mutating func add(_ block: Int32, _ segments: [MatchSegment]) {
        var node = 0
        for (index, segment) in segments.enumerated() {
            node = child(of: node, for: segment.kind)
            guard segment.kind == .glob else { continue }
            let tail = Int32(segments.count - index - 1)
            if !nodes[node].tails.contains(tail) { nodes[node].tails.append(tail) }
        }
        nodes[node].blocks.append(block)
    }

    private mutating func child(of node: Int, for kind: MatchSegment.Kind) -> Int {
        let new = Int32(nodes.count)
        let known: Int32
        switch kind {
        case .literal(let text):
            known = nodes[node].literals[text] ?? -1
            if known < 0 { nodes[node].literals[text] = new }
        case .single:
            known = nodes[node].single
            if known < 0 { nodes[node].single = new }
        case .glob:
            known = nodes[node].glob
            if known < 0 { nodes[node].glob = new }
        }
        guard known < 0 else { return Int(known) }
        nodes.append(Node())
        return Int(new)
    }
}

/// The blocks that match a request, in source order. Up to eight need no allocation.
struct BlockList {
    private var few = InlineArray<8, Int32>(repeating: 0)
    private var many: [Int32] = []
    private(set) var count = 0

    subscript(index: Int) -> Int32 { many.isEmpty ? few[index] : many[index] }

    /// Adds a block, in any order. Duplicates are removed.
    mutating func insert(_ block: Int32) {
        if many.isEmpty {
            if insertFew(block) { return }
            many = (0..<count).map { few[$0] }
        }
        many.append(block)
        count += 1
    }

    /// Inserts a block in order. Returns false if the inline storage is full.
    private mutating func insertFew(_ block: Int32) -> Bool {
        var target = count
        while target > 0, few[target - 1] >= block {
            if few[target - 1] == block { return true }
            target -= 1
        }
        guard count < 8 else { return false }
        var index = count
        while index > target {
            few[index] = few[index - 1]
            index -= 1
        }
        few[target] = block
        count += 1
        return true
    }

    /// Sorts the blocks and removes duplicates, after the last insertion.
    mutating func finish() {
        guard !many.isEmpty else { return }
        many.sort()
        var last: Int32 = -1
        many.removeAll { block in
            defer { last = block }
            return block == last
        }
        count = many.count
    }
}
