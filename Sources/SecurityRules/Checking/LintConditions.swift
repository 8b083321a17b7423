import Wire

/// What an expression contains, in itself and in the functions that it calls.
struct Mentions: OptionSet {
    var rawValue: UInt8

    /// The claim `email`, compared with something.
    static let email = Mentions(rawValue: 1)
    /// The claim `email_verified`, or anything else that only a trusted service sets.
    static let trusted = Mentions(rawValue: 2)
    /// An entry of the existing object's metadata.
    static let existingEntry = Mentions(rawValue: 4)
    /// An entry of the new object's metadata.
    static let incomingEntry = Mentions(rawValue: 8)
}

/// The ways in which a condition can have a value. Those that need something trusted do not matter and are left out.
private struct Ways: OptionSet {
    var rawValue: UInt8

    /// Without an address.
    static let plain = Ways(rawValue: 1)
    /// By a comparison of an address that may be unverified.
    static let unverified = Ways(rawValue: 2)

    func or(_ other: Ways) -> Ways { union(other) }

    func and(_ other: Ways) -> Ways {
        guard !isEmpty, !other.isEmpty else { return [] }
        var ways = intersection(other).intersection(.plain)
        if union(other).contains(.unverified) { ways.insert(.unverified) }
        return ways
    }
}

/// The values of a condition that matter to its user.
private struct Wanted: OptionSet {
    var rawValue: UInt8

    static let whenTrue = Wanted(rawValue: 1)
    static let whenFalse = Wanted(rawValue: 2)
    static let both: Wanted = [.whenTrue, .whenFalse]

    var negated: Wanted { Wanted(rawValue: rawValue >> 1 | rawValue << 1 & 2) }
}

/// The checks for the presence of metadata.
private struct Guards: OptionSet {
    var rawValue: UInt8

    /// Any look at the metadata other than reading an entry.
    static let existing = Guards(rawValue: 1)
    static let incoming = Guards(rawValue: 2)
    /// A comparison with null.
    static let existingNull = Guards(rawValue: 4)
    static let incomingNull = Guards(rawValue: 8)
    static let all = Guards(rawValue: 15)

    init(rawValue: UInt8) { self.rawValue = rawValue }

    init(_ record: Record, isNullCheck: Bool = false) {
        self = record == .existing ? .existing : .incoming
        if isNullCheck { insert(record == .existing ? .existingNull : .incomingNull) }
    }
}

/// Whole conditions: addresses that nobody verified, and metadata that may be missing.
///
/// Facts about expressions flow from callees to callers, what is wanted of them from callers to callees.
struct ConditionLints {
    private var lints: Lints
    private var mentions: [Mentions]
    private var whenTrue: [Ways]
    private var whenFalse: [Ways]
    /// The checks in each body, with its callees.
    private var guards: [Guards]
    /// The checks in every condition that calls a body; nil if none does.
    private var context: [Guards?]
    /// Whether an expression may be true, or false, by an unverified address.
    private var unverified: [Wanted]
    private var wanted: [Wanted]

    private init(_ lints: Lints) {
        self.lints = lints
        let count = lints.subjects.count
        mentions = Array(repeating: [], count: count)
        whenTrue = Array(repeating: .plain, count: count)
        whenFalse = Array(repeating: .plain, count: count)
        unverified = Array(repeating: [], count: count)
        wanted = Array(repeating: [], count: count)
        guards = Array(repeating: [], count: lints.bodies.count)
        context = Array(repeating: nil, count: lints.bodies.count)
    }

    static func check(_ lints: Lints) -> Lints {
        var conditions = ConditionLints(lints)
        for body in lints.calleesFirst { conditions.collect(body) }
        for body in lints.calleesFirst.reversed() { conditions.report(body) }
        return conditions.lints
    }

    // MARK: Facts

    private mutating func collect(_ index: Int) {
        let body = lints.bodies[index]
        for node in body.nodes {
            mentions[node] = mentions(node, in: body)
            guards[index].formUnion(guards(node))
            (whenTrue[node], whenFalse[node]) = ways(node, in: body)
        }
    }

    private func result(_ function: Int32) -> Int { Int(lints.code.functionCodes[Int(function)].result) }

