import ArgumentParser
import Configuration
import Gateway
import Glibc
import OpenSSL
import SecurityRules
import Wire

/// `sluice check FILE`: exits with status 0 if the configuration can be served, 1 if not, 64 on wrong usage.
struct Check: ParsableCommand {
    static let configuration = CommandConfiguration(
        abstract: "Validate a configuration and print it with all defaults.",
        discussion: """
            Prints the effective configuration as YAML, with every default and limit. A value from a variable or a \
            flag is marked with its source. Errors and warnings go to standard error. Rules that can never allow \
            anything in their bucket, and rules that let anonymous callers upload without a size limit, are warnings. \
            Exit status: 0 no errors, 1 errors, 64 wrong usage.

            --connect tests the services that store the buckets, with the settings of 'sluice serve': it lists each \
            bucket, reads an object if there is one, and asks whether a write would be permitted, without writing. It \
            prints what works instead of the configuration.
            """)

    @Argument(
        help: "The configuration file (default: --config, or SLUICE_CONFIG).",
        completion: .file())
    var file: String?

    @Flag(help: "Print config/reference.yaml instead: every key with its default and meaning.")
    var reference = false

    @Flag(help: "Test the connections to the services that store the buckets.")
    var connect = false

    @OptionGroup var options: ConfigurationOptions

    func run() throws {
        if reference {
            print(Configuration.reference(), terminator: "")
            return
        }
        let configuration = try options.load(.file(argument: file))
        do {
            if let warning = try configuration.credentials()?.expiryWarning() {
                complain("listen.https: warning: \(warning)")
            }
        } catch {
            complain("listen.https: error: \(error)")
            throw ExitCode(1)
        }
        do {
            _ = try configuration.linkKeys()
        } catch {
            complain("links.keys: \(error)")
            throw ExitCode(1)
        }
        do {
            _ = try configuration.uploadKeys()
        } catch {
            complain("uploads.keys: \(error)")
            throw ExitCode(1)
        }
        do {
            _ = try (configuration.accessKeys(), configuration.s3SessionKeys())
        } catch {
            complain("s3: \(error)")
            throw ExitCode(1)
        }
        do {
            _ = try configuration.webhookKeys()
        } catch {
            complain("events: \(error)")
            throw ExitCode(1)
        }
        do {
            _ = try configuration.operatorTokenText()
        } catch {
            complain("listen.operatorToken: \(error)")
            throw ExitCode(1)
        }
        for path in configuration.exposedFiles {
            complain("\(path): warning: every user can read this file with secrets (chmod o-r)")
        }
        for warning in configuration.eventWarnings { complain(warning) }
        for uid in configuration.ambiguousAdministrators {
            complain(
                "firebaseOptions.administrators: warning: \(VisibleText.escaped(uid)) is this uid of every issuer and token; "
                    + "write ISSUER:UID")
        }
        for name in configuration.bucketsForOneCaller {
            complain(
                "buckets.\(name).stagedBytes: warning: one caller can take all of it, because uploads.stagedBytes is 0")
        }
        let rules = RulesInEffect(configuration)
        for warning in configuration.cacheWarnings(rules.ruleset) { complain(warning) }
        if connect { return try tryServices(configuration, rules) }
        for finding in rules.findings() { complain("\(finding)") }
        print(configuration.yaml(), terminator: "")
    }

    private func tryServices(_ configuration: Configuration, _ rules: RulesInEffect) throws {
        signal(SIGPIPE, SIG_IGN)
        let (findings, capabilities) = try ConnectionFinding.all(configuration)
        for finding in findings {
            if !finding.works.isEmpty {
                let works = finding.works.joined(separator: ", ")
                print(VisibleText.escaped("\(finding.subject): \(works)"))
            }
            if let note = finding.note {
                print(VisibleText.escaped("\(finding.subject): note: \(note)"))
            }
            for fault in finding.faults { complain("\(finding.subject): error: \(fault)") }
        }
        for finding in rules.findings(capabilities) { complain("\(finding)") }
        if findings.contains(where: { !$0.faults.isEmpty }) { throw ExitCode(1) }
    }
}

extension Configuration {
    /// The certificate and key of the TLS listener; nil if there is no such listener.
    /// - Throws: `TLSError` with the name of the file that can't be used.
    func credentials() throws(TLSError) -> TLSContext? {
        guard https.address != nil || s3.https != nil, let certificate = https.certificate else { return nil }
        let clients = https.clients.authorities.map {
            ClientVerification(
                authorities: $0, isRequired: https.clients.isRequired, revocations: https.clients.revoked)
        }
        guard certificate != HTTPS.selfSigned, let key = https.key else {
            return try TLSContext.selfSigned(clients: clients)
        }
        return try TLSContext(certificateFile: certificate, keyFile: key, clients: clients)
    }

    /// The keys that sign links; nil if signed links are switched off.
    /// - Throws: An error with the file's name.
    func linkKeys() throws -> LinkKeys? {
        try links.keys.map { try TextFile.read($0, as: LinkKeys.init(text:)) }
    }
}
