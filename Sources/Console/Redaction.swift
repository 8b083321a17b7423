import SecurityRules
import Wire

/// Hides the values of query parameters, which may be secrets, but of those whose meaning is known.
struct Redaction {
    private static let known: Set<BytewiseString> = [
        "alt", "continuation-token", "delimiter", "encoding-type", "fetch-owner", "list-type", "marker", "max-keys",
        "maxResults", "metadata", "name", "pageToken", "partNumber", "prefix", "start-after", "uploadType", "view",
        "x-id",
    ]
    static let text = "<redacted>"
    private let secrets: [String]

    init(_ request: Request) {
        secrets = request.parameters.filter {
            !Redaction.known.contains(BytewiseString($0.name)) && $0.value.utf8.count > 2
        }
        .map(\.value)
    }

    func applied(to request: Request) -> Request {
        if secrets.isEmpty { return request }
        var request = request
        let pairs = request.parameters.map { parameter in
            (BytewiseString(parameter.name), Value.string(applied(to: parameter.value)))
        }
        request.setParameters(Dictionary(uniqueKeysWithValues: pairs))
        return request
    }

    func applied(to explanation: Explanation) -> Explanation {
        if secrets.isEmpty { return explanation }
        var explanation = explanation
        for block in explanation.blocks.indices {
            for rule in explanation.blocks[block].rules.indices {
                apply(to: &explanation.blocks[block].rules[rule].outcome)
                if let condition = explanation.blocks[block].rules[rule].condition {
                    explanation.blocks[block].rules[rule].condition = applied(to: condition)
                }
            }
        }
        return explanation
    }

    private func applied(to step: Explanation.Step) -> Explanation.Step {
        var step = step
        apply(to: &step.outcome)
        step.parts = step.parts.map { applied(to: $0) }
        return step
    }

    private func apply(to outcome: inout Explanation.Outcome) {
        switch outcome {
        case .value(let text): outcome = .value(applied(to: text))
        case .error(let text): outcome = .error(applied(to: text))
        case .unknown: break
        }
    }

    private func applied(to text: String) -> String {
        secrets.reduce(text) { $0.replacing($1, with: Redaction.text) }
    }
}
