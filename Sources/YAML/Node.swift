import CYAML

/// A place in a text, both counted from 1; columns in characters.
public struct Mark: Sendable, Equatable {
    public var line: Int
    public var column: Int

    public init(line: Int, column: Int) {
        self.line = line
        self.column = column
    }
}

/// Why a text is not YAML, or not YAML as it is read here.
public struct YAMLError: Error, Sendable, Equatable {
    /// Without a full stop.
    public var message: String
    /// Where, if the reader knows.
    public var mark: Mark?

    public init(message: String, mark: Mark? = nil) {
        self.message = message
        self.mark = mark
    }
}

/// A YAML document as it is written: scalars are text, whatever type they stand for.
public indirect enum Node: Sendable {
    /// A text, and whether it is quoted or a block.
    public struct Scalar: Sendable {
        public var string: String
        /// Whether it is written without quotes, and so may be a number, a truth value or null.
        public var isPlain: Bool
        public var mark: Mark?

        public init(_ string: String, isPlain: Bool = true, mark: Mark? = nil) {
            self.string = string
            self.isPlain = isPlain
            self.mark = mark
        }
    }
    /// A text, a number, or nothing.
    case scalar(Scalar)
    /// A list.
    case sequence([Node], Mark)
    /// In the order of the text. No two keys are the same text.
    case mapping([(key: Node, value: Node)], Mark)

    /// What it is as a scalar, if it is one.
    public var scalar: Scalar? { if case .scalar(let scalar) = self { scalar } else { nil } }

    /// Its elements, if it is a sequence.
    public var sequence: [Node]? { if case .sequence(let nodes, _) = self { nodes } else { nil } }

    /// Its pairs, if it is a mapping.
    public var mapping: [(key: Node, value: Node)]? {
        if case .mapping(let pairs, _) = self { pairs } else { nil }
    }

    /// Where it begins.
    public var mark: Mark? {
        switch self {
        case .scalar(let scalar): scalar.mark
        case .sequence(_, let mark), .mapping(_, let mark): mark
        }
    }

    /// Reads a text of one document; nil where it has none.
    /// - Throws: ``YAMLError``, also for a second document and for a key that a mapping has twice.
    public static func load(_ text: String) throws(YAMLError) -> Node? {
        try Array(text.utf8).withUnsafeBufferPointer { bytes throws(YAMLError) in
            try Parser(bytes).document()
        }
    }
}

/// libyaml's events made into nodes.
private final class Parser {
    /// Nodes that a text may have, aliases counted as often as they stand: they are resolved by reference, but who walks
    /// the nodes would walk all of them.
    private static let maximumNodes = 1_000_000
    /// How deeply values may be nested: each level takes stack.
    private static let maximumDepth = 128
    private var parser = yaml_parser_t()
    private var event = yaml_event_t()
    private var anchors: [String: (node: Node, count: Int)] = [:]
    private var count = 0
    private var depth = 0

    init(_ bytes: UnsafeBufferPointer<UInt8>) {
        precondition(yaml_parser_initialize(&parser) == 1, "libyaml: out of memory")
        yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING)
        yaml_parser_set_input_string(&parser, bytes.baseAddress, bytes.count)
    }

    deinit {
        yaml_event_delete(&event)
        yaml_parser_delete(&parser)
    }

    func document() throws(YAMLError) -> Node? {
        try next()
        try next()
        if event.type == YAML_STREAM_END_EVENT { return nil }
        try next()
        let root = try node()
        try next()
        try next()
        guard event.type == YAML_STREAM_END_EVENT else {
            throw YAMLError(
                message:
                    "not YAML: expected a single document in the stream: but found another document",
                mark: mark)
        }
        return root
    }

    /// The node that begins with the event at hand; the event is its last one afterwards.
    private func node() throws(YAMLError) -> Node {
        count += 1
        depth += 1
        defer { depth -= 1 }
        if depth > Parser.maximumDepth {
            throw YAMLError(message: "values are nested too deeply", mark: mark)
        }
        let (start, mark, anchor) = (count, mark, anchor)
        let made: Node
        switch event.type {
        case YAML_ALIAS_EVENT: return try alias()
        case YAML_SCALAR_EVENT:
            let scalar = event.data.scalar
            let bytes = UnsafeBufferPointer(start: scalar.value, count: scalar.length)
            made = .scalar(
                Node.Scalar(
                    String(decoding: bytes, as: UTF8.self),
                    isPlain: scalar.style == YAML_PLAIN_SCALAR_STYLE, mark: mark))
        case YAML_SEQUENCE_START_EVENT:
            var nodes: [Node] = []
            try next()
            while event.type != YAML_SEQUENCE_END_EVENT {
                nodes.append(try node())
                try next()
            }
            made = .sequence(nodes, mark)
        default: made = .mapping(try pairs(), mark)
        }
        if let anchor { anchors[anchor] = (made, count - start + 1) }
        return made
    }

    private func pairs() throws(YAMLError) -> [(key: Node, value: Node)] {
        var pairs: [(key: Node, value: Node)] = []
        var known: [[UInt8]: Mark] = [:]
        try next()
        while event.type != YAML_MAPPING_END_EVENT {
            let key = try node()
            if let scalar = key.scalar {
                if let first = known[Array(scalar.string.utf8)] {
                    throw YAMLError(
                        message:
                            "'\(scalar.string)' is given more than once; here for the first time",
                        mark: first)
                }
                known[Array(scalar.string.utf8)] = scalar.mark
            }
            try next()
            pairs.append((key, try node()))
            try next()
        }
        return pairs
    }

    private func alias() throws(YAMLError) -> Node {
        let name = String(cString: event.data.alias.anchor)
        guard let known = anchors[name] else {
            throw YAMLError(message: "the anchor '\(name)' is not known", mark: mark)
        }
        count += known.count
        if count > Parser.maximumNodes {
            throw YAMLError(message: "aliases stand for too many values", mark: mark)
        }
        return known.node
    }

    private var mark: Mark {
        Mark(line: event.start_mark.line + 1, column: event.start_mark.column + 1)
    }

    private var anchor: String? {
        let name =
            switch event.type {
            case YAML_SCALAR_EVENT: event.data.scalar.anchor
            case YAML_SEQUENCE_START_EVENT: event.data.sequence_start.anchor
            case YAML_MAPPING_START_EVENT: event.data.mapping_start.anchor
            default: UnsafeMutablePointer<yaml_char_t>?.none
            }
        return name.map { String(cString: $0) }
    }

    private func next() throws(YAMLError) {
        yaml_event_delete(&event)
        guard yaml_parser_parse(&parser, &event) == 0 else { return }
        let problem = parser.problem.map { String(cString: $0) } ?? "out of memory"
        if parser.error == YAML_READER_ERROR { throw failure("", problem, nil) }
        let context = parser.context.map { String(cString: $0) + ": " } ?? ""
        let mark = Mark(
            line: parser.problem_mark.line + 1, column: parser.problem_mark.column + 1)
        throw failure(context, problem, mark)
    }

    private func failure(_ context: String, _ problem: String, _ mark: Mark?) -> YAMLError {
        YAMLError(message: "not YAML: \(context)\(problem)", mark: mark)
    }
}
