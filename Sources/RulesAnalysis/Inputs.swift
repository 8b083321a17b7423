import SecurityRules
import Wire

/// The form of the paths that a question is about: a number of segments after `/b/<bucket>/o`.
struct PathShape: Hashable {
    /// The number of segments; with `isLong`, those before and behind a middle of at least one segment.
    var count: Int
    var isLong = false
    /// The number of segments behind the middle.
    var backCount = 0
}

/// The free inputs of a request, as variables that are created when a rule reads them.
///
/// The rules of one question share them. Requests are those that the gateway can build, and some more: an upload
/// without a size, and an update that changes what only an upload can change.
final class Inputs {
    /// The content of a map.
    enum MapContent: Hashable {
        /// Strings, as in metadata and query parameters.
        case strings
        /// Anything that a claim or a field can be.
        case anything
    }

    /// A map of unknown content. Keys that the rules name have a presence and a value; all others are counted.
    struct Map {
        let name: String
        let content: MapContent
        /// How many maps and lists it is in.
        let depth: Int
        fileprivate(set) var fields: [Characters: (present: Term, value: Outcome)] = [:]
        /// The keys of `fields`, in the order in which the rules name them.
        fileprivate(set) var keys: [Characters] = []
        /// The number of further keys.
        let others: Term
        /// Keys that the rules compute, with a presence and a value of their own.
        fileprivate(set) var computed: [(key: Term, present: Term, value: FreeValue)] = []
        /// The tags and variables of values, for building a request.
        fileprivate(set) var values: [Characters: FreeValue] = [:]
    }

    /// A value of unknown type: its tag, and one variable for each type that is used.
    struct FreeValue {
        static let types = [
            "null", "bool", "int", "string", "list", "map", "timestamp", "float", "duration", "bytes", "path", "latlng",
        ]
        /// The number of types, at the beginning of the list, of which the analysis knows the values.
        static let knownTypes = 7
        /// The index of the type.
        let tag: Term
        let bool: Term
        let int: Term
        let string: Term
        let time: Term
        let list: Int
        let map: Int
    }

    /// A list of unknown content.
    struct List {
        let name: String
        let depth: Int
        let size: Term
        /// The elements whose membership was asked, and the elements at constant indices.
        fileprivate(set) var members: [(element: Symbol, isMember: Term)] = []
        fileprivate(set) var elements: [Int: FreeValue] = [:]
    }

    /// A looked-up document, by its path.
    struct Document {
        let segments: [Term]
        let failed: Term
        let present: Term
        let fields: Int
    }

    let terms: Terms
    let method: Method
    let shape: PathShape
    let bucket: Term
    /// The segments of the object's name.
    let path: SymbolicPath
    let name: Term
    let isAnonymous: Term
    let uid: Term
    let time: Term
    let hasExisting: Term
    /// What holds for every request.
    private(set) var constraints: [Term] = []
    private(set) var maps: [Map] = []
    private(set) var lists: [List] = []
    private(set) var documents: [Document] = []
    /// Definitions that need all keys that the rules name, by their subject; and the maps that must name the same keys.
    private var definitions: [(subject: String, make: (Inputs) -> [Term])] = []
    private var links: Set<[Int]> = []
    private var opaques: [OpaqueKey: Int] = [:]
    /// The opaque values that are inputs. A path among them has no bound names.
    private(set) var freeOpaques: Set<Int> = []
    /// Conditions under which a model is likely to be a request: values of known types, and no failures of what is not
    /// modelled.
    private(set) var preferences: [Term] = []
    /// The opaque results, and where they came from.
    private(set) var approximations: [Int: Approximation] = [:]
    /// Strings that may have half a character, a lone surrogate, which regular expressions do not match as others.
    private(set) var halves: Set<Term> = []
    private var numbers = 0
    private var freeValues: [BytewiseString: FreeValue] = [:]
    private var records: [RecordKey: Outcome] = [:]
    private(set) var recordValues: [RecordKey: RecordValue] = [:]
    private(set) var token: Int = -1
    private(set) var params: Int = -1

    struct OpaqueKey: Hashable {
        var operation: String
        var operands: [Symbol]
    }

    struct RecordKey: Hashable {
        var isIncoming: Bool
        var field: ObjectField
    }

    /// The variables of a property: whether it is set, and its value or map.
    struct RecordValue {
        var isPresent: Term
        var isNull: Term
        var value: Term?
        var map: Int?
    }

