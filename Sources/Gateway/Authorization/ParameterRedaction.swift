import SecurityRules
import Wire

/// Hides the values of query parameters, which may be secrets, but of those whose meaning is known.
///
/// A condition that reads parameters of such a request shows only truth values: any other value may be made of a secret.
package struct ParameterRedaction {
    private static let known: Set<BytewiseString> = [
        "alt", "continuation-token", "delimiter", "encoding-type", "fetch-owner", "list-type", "marker", "max-keys",
        "maxResults", "metadata", "name", "pageToken", "partNumber", "prefix", "start-after", "uploadType", "view",
        "x-id",
    ]
    /// What stands for a hidden value.
    package static let text = "<redacted>"
    /// Whether a parameter is hidden.
    private let isNeeded: Bool

    /// - Parameter request: The request whose parameters are hidden.
    package init(_ request: Request) {
        isNeeded = request.parameters.contains { !ParameterRedaction.known.contains(BytewiseString($0.name)) }
    }

    /// The request with hidden values of parameters.
    package func applied(to request: Request) -> Request {
        guard isNeeded else { return request }
        var request = request
        let pairs = request.parameters.map { parameter in
            let isKnown = ParameterRedaction.known.contains(BytewiseString(parameter.name))
            return (BytewiseString(parameter.name), Value.string(isKnown ? parameter.value : ParameterRedaction.text))
        }
        request.setParameters(Dictionary(uniqueKeysWithValues: pairs))
        return request
    }

    /// The explanation of the request, without values that may be made of a hidden one.
    package func applied(to explanation: Explanation) -> Explanation {
        guard isNeeded else { return explanation }
        var explanation = explanation
        for block in explanation.blocks.indices {
            for rule in explanation.blocks[block].rules.indices {
                let condition = explanation.blocks[block].rules[rule].condition
                guard let condition, ParameterRedaction.readsParameters(condition) else { continue }
                explanation.blocks[block].rules[rule].condition = ParameterRedaction.hidden(condition)
                ParameterRedaction.hide(&explanation.blocks[block].rules[rule].outcome)
            }
        }
        return explanation
    }

    private static func readsParameters(_ step: Explanation.Step) -> Bool {
        step.text.contains("params") || step.parts.contains { readsParameters($0) }
    }

    private static func hidden(_ step: Explanation.Step) -> Explanation.Step {
        var step = step
        hide(&step.outcome)
        step.parts = step.parts.map { hidden($0) }
        return step
    }

    private static func hide(_ outcome: inout Explanation.Outcome) {
        switch outcome {
        case .value("true"), .value("false"), .unknown: break
        case .value: outcome = .value(text)
        case .error: outcome = .error("Error: \(text)")
        }
    }
}
