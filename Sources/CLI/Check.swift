import ArgumentParser
import Gateway
import Glibc
import OpenSSL

/// `sluice check FILE`: exit status 0 where the configuration can be served, 1 where it can't, 64 for wrong usage.
struct Check: ParsableCommand {
    static let configuration = CommandConfiguration(
        abstract: "Validate a configuration and print what it comes to.",
        discussion: """
            Prints the effective configuration with every default and limit as YAML, and where a value was \
            overridden, by what. Findings go to standard error. Exit status: 0 fine, 1 findings, 64 wrong usage.

            --connect asks each service, as 'sluice serve' will, to list, to read an object if there is one, and whether \
            it would take a write, which is not made. What works is printed in place of the configuration.
            """)

    @Argument(help: "The configuration file; --config or SLUICE_CONFIG otherwise.")
    var file: String?

    @Flag(help: "Print config/reference.yaml instead: every key with its default and meaning.")
    var reference = false

    @Flag(help: "Try the services that hold the buckets, and say what is wrong.")
    var connect = false

    @OptionGroup var options: ConfigurationOptions

    func run() throws {
        if reference {
            print(Configuration.reference(), terminator: "")
            return
        }
        let configuration = try options.load(file)
        do {
            _ = try configuration.credentials()
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
        if connect { return try tryServices(configuration) }
        print(configuration.yaml(), terminator: "")
    }

    private func tryServices(_ configuration: Configuration) throws {
        signal(SIGPIPE, SIG_IGN)
        let findings = try ConnectionFinding.all(configuration)
        for finding in findings {
            if !finding.works.isEmpty {
                print("\(finding.subject): \(finding.works.joined(separator: ", "))")
            }
            if let note = finding.note { print("\(finding.subject): note: \(note)") }
            for fault in finding.faults { complain("\(finding.subject): error: \(fault)") }
        }
        if findings.contains(where: { !$0.faults.isEmpty }) { throw ExitCode(1) }
    }
}

extension Configuration {
    /// The certificate and key of the TLS listener; nil where there is none.
    /// - Throws: `TLSError` naming the file that does not fit.
    func credentials() throws(TLSError) -> TLSContext? {
        guard https.address != nil, let certificate = https.certificate else { return nil }
        let clients = https.clients.authorities.map {
            ClientVerification(
                authorities: $0, isRequired: https.clients.isRequired,
                revocations: https.clients.revoked)
        }
        guard certificate != HTTPS.selfSigned, let key = https.key else {
            return try TLSContext.selfSigned(clients: clients)
        }
        return try TLSContext(certificateFile: certificate, keyFile: key, clients: clients)
    }

    /// The keys that sign links; nil where links are switched off.
    /// - Throws: An error that names the file.
    func linkKeys() throws -> LinkKeys? {
        guard let file = links.keys else { return nil }
        let text = try TextFile.read(file)
        do throws(LinkKeys.Malformed) {
            return try LinkKeys(text: text)
        } catch {
            throw TextFile.Failure(description: "\(file): error: \(error)")
        }
    }
}