    private func mentions(_ node: Int, in body: Lints.Body) -> Mentions {
        var found = lints.operands(of: node).reduce(into: Mentions()) { $0.formUnion(mentions[Int($1)]) }
        switch lints.code.operations[node] {
        case .local(let local): if let binding = lints.binding(local, in: body) { found = mentions[Int(binding)] }
        case .userCall(let function, _): found.formUnion(mentions[result(function)])
        case .isType: found.remove(.email)
        case .binary(.equal, let left, let right), .binary(.notEqual, let left, let right):
            if isAbsence(left) || isAbsence(right) { found.remove(.email) }
        case .method(let name, _): if lints.code.names[Int(name)] == "size" { found.remove(.email) }
        case .member(_, let name, _):
            if Self.isTrusted(lints.code.names[Int(name)]) { found.insert(.trusted) }
        case .constant: if let text = lints.string(Int32(node)), Self.isTrusted(text) { found.insert(.trusted) }
        default: break
        }
        switch lints.subjects[node] {
        case .claim("email"), .claimOrDefault("email"): found.insert(.email)
        case .claim(let name), .claimOrDefault(let name): if !Self.ownClaims.contains(name) { found.insert(.trusted) }
        case .firebase, .firebaseProperty: found.insert(.trusted)
        case .entry(let record, _): found.insert(record == .existing ? .existingEntry : .incomingEntry)
        default: break
        }
        return found
    }

    /// Claims that users choose, or that every token has.
    private static let ownClaims: Set<Text> = [
        "email", "name", "picture", "phone_number", "sub", "user_id", "iss", "aud", "auth_time", "iat", "exp",
    ]

    /// Names such as `email_verified` and `isEmailVerified`.
    private static func isTrusted(_ name: Text) -> Bool {
        name.count >= 8 && name.count <= 64 && name.string.asciiLowercased().contains("verified")
    }

    private func isAbsence(_ node: Int32) -> Bool { lints.isNull(node) || lints.string(node)?.isEmpty == true }

    private func guards(_ node: Int) -> Guards {
        let operations = lints.code.operations
        switch operations[node] {
        case .userCall(let function, _): return guards[lints.bodyOfFunction[Int(function)]]
        case .binary(.isIn, _, let container): return guards(of: container)
        case .binary(.equal, let left, let right), .binary(.notEqual, let left, let right):
            guard lints.isNull(left) || lints.isNull(right) else { return [] }
            let side = lints.isNull(left) ? right : left
            if case .binary(.notEqual, _, _) = operations[node], case .entry(let record, _) = lints.subjects[Int(side)]
            {
                return Guards(record)
            }
            return guards(of: side, isNullCheck: true)
        case .isType(let operand, _):
            if case .entry(let record, _) = lints.subjects[Int(operand)] { return Guards(record) }
            return guards(of: operand, isNullCheck: true)
        case .method(_, let list): return lints.operands(list).first.map { guards(of: $0) } ?? []
        default: return []
        }
    }

    private func guards(of node: Int32, isNullCheck: Bool = false) -> Guards {
        switch (lints.subjects[Int(node)], lints.code.operations[Int(node)]) {
        case (.metadata(let record), _): return Guards(record, isNullCheck: isNullCheck)
        // Metadata of an object that is not known.
        case (.other, .member(_, _, let field)) where field.object == .metadata: return .all
        default: return []
        }
    }

    // MARK: Logic

    /// The operand that has the same value, or the negated one.
    private func logicalOperand(_ node: Int, in body: Lints.Body) -> (node: Int, isNegated: Bool)? {
        switch lints.code.operations[node] {
        case .not(let operand): return (Int(operand), true)
        case .binary(let sign, let left, let right) where sign == .equal || sign == .notEqual:
            for (value, other) in [(left, right), (right, left)] {
                if case .bool(let value)? = lints.code.constantValue(value) {
                    return (Int(other), value == (sign == .notEqual))
                }
            }
            return nil
        case .call(.debug, let list): return lints.operands(list).first.map { (Int($0), false) }
        case .local(let local): return lints.binding(local, in: body).map { (Int($0), false) }
        default: return nil
        }
    }

