import ArgumentParser
import Wire

/// `sluice manual`: prints the manual as a man page, from the table that parses the verbs.
struct Manual: ParsableCommand {
    static let configuration = CommandConfiguration(
        abstract: "Print the manual as a man page.",
        discussion: """
            EXAMPLES:
              sluice manual > /usr/local/share/man/man1/sluice.1
              sluice manual | man -l -
            """)

    func run() throws {
        guard let tool = try? JSONReader.parse(Array(Sluice._dumpHelp().utf8)),
            let command = tool["command"]
        else { throw ExitCode.failure }
        var page = ManualPage()
        page.write(command)
        print(page.text, terminator: "")
    }
}

/// A page in the macros of man(7).
private struct ManualPage {
    private(set) var text = ""

    /// Writes the page of the program.
    /// - Parameter command: As the argument parser describes it.
    mutating func write(_ command: JSONValue) {
        text += ".TH SLUICE 1 \"\" \"sluice \(Sluice.configuration.version)\"\n"
        text += ".SH NAME\nsluice \\- \(escaped(command["abstract"]?.text ?? ""))\n"
        text += ".SH SYNOPSIS\n.B sluice\n.I subcommand\n.RI [ options ]\n"
        text += ".SH SUBCOMMANDS\n"
        for subcommand in command["subcommands"]?.elements ?? [] { write(subcommand, "sluice") }
        text += ".SH EXIT STATUS\n"
        text += """
            0 on success and 64 on wrong usage. The client's verbs exit with 2 after a local failure, 3 if there is no
            such object, 4 if access is denied, 5 after a conflict, 6 if the gateway can't be reached or used, and 1
            otherwise.

            """
        text += Self.environment
    }

    private static let environment = """
        .SH ENVIRONMENT
        .TP
        .B SLUICE_CONFIG
        The configuration file of a server, as of \\-\\-config.
        .TP
        .B SLUICE_\\fIKEY\\fP
        A key of the configuration, in capitals and with _ for each other character: SLUICE_LISTEN_HTTP is listen.http.
        .TP
        .B SLUICE_URL, SLUICE_BUCKET
        The gateway and the bucket of the client's verbs.
        .TP
        .B SLUICE_TOKEN, SLUICE_TOKEN_FILE
        The client's token, or a file with it, which is read for each request. SLUICE_OTHER_TOKEN and
        SLUICE_OTHER_TOKEN_FILE are for the second gateway of a command with two.
        .TP
        .B GOOGLE_APPLICATION_CREDENTIALS, AWS_PROFILE, AWS_REGION, AWS_CONFIG_FILE, AWS_SHARED_CREDENTIALS_FILE
        Credentials of services, and others of their kits: upstreams.md names them all.
        .TP
        .B HTTPS_PROXY, NO_PROXY
        The HTTP proxy of services, and the hosts without it.
        .TP
        .B TMPDIR
        Where uploads wait that may have to be sent again, if upstream.temporaryDirectory is null.
        .SH FILES
        .TP
        .I /etc/sluice/sluice.yaml, /etc/sluice/storage.rules
        The configuration and the rules of the packaged service.
        .TP
        .I /var/lib/sluice
        The packaged service's buckets.
        .TP
        .I $XDG_STATE_HOME/sluice, ~/.local/state/sluice
        What the client needs to continue interrupted uploads, for 30 days.
        .TP
        .I /usr/share/doc/sluice
        The pages of the documentation, and examples.
        .SH SIGNALS
        SIGTERM and SIGINT drain a server and end it. SIGHUP reloads its configuration.
        .SH SEE ALSO
        .BR sluice\\-client (1),
        .BR systemd.socket (5)

        """

    private mutating func write(_ command: JSONValue, _ parent: String) {
        let name = "\(parent) \(command["commandName"]?.text ?? "")"
        if name == "sluice help" { return }
        text += ".SS \"\(escaped(name))\"\n"
        paragraph(command["abstract"]?.text)
        paragraph(command["discussion"]?.text)
        for argument in command["arguments"]?.elements ?? [] { item(argument) }
        for subcommand in command["subcommands"]?.elements ?? [] { write(subcommand, name) }
    }

    /// Text whose indented lines, the examples, keep their form.
    private mutating func paragraph(_ paragraph: String?) {
        guard let paragraph else { return }
        text += ".PP\n"
        var isExample = false
        for line in paragraph.split(separator: "\n", omittingEmptySubsequences: false) {
            if line.hasPrefix("  ") != isExample {
                isExample.toggle()
                text += isExample ? ".nf\n" : ".fi\n"
            }
            text += line.isEmpty ? ".PP\n" : "\(escaped(String(line)))\n"
        }
        if isExample { text += ".fi\n" }
    }

    /// An option or an argument.
    private mutating func item(_ argument: JSONValue) {
        guard argument["shouldDisplay"] != .boolean(false) else { return }
        let value = argument["valueName"]?.text ?? ""
        let names = (argument["names"]?.elements ?? []).compactMap { name -> String? in
            guard let text = name["name"]?.text else { return nil }
            return name["kind"]?.text == "long" ? "--\(text)" : "-\(text)"
        }
        let isOption = argument["kind"]?.text == "option"
        let label = names.isEmpty ? value : names.joined(separator: ", ") + (isOption ? " \(value)" : "")
        text += ".TP\n.B \"\(escaped(label))\"\n"
        text += escaped(argument["abstract"]?.text ?? "") + "\n"
    }

    private func escaped(_ text: String) -> String {
        var result = ""
        for character in text {
            switch character {
            case "\\": result += "\\e"
            case "-": result += "\\-"
            case "\"": result += "\\(dq"
            // At the start of a line these begin a request.
            case ".", "'": result += result.isEmpty ? "\\&\(character)" : String(character)
            default: result.append(character)
            }
        }
        return result
    }
}