    init(_ terms: Terms, _ method: Method, _ shape: PathShape) {
        (self.terms, self.method, self.shape) = (terms, method, shape)
        let segment = Regex.repetition(.set(CharacterSet([0x2F...0x2F]).inverted), least: 1, most: nil)
        bucket = terms.variable("bucket", .string)
        var segments: [Term] = []
        for index in 0..<shape.count + shape.backCount { segments.append(terms.variable("segment\(index)", .string)) }
        constraints = ([bucket] + segments).map { terms.matches($0, segment) }
        let front = Array(segments.prefix(shape.count))
        if shape.isLong {
            let middle = terms.variable("middle", .string)
            let more = Regex.repetition(
                .sequence([.literal(Characters("/")), segment]), least: 0, most: nil)
            constraints.append(terms.matches(middle, .sequence([segment, more])))
            path = SymbolicPath(front: front, middle: middle, back: Array(segments.dropFirst(shape.count)))
        } else {
            path = SymbolicPath(front: front)
        }
        let slash = terms.string(Characters("/"))
        let parts = path.front + [path.middle].compactMap(\.self) + path.back
        name = terms.concatenate(parts.enumerated().flatMap { $0.offset == 0 ? [$0.element] : [slash, $0.element] })
        isAnonymous = terms.variable("anonymous", .bool)
        uid = terms.variable("uid", .string)
        time = terms.variable("time", .int)
        hasExisting = method == .list ? terms.no : terms.variable("existing", .bool)
        constraints += [timeRange(time)]
        token = makeMap("token", .anything)
        params = makeMap("params", .strings)
    }

    /// The whole path of the request.
    var wholePath: SymbolicPath {
        let root = [terms.string(Characters("b")), bucket, terms.string(Characters("o"))]
        return SymbolicPath(front: root + path.front, middle: path.middle, back: path.back)
    }

    var isWritten: Bool { method == .create || method == .update }

    func require(_ constraint: Term) { constraints.append(constraint) }

    /// A number that is returned once.
    func number() -> Int {
        numbers += 1
        return numbers
    }

    /// Notes that the strings of a result may have half a character.
    func mayBeHalf(_ outcome: Outcome) -> Outcome {
        for one in outcome.cases { if case .string(let term) = one.value { halves.insert(term) } }
        return outcome
    }

    /// Whether a string may have half a character.
    func mayBeHalf(_ text: Term) -> Bool {
        if halves.contains(text) { return true }
        if case .apply(_, let operands) = terms[text] { return operands.contains(where: mayBeHalf) }
        return false
    }

    func prefer(_ condition: Term) { preferences.append(condition) }

    /// Adds definitions that are made when all rules have been read, unless there are some of this subject.
    func define(_ subject: String, _ make: @escaping (Inputs) -> [Term]) {
        if !definitions.contains(where: { $0.subject == subject }) { definitions.append((subject, make)) }
    }

    /// Makes two maps name the same keys.
    func link(_ a: Int, _ b: Int) { links.insert([min(a, b), max(a, b)]) }

    /// Makes the definitions and returns all constraints. Definitions may name keys and ask for further definitions; then
    /// all are made again, since each needs all keys.
    func finish() -> [Term] {
        while true {
            share()
            let before = (links.count, definitions.count, maps.map(\.keys.count))
            var made: [Term] = []
            var index = 0
            while index < definitions.count {
                made += definitions[index].make(self)
                index += 1
            }
            let isDone = before == (links.count, definitions.count, maps.map(\.keys.count))
            if isDone || terms.isTooLarge { return constraints + made }
        }
    }

    /// Names the keys of linked maps in each of them.
    private func share() {
        var isChanged = true
        while isChanged {
            isChanged = false
            for link in links.sorted(by: { $0.lexicographicallyPrecedes($1) }) {
                for (from, to) in [(link[0], link[1]), (link[1], link[0])] {
                    for key in maps[from].keys where maps[to].fields[key] == nil {
                        _ = field(to, key)
                        isChanged = true
                    }
                }
            }
        }
    }

    // MARK: Numbers

    static let integers = (least: Int128(Int64.min), most: Int128(Int64.max))
    static let second: Int128 = 1_000_000_000

    func inRange(_ value: Term, _ least: Int128, _ most: Int128) -> Term {
        terms.and(terms.lessOrEqual(terms.int(least), value), terms.lessOrEqual(value, terms.int(most)))
    }