    private func ways(_ node: Int, in body: Lints.Body) -> (whenTrue: Ways, whenFalse: Ways) {
        if let (operand, isNegated) = logicalOperand(node, in: body) {
            let (same, other) = (whenTrue[operand], whenFalse[operand])
            return isNegated ? (other, same) : (same, other)
        }
        switch lints.code.operations[node] {
        case .constant:
            guard case .bool(let value)? = lints.code.constantValue(Int32(node)) else { break }
            return value ? (.plain, []) : ([], .plain)
        case .all(let list):
            let parts = lints.operands(list).map { Int($0) }
            return (
                parts.reduce(.plain) { $0.and(whenTrue[$1]) }, parts.reduce([]) { $0.or(whenFalse[$1]) }
            )
        case .any(let list):
            let parts = lints.operands(list).map { Int($0) }
            return (
                parts.reduce([]) { $0.or(whenTrue[$1]) }, parts.reduce(.plain) { $0.and(whenFalse[$1]) }
            )
        case .conditional(let condition, let first, let second):
            func result(_ ways: [Ways]) -> Ways {
                whenTrue[Int(condition)].and(ways[Int(first)]).or(whenFalse[Int(condition)].and(ways[Int(second)]))
            }
            return (result(whenTrue), result(whenFalse))
        case .userCall(let function, let list):
            let result = result(function)
            let arguments = argumentMentions(list)
            var (yes, no) = (whenTrue[result], whenFalse[result])
            if arguments.contains(.trusted) { (yes, no) = ([], []) }
            if isUnverified(arguments, result) { yes = yes.and(.unverified) }
            return (yes, no)
        default: break
        }
        if mentions[node].contains(.trusted) { return ([], []) }
        guard mentions[node].contains(.email) else { return (.plain, .plain) }
        if case .binary(.notEqual, _, _) = lints.code.operations[node] { return (.plain, .unverified) }
        return (.unverified, .plain)
    }

    private func argumentMentions(_ list: OperandList) -> Mentions {
        lints.operands(list).reduce(into: []) { $0.formUnion(mentions[Int($1)]) }
    }

    /// Whether a function compares an address that it is given, without being known to.
    private func isUnverified(_ arguments: Mentions, _ result: Int) -> Bool {
        arguments.contains(.email) && !arguments.contains(.trusted) && !mentions[result].contains(.email)
    }

    // MARK: Reports

    private mutating func report(_ index: Int) {
        let body = lints.bodies[index]
        if body.function < 0 {
            context[index] = []
            wanted[body.root] = .whenTrue
            if whenTrue[body.root].contains(.unverified) { unverified[body.root] = .whenTrue }
        }
        guard let context = context[index] else { return }
        let guards = context.union(guards[index])
        var email: Int?
        var missing: [Record: Int] = [:]
        for node in body.nodes.reversed() {
            passContext(node, guards)
            guard !wanted[node].isEmpty else { continue }
            if descend(node, in: body) { continue }
            // The first one in the source.
            if isEmailComparison(node) { email = node }
            if let record = missingMetadata(node, guards) { missing[record] = node }
        }
        if let email { warnOfEmail(email) }
        for node in missing.values.sorted() { warnOfMetadata(node) }
    }

    private mutating func passContext(_ node: Int, _ guards: Guards) {
        guard case .userCall(let function, _) = lints.code.operations[node] else { return }
        let callee = lints.bodyOfFunction[Int(function)]
        context[callee] = context[callee]?.intersection(guards) ?? guards
    }

    /// Passes on what is wanted of an operation to its operands; false if it is a single comparison.
    private mutating func descend(_ node: Int, in body: Lints.Body) -> Bool {
        let (wanted, unverified) = (wanted[node], unverified[node])
        if let (operand, isNegated) = logicalOperand(node, in: body) {
            pass(isNegated ? wanted.negated : wanted, isNegated ? unverified.negated : unverified, to: operand)
            return true
        }
        switch lints.code.operations[node] {
        case .all(let list): pass(wanted, unverified, to: list, onlyFirst: .whenTrue)
        case .any(let list): pass(wanted, unverified, to: list, onlyFirst: .whenFalse)
        case .conditional(let condition, let first, let second):
            pass(.both, unverified.isEmpty ? [] : .both, to: Int(condition))
            pass(wanted, unverified, to: Int(first))
            pass(wanted, unverified, to: Int(second))
        case .userCall(let function, let list):
            let result = result(function)
            pass(wanted, unverified, to: result)
            return !isUnverified(argumentMentions(list), result)
        default: return false
        }
        return true
    }

