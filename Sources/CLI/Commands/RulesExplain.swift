import ArgumentParser
import RulesTesting
import SecurityRules
import Wire

/// `sluice rules explain`: shows why a request is allowed or denied.
struct RulesExplain: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "explain",
        abstract: "Show why a request is allowed or denied.",
        discussion: """
            Prints the decision, the match blocks and rules that were evaluated, and the value of each of their \
            expressions. Fields of the stored object, of the new object and of documents that are not given are \
            unknown; the output says if the decision depends on one of them. --resource null means that no object is \
            stored. Exit status: 0 allowed, 3 denied, 4 undecided without values that were not given, 2 a file can't \
            be read, 64 wrong usage.
            """)

    @Argument(help: "The rules file; - is standard input.")
    var file: String

    @Option(help: "get, list, create, update or delete.")
    var method: String

    @Option(help: "/b/BUCKET/o/NAME; for list the prefix, without its last slash.")
    var path: String

    @Option(
        help: "The caller: a user ID, or {\"uid\": …, \"token\": {…}} (default: not signed in).")
    var auth: String?

    @Option(help: "The stored object as JSON, or null for none.")
    var resource: String?

    @Option(
        help: "The new object as JSON; fields that come from the body are unknown unless given.")
    var new: String?

    @Option(help: "The time of the request, in RFC 3339 (default: now).")
    var time: String?

    @Option(help: "A query parameter, KEY=VALUE. Repeatable.")
    var param: [String] = []

    @Option(help: "A document, PATH=JSON or PATH=absent. Repeatable.")
    var document: [String] = []

    @Option(help: "text or json.")
    var format = OutputFormat.text

    func validate() throws { _ = try request() }

    private func request() throws -> Request {
        var arguments = RequestArguments(method: method, path: path)
        arguments.auth = auth
        arguments.resource = resource
        arguments.incoming = new
        arguments.time = time
        arguments.parameters = param
        arguments.documents = document
        do {
            return try arguments.request(now: now())
        } catch {
            throw ValidationError(VisibleText.escapedLines(error.description))
        }
    }

    func run() throws {
        let request = try request()
        let rules = try RulesFile(file).rules
        let explanation = rules.explain(request)
        switch format {
        case .json: print(explanation.json(rules.fileName).text)
        case .text:
            let text = ExplanationText(explanation, fileName: rules.fileName, colour: wantsColour())
            print(text.text, terminator: "")
        }
        switch explanation.decision {
        case .allowed: return
        case .denied: throw RulesStatus.denied
        case .needs: throw RulesStatus.undecided
        }
    }
}