    func isInteger(_ value: Term) -> Term { inRange(value, Self.integers.least, Self.integers.most) }

    func timeRange(_ value: Term) -> Term {
        inRange(value, -62_135_596_800 * Self.second, 253_402_300_800 * Self.second - 1)
    }

    func durationRange(_ value: Term) -> Term {
        inRange(value, -315_576_000_001 * Self.second + 1, 315_576_000_001 * Self.second - 1)
    }

    // MARK: Opaque values

    /// A number for the result of an operation that is not modelled: the same for equal operands.
    func opaque(_ operation: String, _ operands: [Symbol], _ reason: @autoclosure () -> Approximation?) -> Int {
        let key = OpaqueKey(operation: operation, operands: operands)
        if let known = opaques[key] { return known }
        opaques[key] = opaques.count
        approximations[opaques.count - 1] = reason()
        return opaques.count - 1
    }

    // MARK: Values of unknown type

    /// The variables of a value, by its name.
    func freeValue(_ name: String, depth: Int = 0) -> FreeValue {
        if let known = freeValues[BytewiseString(name)] { return known }
        let value = FreeValue(
            tag: terms.variable("\(name)_tag", .int), bool: terms.variable("\(name)_bool", .bool),
            int: terms.variable("\(name)_int", .int), string: terms.variable("\(name)_string", .string),
            time: terms.variable("\(name)_time", .int), list: makeList("\(name)_list", depth: depth),
            map: makeMap("\(name)_map", .anything, depth: depth))
        freeValues[BytewiseString(name)] = value
        require(inRange(value.tag, 0, Int128(FreeValue.types.count - 1)))
        prefer(terms.less(value.tag, terms.int(FreeValue.knownTypes)))
        require(isInteger(value.int))
        require(timeRange(value.time))
        return value
    }

    func outcome(_ value: FreeValue, _ name: String) -> Outcome {
        var outcome = Outcome()
        for (index, type) in FreeValue.types.enumerated() {
            let isType = terms.equal(value.tag, terms.int(index))
            switch type {
            case "null": outcome.add(isType, .null, terms)
            case "bool":
                outcome.add(terms.and(isType, value.bool), .bool(true), terms)
                outcome.add(terms.and(isType, terms.not(value.bool)), .bool(false), terms)
            case "int": outcome.add(isType, .int(value.int), terms)
            case "string": outcome.add(isType, .string(value.string), terms)
            case "list": outcome.add(isType, .inputList(value.list), terms)
            case "map": outcome.add(isType, .inputMap(value.map), terms)
            case "timestamp": outcome.add(isType, .timestamp(value.time), terms)
            default:
                let number = opaque("input \(name) \(type)", [], nil)
                freeOpaques.insert(number)
                outcome.add(isType, .opaque(type, number), terms)
            }
        }
        return outcome
    }

    private func makeMap(_ name: String, _ content: MapContent, depth: Int = 0) -> Int {
        let others = terms.variable("\(name)_others", .int)
        require(terms.lessOrEqual(terms.int(0), others))
        maps.append(Map(name: name, content: content, depth: depth, others: others))
        return maps.count - 1
    }

    private func makeList(_ name: String, depth: Int) -> Int {
        let size = terms.variable("\(name)_size", .int)
        require(terms.lessOrEqual(terms.int(0), size))
        lists.append(List(name: name, depth: depth, size: size))
        return lists.count - 1
    }

    /// The presence and the value of a key.
    func field(_ map: Int, _ key: Characters) -> (present: Term, value: Outcome) {
        if let known = maps[map].fields[key] { return known }
        let name = "\(maps[map].name)_\(maps[map].fields.count)"
        let present = terms.variable("\(name)_set", .bool)
        var free: FreeValue?
        let value: Outcome
        switch maps[map].content {
        case .strings: value = Outcome(.string(terms.variable("\(name)_string", .string)), terms)
        case .anything:
            let made = freeValue(name, depth: maps[map].depth + 1)
            free = made
            value = outcome(made, name)
        }
        maps[map].fields[key] = (present, value)
        maps[map].keys.append(key)
        maps[map].values[key] = free
        return (present, value)
    }

