import Foundation
import Gateway
import Identity
import Testing
import Wire

@testable import Configuration

/// Keys that say who callers are: right ones here, wrong ones below.
@Suite struct CallerConfigurationTests {
    private func load(
        _ yaml: String, environment: [BytewiseString: String] = [:],
        flags: [Configuration.Override] = []
    ) throws -> Configuration {
        let file = try ConfigurationFile(yaml + ConfigurationFile.minimal)
        try Data("{}".utf8).write(to: URL(fileURLWithPath: file.directory + "/keys.json"))
        return try Configuration.load(
            file: file.path, environment: environment, flags: flags, directory: "/srv")
    }

    @Test func everyKindOfIssuerIsRead() throws {
        let configuration = try load(
            """
            issuers:
              ci: { jwks: { issuer: ci, audiences: [sluice, other], keys: keys.json }, uid: client_id, uidPrefix: "ci:" }
              cluster: { kubernetes: { audience: sluice }, group: pods }
              far: { kubernetes: { audience: sluice, issuer: "https://api", keys: "https://api/openid/v1/jwks" } }
              sso: { oidc: { issuer: "https://accounts.example", audiences: [sluice] } }
              users: { firebase: { project: my-project } }

            """)
        let issuers = configuration.issuers.compactMap(\.tokenIssuer)
        #expect(issuers.map(\.name) == ["ci", "cluster", "far", "sso", "users"])
        #expect(issuers.map(\.group) == ["ci", "pods", "far", "sso", "users"])
        #expect(issuers[0].audiences == ["sluice", "other"] && issuers[0].uidClaim == "client_id")
        #expect(issuers.map(\.uidPrefix) == ["ci:", "", "", "", ""])
        guard case .file(let path) = issuers[0].keys else {
            Issue.record("no file")
            return
        }
        #expect(path.hasPrefix("/") && path.hasSuffix("/keys.json"))
        #expect(issuers[1].keys == .cluster && issuers[1].issuer == nil)
        #expect(
            issuers[2].keys == .url("https://api/openid/v1/jwks")
                && issuers[2].issuer == "https://api")
        #expect(issuers[3].keys == .discovery && issuers[3].uidClaim == "sub")
        #expect(
            issuers[4].issuer == "https://securetoken.google.com/my-project"
                && issuers[4].profile == .firebase)
        #expect(issuers[4].audiences == ["my-project"])
        #expect(
            configuration.groups == [
                "ci", "pods", "far", "sso", "users", "links", "development", "certificates",
            ])
    }

    @Test func tokensGroupsAndLinksAreRead() throws {
        let digest = String(repeating: "0aF", count: 22).prefix(64)
        let configuration = try load(
            """
            tokens: { backup: { sha256: "\(digest)", group: jobs } }
            callers:
              default: { requests: 10 }
              jobs: { bytesIn: 1MiB, bytesOut: 2MiB, transfers: 3 }
            links: { maximumLifetime: 15m, keys: keys.json }

            """)
        let token = try #require(configuration.tokens[0].staticToken)
        #expect(token.name == "backup" && token.group == "jobs" && token.sha256.count == 32)
        #expect(token.sha256[..<3] == [0x0a, 0xf0, 0xaf])
        let (other, jobs) = (configuration.callers[0], configuration.callers[1])
        #expect(other.name == "default" && other.requests == 10 && other.bytesIn == 0)
        #expect(jobs.bytesIn == 1 << 20 && jobs.bytesOut == 2 << 20 && jobs.transfers == 3)
        #expect(configuration.links.maximumLifetime == 900_000_000_000)
        #expect(configuration.links.keys?.hasSuffix("/keys.json") == true)
        #expect(configuration.groups == ["jobs", "links", "development", "certificates"])
    }

    /// Every key stands in docs/callers.md.
    @Test func everyKeyIsExplained() throws {
        let file = DeployTests.root.appending(path: "docs/callers.md")
        let text = try String(contentsOf: file, encoding: .utf8)
        let paths =
            Configuration.Issuer.settings.map(\.path) + Configuration.Token.settings.map(\.path)
            + CallerGroup.settings.map(\.path)
            + (Configuration.clientSettings + Configuration.linkSettings).map(\.path)
        #expect(paths.count > 20)
        for path in paths {
            let key = path.split(separator: ".").last!
            #expect(
                ["\(key)`", "\(key): ", "`\(key) "].contains { text.contains($0) },
                "docs/callers.md says nothing of \(path)")
        }
    }

    @Test func clientsOfTheTLSListenerAreRead() throws {
        let configuration = try load(
            """
            listen:
              https:
                address: 127.0.0.1:8443
                certificate: self-signed
                clients: { authorities: keys.json, required: true, revoked: keys.json, uid: dns, group: mesh }

            """)
        let clients = configuration.https.clients
        #expect(clients.isRequired && clients.uid == "dns" && clients.group == "mesh")
        #expect(clients.authorities == clients.revoked)
        #expect(configuration.groups == ["mesh", "links", "development"])
    }

    /// Limits of the groups that callers can belong to, by whatever makes them belong to it.
    @Test(arguments: [
        "listen: { https: { address: \"127.0.0.1:8443\", certificate: self-signed, clients: { authorities: keys.json } } }\ncallers: { certificates: { requests: 1 } }",
        "links: { keys: keys.json }\ncallers: { links: { requests: 1 } }",
        "tokens: { links: { sha256: \"\(same)\" } }\ncallers: { links: { requests: 1 } }",
        "issuers: { a: { firebase: { project: p }, group: certificates } }\ncallers: { certificates: { requests: 1 } }",
        "callers: { anonymous: { requests: 1 }, default: { requests: 1 }, development: { requests: 1 } }",
    ])
    func groupsThatCallersCanBelongTo(_ yaml: String) throws {
        #expect(try load(yaml + "\n").callers.isEmpty == false)
    }

    @Test func variablesAndFlagsReachEveryEntry() throws {
        let configuration = try load(
            "issuers: { ci: { jwks: { issuer: ci, audiences: [a], keys: keys.json } } }\ncallers: { ci: { requests: 1 } }\n",
            environment: [
                "SLUICE_ISSUERS_CI_JWKS_AUDIENCES": "b,c", "SLUICE_CALLERS_CI_REQUESTS": "2",
                "SLUICE_LINKS_MAXIMUMLIFETIME": "1h", "SLUICE_KUBERNETES_ACCOUNT": "/account",
                "SLUICE_KUBERNETES_API": "https://127.0.0.1:6443",
            ],
            flags: [
                .init(path: "callers.ci.requests", value: "3", source: "--set"),
                .init(path: "issuers.users.firebase.project", value: "p", source: "--set"),
                .init(
                    path: "tokens.backup.sha256", value: String(repeating: "a", count: 64),
                    source: "--set"),
            ])
        #expect(configuration.issuers.map(\.name) == ["ci", "users"])
        #expect(configuration.issuers[0].jwks.audiences == ["b", "c"])
        #expect(
            configuration.callers[0].requests == 3 && configuration.tokens[0].staticToken != nil)
        #expect(configuration.links.maximumLifetime == 3_600_000_000_000)
    }

    /// What `sluice check` prints can be loaded, and comes to the same.
    @Test func theOutputMatchesTheInput() throws {
        let configuration = try load(
            """
            issuers:
              cluster: { kubernetes: { audience: sluice }, group: pods }
              users: { firebase: { project: p } }
            tokens: { backup: { sha256: "\(String(repeating: "b", count: 64))" } }
            callers: { pods: { requests: 5, bytesOut: 1MiB } }

            """)
        let printed = try ConfigurationFile(configuration.yaml())
        let again = try printed.load()
        #expect(again.issuers == configuration.issuers && again.tokens == configuration.tokens)
        #expect(again.callers == configuration.callers)
    }
}

