import SecurityRules
import Wire

extension ExampleRequest {
    /// The request as a case of a suite for `sluice rules test`.
    package func testCase(_ name: String, isAllowed: Bool) -> JSON {
        var members: [(String, JSON)] = [("name", .string(name))]
        for (key, value) in request.json {
            if case .null = value, key == "auth" { continue }
            members.append((key == "new" ? "request.resource" : key, value))
        }
        members.append(("expect", .string(isAllowed ? "allow" : "deny")))
        return .object(members)
    }
}

extension Obstacle {
    /// The place and the reason.
    package var json: JSON {
        switch self {
        case .limit(let limit): .object([("reason", .string(limit))])
        case .approximation(let fileName, let position, let text, let reason):
            .object([
                ("reason", .string(reason)), ("text", .string(text)),
                ("sourcePosition", JSON(fileName, position..<position)),
            ])
        }
    }
}

extension RulesDiff {
    /// The result as a suite for `sluice rules test`. Each case of `opened` is allowed by the new rules and denied by the old
    /// ones; each case of `closed` the other way round. Cases state what the new rules do.
    package var json: JSON {
        var cases: [JSON] = []
        let (opened, closed) = (opened.json(isAllowed: true, &cases), closed.json(isAllowed: false, &cases))
        return .suite(
            cases,
            [
                ("statements", .int(statements)), ("changed", .int(changedStatements)), ("opened", opened),
                ("closed", closed),
            ])
    }
}

extension JSON {
    /// A suite with the result of an analysis, which names cases by their indices. ``TestSuite`` ignores `analysis`.
    static func suite(_ cases: [JSON], _ analysis: [(String, JSON)]) -> JSON {
        .object([("analysis", .object(analysis)), ("cases", .array(cases))])
    }
}

extension RulesDiff.Side {
    fileprivate func json(isAllowed: Bool, _ cases: inout [JSON]) -> JSON {
        let statements = changes.map { change in
            let first = cases.count
            cases += change.examples.map {
                let name = "\($0.method.name) \($0.name) is newly \(isAllowed ? "allowed" : "denied")"
                return $0.testCase(name, isAllowed: isAllowed)
            }
            return JSON.object([
                ("sourcePosition", JSON(change.fileName, change.range)),
                ("cases", .array((first..<cases.count).map(JSON.int))),
            ])
        }
        let undetermined = open.map { open in
            JSON.object([
                ("sourcePosition", JSON(open.fileName, open.range)),
                ("methods", .array(open.methods.map { .string($0.name) })),
                ("reasons", .array(open.obstacles.map(\.json))),
            ])
        }
        return .object([
            ("proven", .array(provenMethods.map { .string($0.name) })), ("statements", .array(statements)),
            ("undetermined", .array(undetermined)),
        ])
    }
}