    /// The presence and the value of a key that the rules compute. It is only known to be one of the named keys if it
    /// equals one, and its value is then not linked to the other.
    func computedField(_ map: Int, _ key: Term) -> (present: Term, value: Outcome) {
        let name = "\(maps[map].name)_key\(maps[map].computed.count)"
        if let index = maps[map].computed.firstIndex(where: { $0.key == key }) {
            let known = maps[map].computed[index]
            return (known.present, outcome(of: known.value, maps[map].content, "\(maps[map].name)_key\(index)"))
        }
        let present = terms.variable("\(name)_set", .bool)
        let value = freeValue(name, depth: maps[map].depth + 1)
        maps[map].computed.append((key, present, value))
        define("computed \(name)") { [terms] inputs in
            inputs.maps[map].keys.map { named in
                let isSame = terms.equal(key, terms.string(named))
                return terms.implies(isSame, terms.equal(present, inputs.field(map, named).present))
            }
        }
        return (present, outcome(of: value, maps[map].content, name))
    }

    private func outcome(of value: FreeValue, _ content: MapContent, _ name: String) -> Outcome {
        content == .strings ? Outcome(.string(value.string), terms) : outcome(value, name)
    }

    /// Whether a list contains an element.
    func isMember(_ list: Int, _ element: Symbol) -> Term {
        if let known = lists[list].members.first(where: { $0.element == element }) { return known.isMember }
        let isMember = terms.variable("\(lists[list].name)_has\(lists[list].members.count)", .bool)
        lists[list].members.append((element, isMember))
        require(terms.implies(isMember, terms.less(terms.int(0), lists[list].size)))
        return isMember
    }

    /// The element at an index that exists.
    func element(_ list: Int, _ index: Int) -> Outcome {
        let name = "\(lists[list].name)_at\(index)"
        if let known = lists[list].elements[index] { return outcome(known, name) }
        let value = freeValue(name, depth: lists[list].depth + 1)
        lists[list].elements[index] = value
        return outcome(value, name)
    }

    // MARK: Documents

    func document(_ segments: [Term]) -> Document {
        if let known = documents.first(where: { $0.segments == segments }) { return known }
        let name = "document\(documents.count)"
        let document = Document(
            segments: segments, failed: terms.variable("\(name)_failed", .bool),
            present: terms.variable("\(name)_present", .bool), fields: makeMap(name, .anything))
        documents.append(document)
        return document
    }

    // MARK: Objects

    /// A property of `resource` or `request.resource`.
    func property(_ field: ObjectField, isIncoming: Bool) -> Outcome {
        let key = RecordKey(isIncoming: isIncoming, field: field)
        if let known = records[key] { return known }
        let outcome = makeProperty(key)
        records[key] = outcome
        return outcome
    }

    private func makeProperty(_ key: RecordKey) -> Outcome {
        let label = "\(key.isIncoming ? "new" : "old")_\(key.field.key)"
        if key.isIncoming, !key.field.isIncoming { return .failure }
        switch key.field {
        case .name: return Outcome(.string(name), terms)
        case .bucket: return Outcome(.string(bucket), terms)
        case .size, .md5Hash, .crc32c, .timeCreated, .updated:
            let isPresent = terms.variable("\(label)_set", .bool)
            return make(key, label, isPresent: isPresent, isNull: terms.no)
        case .generation, .metageneration, .etag:
            let isPresent = terms.variable("\(label)_set", .bool)
            return make(key, label, isPresent: isPresent, isNull: terms.variable("\(label)_null", .bool))
        default: return make(key, label, isPresent: terms.yes, isNull: terms.variable("\(label)_null", .bool))
        }
    }

    private func make(_ key: RecordKey, _ label: String, isPresent: Term, isNull: Term) -> Outcome {
        var record = RecordValue(isPresent: isPresent, isNull: isNull)
        let symbol: Symbol
        switch key.field {
        case .size, .generation, .metageneration:
            let value = terms.variable(label, .int)
            require(inRange(value, 0, Self.integers.most))
            (record.value, symbol) = (value, .int(value))
        case .timeCreated, .updated:
            let value = terms.variable(label, .int)
            require(timeRange(value))
            (record.value, symbol) = (value, .timestamp(value))
        case .metadata:
            let map = makeMap(label, .strings)
            (record.map, symbol) = (map, .inputMap(map))
        default:
            let value = terms.variable(label, .string)
            (record.value, symbol) = (value, .string(value))
        }
        recordValues[key] = record
        var outcome = Outcome()
        outcome.add(terms.and(isPresent, isNull), .null, terms)
        outcome.add(terms.and(isPresent, terms.not(isNull)), symbol, terms)
        return outcome
    }
}