private let same = String(repeating: "0a", count: 32)

extension ConfigurationErrorTests {
    /// One thing is wrong with who callers are.
    @Test(arguments: [
        (
            "issuers: { ci: {} }",
            "1:12: error: issuer 'ci' needs one of 'firebase', 'kubernetes', 'oidc' and 'jwks'"
        ),
        (
            "issuers: { ci: 3 }",
            "1:16: error: expected a mapping such as { firebase: { project: my-project } }, found '3'"
        ),
        (
            "issuers: { a b: {} }",
            "1:12: error: 'a b' can't be a name here: it has 1 to 64 of a-z, A-Z, 0-9, '-', '_' and '.'"
        ),
        (
            "issuers: { ci: { firebase: { project: p }, oidc: { issuer: \"https://a\" } } }",
            "1:12: error: issuer 'ci' is of more than one kind: 'firebase' and 'oidc'"
        ),
        (
            "issuers: { ci: { oidc: { issuer: \"https://a\" } } }",
            "1:12: error: issuer 'ci' needs 'oidc.audiences'"
        ),
        (
            "issuers: { ci: { oidc: { audiences: [a] } } }",
            "1:12: error: issuer 'ci' needs 'oidc.issuer'"
        ),
        (
            "issuers: { ci: { oidc: { issuer: \"http://a.example\", audiences: [a] } } }",
            "1:12: error: issuer 'ci' can't be used: the issuer is not https (http is for loopback addresses alone)"
        ),
        (
            "issuers: { ci: { jwks: { issuer: a, audiences: [a] } } }",
            "1:12: error: issuer 'ci' needs 'jwks.keys'"
        ),
        (
            "issuers: { ci: { jwks: { issuer: a, audiences: [a], keys: none.json } } }",
            "1:12: error: issuer 'ci' names DIR/none.json, which can't be read: No such file or directory"
        ),
        (
            "issuers: { ci: { jwks: { issuer: a, audiences: [a], keys: \"http://a.example/keys\" } } }",
            "1:12: error: issuer 'ci' can't be used: the URL of the keys is not https (http is for loopback addresses alone)"
        ),
        (
            "issuers: { ci: { kubernetes: { issuer: \"https://a\" } } }",
            "1:12: error: issuer 'ci' needs 'kubernetes.audience': without it every pod's own token would do"
        ),
        (
            "issuers: { ci: { kubernetes: { audience: a, keys: \"https://a/keys\" } } }",
            "1:12: error: issuer 'ci' has 'kubernetes.keys' but no 'kubernetes.issuer'"
        ),
        (
            "issuers: { a: { firebase: { project: p } }, b: { firebase: { project: p } } }",
            "1:45: error: 'a' and 'b' are the same issuer"
        ),
        (
            "issuers: { ci: { jwk: { issuer: a } } }",
            "1:18: error: unknown key 'jwk' in 'issuers.ci'; did you mean 'jwks'?"
        ),
        ("tokens: { backup: {} }", "1:11: error: token 'backup' has no 'sha256'"),
        (
            "tokens: { backup: sluice_secret }",
            "1:19: error: expected a mapping such as { sha256: DIGEST }"
        ),
        (
            "tokens: { a: { sha256: \"\(same)\" }, b: { sha256: \"\(same.uppercased())\" } }",
            "1:94: error: 'a' and 'b' are the same token"
        ),
        (
            "tokens: { backup: { sha256: sluice_secret } }",
            "1:29: error: 'sha256': expected 64 hexadecimal digits"
        ),
        (
            "issuers: { cluster: { firebase: { project: p } } }\ncallers: { clster: { requests: 1 } }",
            "2:12: error: no caller is of group 'clster'; did you mean 'cluster'?"
        ),
        (
            "callers: { certificates: { requests: 1 } }",
            "1:12: error: no caller is of group 'certificates': 'listen.https.clients.authorities' is not set"
        ),
        (
            "listen: { https: { clients: { group: mesh } } }\ncallers: { mesh: { requests: 1 } }",
            "2:12: error: no caller is of group 'mesh': 'listen.https.clients.authorities' is not set"
        ),
        (
            "callers: { links: { requests: 1 } }",
            "1:12: error: no caller is of group 'links': 'links.keys' is not set"
        ),
        (
            "callers: { ci: { requests: -1 } }",
            "1:28: error: 'requests': expected a whole number from 0 to 1000000, found '-1'"
        ),
        (
            "callers: { ci: { request: 1 } }",
            "1:18: error: unknown key 'request' in 'callers.ci'; did you mean 'requests'?"
        ),
        (
            "links: { keys: none }",
            "1:16: error: 'links.keys': DIR/none can't be read: No such file or directory"
        ),
        (
            "links: { maximumLifetime: 31d }",
            "1:27: error: 'links.maximumLifetime': expected a duration such as 500ms or 10s, from 1s to 720h, found '31d'"
        ),
        (
            "listen: { https: { clients: { required: true } } }",
            "1:41: error: 'listen.https.clients.required' requires 'listen.https.clients.authorities'"
        ),
        (
            "listen: { https: { clients: { authorities: sluice.yaml } } }",
            "1:44: error: 'listen.https.clients.authorities' requires 'listen.https.address'"
        ),
        (
            "listen: { https: { clients: { uid: san } } }",
            "1:36: error: 'listen.https.clients.uid': expected one of spiffe, dns, subject, found 'san'"
        ),
    ])
    func oneFaultOfCallers(_ line: String, _ expected: String) throws {
        let found = try findings(line + "\n" + ConfigurationFile.minimal)
        #expect(found == ["FILE:" + expected])
    }
}
