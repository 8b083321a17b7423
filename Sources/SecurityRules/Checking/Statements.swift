extension Ruleset {
    /// An allow statement and its dependencies for one method. Computed without a request.
    public struct Statement: Sendable {
        /// The path of its match block as written, including the paths of the enclosing blocks.
        public var path: String
        /// Its methods as written.
        public var methods: String
        /// Its location in the source.
        public var range: Range<SourcePosition>
        /// The inputs that its condition can read.
        public var reads: Inputs
        /// The inputs without which its condition can never be true.
        public var requires: Inputs
        /// Whether it can ever allow a request; `if false` cannot.
        public var canAllow: Bool
        /// The largest `request.resource.size` that it can allow, in bytes; nil if there is no limit.
        public var largestUpload: UInt64?
    }

    /// Returns the allow statements for a method on objects of a bucket, in source order. Takes milliseconds.
    ///
    /// It shows which rules a store cannot support. Suppose that a store cannot check atomically that it deletes the
    /// object that the rules saw. A statement whose ``Statement/requires`` contains `existing` then never allows a
    /// delete, and one whose ``Statement/reads`` contains it may not.
    ///
    /// - Parameters:
    ///   - method: The result is empty for `list` under version 1, which allows no list.
    ///   - bucket: Its name in paths.
    ///   - isAnonymous: Whether `request.auth` is null; otherwise it can be anything.
    public func statements(
        for method: Method, bucket: String, isAnonymous: Bool = false
    ) -> [Statement] {
        guard method != .list || version != 1 else { return [] }
        let bucket = Text(bucket)
        var statements: [Statement] = []
        for block in program.blocks where block.isMatching(bucket: bucket) {
            for index in block.allows where program.allows[index].methods.contains(Method.Set(method)) {
                let allow = program.allows[index]
                let condition = StaticAnalysis.condition(of: allow, program, method, isAnonymous: isAnonymous)
                statements.append(
                    Statement(
                        path: block.path, methods: methods(of: allow), range: program.source.range(allow.span),
                        reads: Inputs(reads(of: allow, method), hasRules: true),
                        requires: Inputs(condition?.needs ?? [], hasRules: true), canAllow: condition != nil,
                        largestUpload: condition.map(\.limit) ?? 0))
            }
        }
        return statements
    }

    /// Returns the allow statements that let anonymous callers upload any number of bytes to a bucket.
    public func unboundedAnonymousUploads(bucket: String) -> [Statement] {
        statements(for: .create, bucket: bucket, isAnonymous: true).filter {
            $0.canAllow && $0.largestUpload == nil
        }
    }

    /// The size in bytes of the largest upload that the rules can ever allow; nil if they have no constant limit.
    ///
    /// A body can be rejected as soon as it exceeds this size. The result is valid as long as the known facts of
    /// `request` do not change, so leave those that can change unknown. The request's own `size` is ignored. Takes as
    /// long as a decision, and almost no time if no rule for the request reads the size.
    ///
    /// - Parameters:
    ///   - request: An upload, as far as it is known.
    ///   - clock: As for ``decide(_:clock:)``; nil is the result if the time is over.
    public func largestUpload(
        for request: Request, clock: @escaping Clock = Ruleset.monotonicClock
    ) -> UInt64? {
        guard request.method == .create, let path = request.state.path else { return nil }
        let blocks = matchingBlocks(path)
        guard hasUploadLimit(blocks) else { return nil }
        var request = request
        request.incoming?.set(.size, .unknown)
        let context = Context(program: program, request: request.state, path: path)
        var evaluator = Evaluator(context, NoRecorder(), clock: clock)
        var limits = uploadLimits
        if case .null = request.state.auth { limits = anonymousUploadLimits }
        return evaluator.largestUpload(blocks, limits)
    }

    private func hasUploadLimit(_ blocks: BlockList) -> Bool {
        for index in 0..<blocks.count {
            for allow in program.blocks[Int(blocks[index])].allows where uploadLimits[allow] != nil {
                return true
            }
        }
        return false
    }

    private func reads(of allow: AllowCode, _ method: Method) -> InputBits {
        var reads = allow.reads
        if method != .create, method != .update { reads.subtract(.incoming) }
        if method == .list { reads.subtract(.existing) }
        return reads
    }

    /// The methods of a statement as written.
    func methods(of allow: AllowCode) -> String {
        let head = program.source.text(allow.headSpan)
        return String(head.dropFirst("allow".count).drop { $0.isWhitespace })
    }
}

extension BlockCode {
    /// The path as written.
    var path: String {
        segments.map { segment in
            switch (segment.kind, segment.name?.text) {
            case (.literal(let text), _): "/" + text.string
            case (.glob, let name): "/{\(name ?? "")=**}"
            case (.single, let name): "/{\(name ?? "")}"
            }
        }.joined()
    }

    /// Whether the path can match `/b/<bucket>/o` or a path below it.
    fileprivate func isMatching(bucket: Text) -> Bool {
        for (index, text) in ["b", bucket, "o"].enumerated() {
            guard index < segments.count else { return false }
            switch segments[index].kind {
            case .glob: return true
            case .single: continue
            case .literal(let literal): if literal != text { return false }
            }
        }
        return true
    }
}

extension Evaluator {
    /// The largest upload that a statement of these blocks can allow. `limits` has an entry for each statement.
    fileprivate mutating func largestUpload(
        _ blocks: BlockList, _ limits: [UInt64?]
    ) -> UInt64? {
        var largest: UInt64 = 0
        for index in 0..<blocks.count {
            let number = Int(blocks[index])
            enter(block: number)
            for allow in program.blocks[number].allows
            where program.allows[allow].methods.contains(Method.Set(.create)) {
                let condition = program.allows[allow].condition
                let value = condition < 0 ? unconditional : evaluate(condition)
                if isTimedOut { return nil }
                if hasEnded { return largest }
                switch value {
                case .bool(true): return nil
                case .unknown:
                    guard let limit = limits[allow] else { return nil }
                    largest = max(largest, limit)
                default: continue
                }
            }
        }
        return largest
    }
}
