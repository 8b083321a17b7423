import SecurityRules

extension TestResult {
    /// The result as a `TestResult` of the Firebase Rules API, with additional members that identify the case.
    package func json(_ rules: Ruleset, coverage: Bool) -> JSON {
        var members: [(String, JSON)] = [
            ("state", .string(passed ? "SUCCESS" : "FAILURE")),
            ("index", .int(testCase.index)), ("name", .string(testCase.name)),
            ("place", .string(testCase.location)),
            ("expectation", .string(testCase.expectsAllow ? "ALLOW" : "DENY")),
            ("decision", .string(decision.isAllowed ? "ALLOW" : "DENY")), ("inputs", .object(request.json)),
        ]
        if let failure { members.append(("failure", .string(failure))) }
        if !messages.isEmpty {
            members.append(("debugMessages", .array(messages.map(JSON.string))))
        }
        if let error = explanation.errors.first {
            members.append(("errorPosition", error.position.json(rules.fileName)))
        }
        let calls = explanation.functionCalls
        if !calls.isEmpty {
            members.append(
                (
                    "functionCalls",
                    .array(
                        calls.map {
                            .object([
                                ("function", .string($0.function.rawValue)),
                                ("args", .array([.string($0.argument)])),
                            ])
                        })
                ))
        }
        members.append(("visitedExpressions", .array(explanation.visited(rules.fileName))))
        if coverage || testCase.reportLevel != .none {
            var covered = Coverage(of: rules)
            covered.add(explanation)
            let all = coverage || testCase.reportLevel == .full
            let reports = covered.expressions.filter { all || $0.count > 0 }
            members.append(("expressionReports", JSON.nested(reports, rules.fileName)))
        }
        if !passed {
            let text = ExplanationText(explanation, fileName: rules.fileName).text
            members.append(("explanation", .string(text)))
        }
        return .object(members)
    }
}

extension Explanation {
    /// The evaluated conditions with their outcomes.
    fileprivate func visited(_ fileName: String) -> [JSON] {
        blocks.flatMap(\.rules).compactMap(\.condition).map { condition in
            .object([
                ("sourcePosition", JSON(fileName, condition.range)),
                ("value", condition.outcome.json),
            ])
        }
    }

    /// The whole explanation as JSON.
    package func json(_ fileName: String) -> JSON {
        var members: [(String, JSON)] = []
        switch decision {
        case .allowed: members.append(("decision", .string("ALLOW")))
        case .denied(let denial):
            members.append(("decision", .string("DENY")))
            members.append(("reason", .string(denial.reason.rawValue)))
            members.append(("message", .string(denial.message)))
        case .needs(let needs):
            members.append(("decision", .string("UNKNOWN")))
            members.append(("needs", .array(needs.names.map(JSON.string))))
        }
        members.append(("blocks", .array(blocks.map { $0.json(fileName) })))
        return .object(members)
    }
}

extension Explanation.Block {
    fileprivate func json(_ fileName: String) -> JSON {
        .object([
            ("path", .string(path)), ("sourcePosition", JSON(fileName, range)),
            ("captures", .object(captures.map { ($0.name, .string($0.value)) })),
            (
                "rules",
                .array(
                    rules.map { rule in
                        .object(
                            [
                                ("methods", .string(rule.methods)),
                                ("sourcePosition", JSON(fileName, rule.range)),
                                ("outcome", rule.outcome.json),
                            ] + (rule.condition.map { [("condition", $0.json(fileName))] } ?? []))
                    })
            ),
        ])
    }
}

extension Explanation.Step {
    fileprivate func json(_ fileName: String) -> JSON {
        .object([
            ("text", .string(text)), ("sourcePosition", JSON(fileName, range)),
            ("outcome", outcome.json), ("parts", .array(parts.map { $0.json(fileName) })),
        ])
    }
}

extension Explanation.Outcome {
    /// `{value}`, `{error}` or `{needs}`.
    fileprivate var json: JSON {
        switch self {
        case .value(let value): .object([("value", JSON.ofLanguage(value))])
        case .error(let message): .object([("error", .string(message))])
        case .unknown(let needs):
            .object([("needs", .array(needs.names.map(JSON.string)))])
        }
    }
}

extension SourcePosition {
    fileprivate func json(_ fileName: String) -> JSON {
        .object([
            ("fileName", .string(fileName)), ("line", .int(line)), ("column", .int(column)),
            ("currentOffset", .int(offset)),
        ])
    }
}

extension JSON {
    /// A value of the rules language: Booleans and null as JSON, all others as strings in the language's notation.
    static func ofLanguage(_ text: String) -> JSON {
        ["true", "false", "null"].contains(text) ? .raw(text) : .string(text)
    }

    /// Expressions with their values, each nested in the innermost expression that contains it.
    fileprivate static func nested(_ expressions: [Coverage.Expression], _ fileName: String) -> JSON {
        var rest = expressions[...]
        return .array(children(within: .max, &rest, fileName))
    }

    private static func children(
        within end: Int, _ rest: inout ArraySlice<Coverage.Expression>, _ fileName: String
    ) -> [JSON] {
        var found: [JSON] = []
        while let next = rest.first, next.range.upperBound.offset <= end {
            rest.removeFirst()
            let values = next.values.map { value, count in
                JSON.object([
                    (
                        "value",
                        value.hasPrefix("Error: ")
                            ? .object([("undefined", .object([]))]) : ofLanguage(value)
                    ),
                    ("count", .int(count)),
                ])
            }
            found.append(
                .object([
                    ("sourcePosition", JSON(fileName, next.range)), ("values", .array(values)),
                    (
                        "children",
                        .array(children(within: next.range.upperBound.offset, &rest, fileName))
                    ),
                ]))
        }
        return found
    }
}