    /// Where all operands must have a value, a claim is enough in one of them, so only the first address is reported.
    private mutating func pass(_ wanted: Wanted, _ unverified: Wanted, to list: OperandList, onlyFirst: Wanted) {
        var unverified = unverified
        for operand in lints.operands(list).map({ Int($0) }) {
            pass(wanted, unverified, to: operand)
            let ways = onlyFirst == .whenTrue ? whenTrue[operand] : whenFalse[operand]
            if ways.contains(.unverified) { unverified.subtract(onlyFirst) }
        }
    }

    private mutating func pass(_ wanted: Wanted, _ unverified: Wanted, to node: Int) {
        self.wanted[node].formUnion(wanted)
        if unverified.contains(.whenTrue), whenTrue[node].contains(.unverified) {
            self.unverified[node].insert(.whenTrue)
        }
        if unverified.contains(.whenFalse), whenFalse[node].contains(.unverified) {
            self.unverified[node].insert(.whenFalse)
        }
    }

    private func isEmailComparison(_ node: Int) -> Bool {
        if case .userCall = lints.code.operations[node] { return unverified[node].contains(.whenTrue) }
        return !unverified[node].isEmpty
    }

    private mutating func warnOfEmail(_ node: Int) {
        lints.warn(
            "An address in a token proves nothing before it is verified: anyone can sign up with another person's.",
            at: Int32(node), hint: "require request.auth.token.email_verified as well")
    }

    // MARK: Metadata

    /// The object whose missing metadata is an error where the author expects the condition to hold.
    private func missingMetadata(_ node: Int, _ guards: Guards) -> Record? {
        let wanted = wanted[node]
        if case .binary(.isIn, _, let container) = lints.code.operations[node],
            case .metadata(let record) = lints.subjects[Int(container)]
        {
            let isChecked = guards.contains(record == .existing ? .existingNull : .incomingNull)
            return wanted.contains(.whenFalse) && !isChecked ? record : nil
        }
        guard let (record, _) = entry(node), !guards.contains(Guards(record)) else { return nil }
        switch comparison(node) {
        case .equal(isNull: true), .notEqual(isNull: false): return wanted.contains(.whenTrue) ? record : nil
        default: return wanted.contains(.whenFalse) ? record : nil
        }
    }

    private enum Comparison {
        case equal(isNull: Bool)
        case notEqual(isNull: Bool)
        case other
    }

    private func comparison(_ node: Int) -> Comparison {
        guard case .binary(let sign, let left, let right) = lints.code.operations[node] else { return .other }
        let isNull = lints.isNull(left) || lints.isNull(right)
        switch sign {
        case .equal: return .equal(isNull: isNull)
        case .notEqual: return .notEqual(isNull: isNull)
        default: return .other
        }
    }

    /// The first entry of metadata that a comparison reads.
    private func entry(_ node: Int) -> (record: Record, name: Text)? {
        let entries: Mentions = [.existingEntry, .incomingEntry]
        var node = node
        while !mentions[node].isDisjoint(with: entries) {
            if case .entry(let record, let name) = lints.subjects[node] { return (record, name) }
            guard let next = lints.operands(of: node).first(where: { !mentions[Int($0)].isDisjoint(with: entries) })
            else { return nil }
            node = Int(next)
        }
        return nil
    }

    private mutating func warnOfMetadata(_ node: Int) {
        if case .binary(.isIn, _, let container) = lints.code.operations[node] {
            let metadata = lints.subjects[Int(container)].text
            return lints.warn(
                "\(metadata) is null if nothing is set, so this is an error and the rule denies.", at: Int32(node),
                hint: "write: \(metadata) != null && …")
        }
        guard let (record, name) = entry(node) else { return }
        let metadata = Subject.metadata(record).text
        let key = lints.quoted(name)
        let isMissing = "(\(metadata) == null || !(\(key) in \(metadata)))"
        let hint =
            switch comparison(node) {
            case .equal(isNull: true): "write: \(isMissing)"
            case .notEqual(isNull: false): "write: \(isMissing) || …"
            default: "write: \(metadata) != null && \(key) in \(metadata) && …"
            }
        lints.warn(
            "If \(metadata)[\(key)] is not set, this is an error and the rule denies.", at: Int32(node), hint: hint)
    }
}
