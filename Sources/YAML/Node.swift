import CYAML
import Wire

/// A position in a text. Lines and columns count from 1; columns count characters.
public struct Mark: Sendable, Equatable {
    public var line: Int
    public var column: Int

    public init(line: Int, column: Int) {
        self.line = line
        self.column = column
    }
}

/// Why a text is not YAML, or uses YAML that this reader does not support.
public struct YAMLError: Error, Sendable, Equatable {
    /// A message without a full stop.
    public var message: String
    /// The position, if it is known.
    public var mark: Mark?

    public init(message: String, mark: Mark? = nil) {
        self.message = message
        self.mark = mark
    }
}

/// A node of a YAML document. Scalars are text, without a type.
public indirect enum Node: Sendable {
    /// A scalar, and whether it is plain.
    public struct Scalar: Sendable {
        public var string: String
        /// Whether it is written without quotes, so that it may stand for a number, a Boolean or null.
        public var isPlain: Bool
        public var mark: Mark?

        public init(_ string: String, isPlain: Bool = true, mark: Mark? = nil) {
            self.string = string
            self.isPlain = isPlain
            self.mark = mark
        }
    }
    /// Text, a number, a Boolean or null.
    case scalar(Scalar)
    /// A list.
    case sequence([Node], Mark)
    /// In source order. Scalar keys are unique.
    case mapping([(key: Node, value: Node)], Mark)

    /// The scalar, if the node is one.
    public var scalar: Scalar? { if case .scalar(let scalar) = self { scalar } else { nil } }

    /// The elements, if the node is a sequence.
    public var sequence: [Node]? { if case .sequence(let nodes, _) = self { nodes } else { nil } }

    /// The pairs, if the node is a mapping.
    public var mapping: [(key: Node, value: Node)]? {
        if case .mapping(let pairs, _) = self { pairs } else { nil }
    }

    /// The start of the node.
    public var mark: Mark? {
        switch self {
        case .scalar(let scalar): scalar.mark
        case .sequence(_, let mark), .mapping(_, let mark): mark
        }
    }

    /// Parses a text with one document; nil if it has none.
    /// - Throws: ``YAMLError``, also for a second document and for a duplicate key in a mapping.
    public static func load(_ text: String) throws(YAMLError) -> Node? {
        try Array(text.utf8).withUnsafeBufferPointer { bytes throws(YAMLError) in
            try Parser(bytes).document()
        }
    }
}

/// Builds nodes from libyaml's events.
private final class Parser {
    /// The maximum number of nodes. The nodes of an anchor count again for each alias: aliases take no memory, but code
    /// that walks the tree visits them each time.
    private static let maximumNodes = 1_000_000
    /// The maximum nesting depth, since each level uses stack.
    private static let maximumDepth = 128
    /// Allocated at a fixed address, because libyaml keeps a pointer to it.
    private let parser = UnsafeMutablePointer<yaml_parser_t>.allocate(capacity: 1)
    private var event = yaml_event_t()
    private var anchors: [BytewiseString: (node: Node, count: Int)] = [:]
    private var count = 0
    private var depth = 0

    /// - Parameter bytes: Must stay valid while the parser is used.
    init(_ bytes: UnsafeBufferPointer<UInt8>) {
        precondition(yaml_parser_initialize(parser) == 1, "libyaml: out of memory")
        yaml_parser_set_encoding(parser, YAML_UTF8_ENCODING)
        yaml_parser_set_input_string(parser, bytes.baseAddress, bytes.count)
    }

    deinit {
        yaml_event_delete(&event)
        yaml_parser_delete(parser)
        parser.deallocate()
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
                message: "not YAML: expected a single document in the stream: but found another document", mark: mark)
        }
        return root
    }

    /// Parses the node that begins with the current event. Afterwards, the current event is the node's last one.
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
                        message: "'\(scalar.string)' is given more than once; here for the first time", mark: first)
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
        guard yaml_parser_parse(parser, &event) == 0 else { return }
        let parser = parser.pointee
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
