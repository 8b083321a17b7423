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
    /// The result as one object. Each case of `opened` is allowed by the new rules and denied by the old ones; each case of
    /// `closed` the other way round. Cases state what the new rules do.
    package var json: JSON {
        .object([
            ("statements", .int(statements)), ("changed", .int(changedStatements)),
            ("opened", opened.json(isAllowed: true)), ("closed", closed.json(isAllowed: false)),
        ])
    }
}

extension RulesDiff.Side {
    fileprivate func json(isAllowed: Bool) -> JSON {
        let what = isAllowed ? "newly allowed" : "newly denied"
        return .object([
            ("proven", .array(provenMethods.map { .string($0.name) })),
            (
                "statements",
                .array(
                    changes.map { change in
                        .object([
                            ("sourcePosition", JSON(change.fileName, change.range)),
                            (
                                "cases",
                                .array(
                                    change.examples.map {
                                        $0.testCase("\($0.method.name) is \(what)", isAllowed: isAllowed)
                                    })
                            ),
                        ])
                    })
            ),
            (
                "undetermined",
                .array(
                    open.map { open in
                        .object([
                            ("sourcePosition", JSON(open.fileName, open.range)),
                            ("methods", .array(open.methods.map { .string($0.name) })),
                            ("reasons", .array(open.obstacles.map(\.json))),
                        ])
                    })
            ),
        ])
    }
}
