import ArgumentParser
import RulesTesting
import SecurityRules

/// `sluice rules explain`: why one request is allowed or denied.
struct RulesExplain: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "explain",
        abstract: "Say why a request is allowed or denied.",
        discussion: """
            Prints the decision, the blocks and rules that were asked, and below each its expressions with their \
            values. What is not given of the stored object (--resource null says that there is none), of the new one \
            and of documents is unknown, and where the decision depends on it, that is said. Exit status: 0 allowed, \
            3 denied, 4 it depends on what was not given, 2 a file can't be read, 64 wrong usage.
            """)

    @Argument(help: "The file of rules; - is standard input.")
    var file: String

    @Option(help: "get, list, create, update or delete.")
    var method: String

    @Option(help: "/b/BUCKET/o/NAME, or for list the prefix without its last slash.")
    var path: String

    @Option(
        help: "The caller: a user's id, or {\"uid\": …, \"token\": {…}}. Without it there is none.")
    var auth: String?

    @Option(help: "The object that is there already, as JSON, or null.")
    var resource: String?

    @Option(
        help: "The object that is written, as JSON; what the body tells is unknown unless given.")
    var new: String?

    @Option(help: "When the request comes, in RFC 3339. Otherwise now.")
    var time: String?

    @Option(help: "A parameter of the query, KEY=VALUE. May be given several times.")
    var param: [String] = []

    @Option(help: "A document, PATH=JSON or PATH=absent. May be given several times.")
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
            throw ValidationError(error.description)
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
