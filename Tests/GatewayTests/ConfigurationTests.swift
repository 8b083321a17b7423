import Foundation
import Testing

@testable import Gateway

/// Files, variables and flags that are wrong, each with the exact words that say so.
@Suite struct ConfigurationTests {
    struct Bad: Sendable, CustomTestStringConvertible {
        var yaml: String
        var findings: [String]

        /// `findings` begin after `FILE:` or, for the file as a whole, after `FILE`.
        init(_ yaml: String, _ findings: String...) {
            self.yaml = yaml
            self.findings = findings
        }

        var testDescription: String { yaml }
    }

    private static let fine = "rules: none\nbuckets: { a: { directory: { path: d } } }\n"

    static let notYAML = [
        Bad("", ": error: the file is empty; config/quickstart.yaml is an example"),
        Bad("# nothing\n", ": error: the file is empty; config/quickstart.yaml is an example"),
        Bad("just words", ":1:1: error: the file must be a mapping of keys"),
        Bad("- a\n- b\n", ":1:1: error: the file must be a mapping of keys"),
        Bad("listen: [", ":2:1: error: did not find expected node content"),
        Bad("a: 1\n\tb: 2\n", ":2:1: error: found a tab character that violates indentation"),
        Bad("threads: 1\nthreads: 2\n", ":1:1: error: key given twice: threads"),
        Bad(
            "rules: none\nbuckets:\n  a: { directory: { path: d } }\n  a: { directory: { path: e } }\n",
            ":3:3: error: key given twice: a"),
        Bad("? [a]\n: 1\n" + fine, ":1:3: error: a key must be a string"),
    ]

    static let keys = [
        Bad("thread: 2\n" + fine, ":1:1: error: unknown key 'thread'; did you mean 'threads'?"),
        Bad(
            "listen:\n  htpp: 127.0.0.1:1\n" + fine,
            ":2:3: error: unknown key 'listen.htpp'; did you mean 'http'?"),
        Bad(
            "listen: { https: { adress: 127.0.0.1:1 } }\n" + fine,
            ":1:20: error: unknown key 'listen.https.adress'; did you mean 'address'?",
            ":1:11: error: 'listen.https.address' is missing"),
        Bad(
            "log: { colour: true }\n" + fine,
            ":1:8: error: unknown key 'log.colour'; known here: access, format, level"),
        Bad("bucket: {}\n" + fine, ":1:1: error: unknown key 'bucket'; did you mean 'buckets'?"),
        Bad(
            "rules: none\nbuckets:\n  a:\n    directory: { path: d }\n    path: x\n",
            ":5:5: error: unknown key 'path'; did you mean 'paths'?"),
        Bad(
            "rules: none\nbuckets: { a: { gcs: { bucket: b } } }\n",
            ":2:17: error: 'gcs' buckets are not served by this version; 'directory' is",
            ":2:12: error: bucket 'a' has no store: 'directory: { path: … }' is missing"),
        // Everything is reported, not only the first.
        Bad(
            "thread: 2\nlimits: { conections: 1 }\n" + fine,
            ":1:1: error: unknown key 'thread'; did you mean 'threads'?",
            ":2:11: error: unknown key 'limits.conections'; did you mean 'connections'?"),
    ]

    static let types = [
        Bad("threads: [1]\n" + fine, ":1:10: error: 'threads' is a list, and must be 0 to 256"),
        Bad("threads: {}\n" + fine, ":1:10: error: 'threads' is a mapping, and must be 0 to 256"),
        Bad(
            "threads: two\n" + fine, ":1:10: error: 'threads' is 'two', and must be a whole number"),
        Bad(
            "threads: 1.5\n" + fine, ":1:10: error: 'threads' is '1.5', and must be a whole number"),
        Bad("threads:\n" + fine, ":1:9: error: 'threads' is '', and must be a whole number"),
        Bad("threads: 257\n" + fine, ":1:10: error: 'threads' is 257, and may be 0 to 256"),
        Bad("listen: 8080\n" + fine, ":1:9: error: 'listen' must be a mapping of keys"),
        Bad("listen: [a]\n" + fine, ":1:9: error: 'listen' must be a mapping of keys"),
        Bad(
            "listen: { http: { port: 1 } }\n" + fine,
            ":1:17: error: 'listen.http' is a mapping, and must be host:port or null"),
        Bad(
            "log: { access: yes }\n" + fine,
            ":1:16: error: 'log.access' is 'yes', and may be true or false"),
        Bad(
            "log: { format: xml }\n" + fine,
            ":1:16: error: 'log.format' is 'xml', and may be one of auto, text, json"),
        Bad(
            "limits: { headerBytes: 32kb }\n" + fine,
            ":1:24: error: 'limits.headerBytes' is '32kb', and must be a number of bytes such as 4096, 32KiB or 8MiB"
        ),
        Bad(
            "limits: { headerBytes: 1 }\n" + fine,
            ":1:24: error: 'limits.headerBytes' is 1, and may be 1KiB to 1MiB"),
        Bad(
            "limits: { idleTimeout: 10 }\n" + fine,
            ":1:24: error: 'limits.idleTimeout' is '10', and must be a duration such as 500ms, 10s or 2m"
        ),
        Bad(
            "limits: { idleTimeout: 0s }\n" + fine,
            ":1:24: error: 'limits.idleTimeout' is 0s, and may be 10ms to 24h"),
        Bad(
            "cors: { origins: https://app.example }\n" + fine,
            ":1:18: error: 'cors.origins' must be a list of origins such as https://app.example, or '*'"
        ),
        Bad(
            "cors: { origins: [null] }\n" + fine,
            ":1:19: error: 'cors.origins' must be a list of origins such as https://app.example, or '*'"
        ),
        Bad(
            "cors: { origins: [app.example] }\n" + fine,
            ":1:18: error: 'cors.origins' has 'app.example', and must be a list of origins such as https://app.example, or '*'"
        ),
        Bad(
            "cors: { origins: ['https://app.example/'] }\n" + fine,
            ":1:18: error: 'cors.origins' has 'https://app.example/', and must be a list of origins such as https://app.example, or '*'"
        ),
        Bad(
            "cors: { exposedHeaders: [\"a\\nb\"] }\n" + fine,
            ":1:25: error: 'cors.exposedHeaders' has 'a\nb', and must be a list of field names, or '*'"
        ),
        Bad("rules: none\nbuckets: []\n", ":2:10: error: 'buckets' must be a mapping of names"),
        Bad(
            "rules: none\nbuckets: { a: }\n",
            ":2:15: error: bucket 'a' must be a mapping of keys"),
        Bad(
            "rules: none\nbuckets: { a: { directory: d } }\n",
            ":2:28: error: 'directory' must be a mapping of keys",
            ":2:12: error: bucket 'a' has no store: 'directory: { path: … }' is missing"),
        Bad(
            "rules: none\nbuckets: { A: { directory: { path: d } } }\n",
            ":2:12: error: 'A' is no bucket name: 1 to 222 of a-z, 0-9, '-', '_' and '.', beginning and ending with a letter or digit"
        ),
    ]

    static let wholes = [
        Bad("rules: none\n", ": error: no bucket is configured: 'buckets' is missing or empty"),
        Bad(
            "rules: none\nbuckets:\n",
            ": error: no bucket is configured: 'buckets' is missing or empty"
        ),
        Bad(
            "buckets: { a: { directory: { path: d } } }\n",
            ":1:12: error: bucket 'a' has no rules, so nothing may be served from it. 'rules: none' serves it, open to everybody who can reach the listeners: reading, writing and deleting"
        ),
        Bad(
            "rules: storage.rules\nbuckets: { a: { directory: { path: d } } }\n",
            ":1:8: error: 'rules' is 'storage.rules': rule files are not supported by this version, and 'none' is the only value"
        ),
        Bad(
            "rules: none\nbuckets: { a: { rules: a.rules, directory: { path: d } } }\n",
            ":2:24: error: 'rules' is 'a.rules': rule files are not supported by this version, and 'none' is the only value"
        ),
        Bad(
            "listen: { http: null }\n" + fine,
            ":1:1: error: neither 'listen.http' nor 'listen.https.address' is set: nothing would be served"
        ),
        Bad(
            "listen: { http: 8080 }\n" + fine,
            ":1:17: error: 'listen.http' is '8080', and must be host:port, such as 127.0.0.1:8080"),
        Bad(
            "listen: { http: 127.0.0.1:65536 }\n" + fine,
            ":1:17: error: 'listen.http' is '127.0.0.1:65536', and must be host:port, such as 127.0.0.1:8080"
        ),
        Bad(
            "listen: { http: 127.0.0.1:9090 }\n" + fine,
            ": error: 'listen.operator' and 'listen.http' are the same address, 127.0.0.1:9090"),
        Bad(
            "listen: { https: { address: 127.0.0.1:1 } }\n" + fine,
            ":1:11: error: 'listen.https.certificate' is missing; 'self-signed' makes a throw-away one"
        ),
        Bad(
            "listen: { https: { address: 127.0.0.1:1, certificate: c } }\n" + fine,
            ":1:11: error: 'listen.https.key' is missing"),
        Bad(
            "listen: { https: { address: 127.0.0.1:1, certificate: self-signed, key: k } }\n"
                + fine,
            ":1:11: error: 'listen.https.key' has no use with a self-signed certificate"),
        Bad(
            "limits: { initialWindow: 2MiB }\n" + fine,
            ":1:26: error: 'limits.initialWindow' is larger than 'limits.maximumWindow'"),
        Bad(
            "rules: none\nbuckets:\n  a: { directory: { path: d } }\n  b: { directory: { path: ./d/ } }\n",
            ":4:3: error: buckets 'b' and 'a' have the same directory, DIR/d"),
        Bad(
            "rules: none\nbuckets: { a: { directory: { path: d }, paths: { denied: [/x] } } }\n",
            ":2:12: error: bucket 'a': pattern '/x': it has an empty segment, which no name has; begin and end without '/'"
        ),
    ]

    @Test(arguments: notYAML + keys + types + wholes)
    func refusesWithExactWords(_ bad: Bad) throws {
        let folder = try Folder()
        let file = try folder.write(bad.yaml)
        let expected = bad.findings.map {
            file + $0.replacingOccurrences(of: "DIR", with: folder.path)
        }
        #expect(findings(file) == expected)
    }

    @Test func refusesCertificatesThatCannotBeRead() throws {
        let folder = try Folder()
        let file = try folder.write(
            "listen:\n  https:\n    address: 127.0.0.1:1\n    certificate: c.pem\n    key: ../k.pem\n"
                + Self.fine)
        let parent = URL(filePath: folder.path).deletingLastPathComponent().path
        #expect(
            findings(file) == [
                "\(file):4:18: error: \(folder.path)/c.pem can't be read",
                "\(file):5:10: error: \(parent)/k.pem can't be read",
            ])
    }

    @Test func refusesFilesThatCannotBeRead() throws {
        let folder = try Folder()
        #expect(
            findings(folder.path + "/none.yaml") == [
                "\(folder.path)/none.yaml: error: there is no such file"
            ])
        #expect(findings(folder.path) == ["\(folder.path): error: is a directory"])
        let file = try folder.write("")
        try Data([0x61, 0x3a, 0xff]).write(to: URL(filePath: file))
        #expect(findings(file) == ["\(file): error: is not valid UTF-8"])
    }

    // MARK: Overrides

    @Test func environmentOverridesTheFileAndFlagsBoth() throws {
        let folder = try Folder()
        defer { withExtendedLifetime(folder) {} }
        let file = try folder.write("threads: 1\nlog: { level: error }\n" + Self.fine)
        let configuration = try Configuration.load(
            file: file,
            environment: [
                "SLUICE_THREADS": "2", "SLUICE_LISTEN_HTTPS_ADDRESS": "127.0.0.1:8443",
                "SLUICE_LISTEN_HTTPS_CERTIFICATE": "self-signed",
                "SLUICE_CORS_ORIGINS": "*, http://a",
                "SLUICE_CONFIG": "ignored", "OTHER": "x",
            ],
            flags: [
                .init(path: "threads", value: "3", source: "--threads"),
                .init(path: "listen.operator", value: "null", source: "--set listen.operator"),
            ])
        #expect(configuration.threads == 3)
        #expect(configuration.logLevel == "error")
        #expect(configuration.https.address == "127.0.0.1:8443")
        #expect(configuration.corsOrigins == ["*", "http://a"])
        #expect(configuration.operatorAddress == nil)
        #expect(configuration.overrides["threads"] == "--threads")
        #expect(configuration.yaml().contains("threads: 3  # from --threads\n"))
        #expect(
            configuration.yaml().contains(
                "address: \"127.0.0.1:8443\"  # from SLUICE_LISTEN_HTTPS_ADDRESS\n"))
    }

    @Test func refusesOverridesAtTheirSource() throws {
        let folder = try Folder()
        defer { withExtendedLifetime(folder) {} }
        let file = try folder.write(Self.fine)
        #expect(
            findings(
                file,
                environment: [
                    "SLUICE_THREDS": "1", "SLUICE_THREADS": "many",
                    "SLUICE_LIMITS_INITIALWINDOW": "16MiB",
                ],
                flags: [.init(path: "log.levl", value: "info", source: "--set log.levl")])
                == [
                    "SLUICE_THREADS: error: 'threads' is 'many', and must be a whole number",
                    "SLUICE_THREDS: error: unknown key 'SLUICE_THREDS'; did you mean 'SLUICE_THREADS'?",
                    "--set log.levl: error: unknown key 'log.levl'; did you mean 'log.level'?",
                    "SLUICE_LIMITS_INITIALWINDOW: error: 'limits.initialWindow' is larger than 'limits.maximumWindow'",
                ])
    }

    /// They appear in every container beside a Service named `sluice`.
    @Test func ignoresWhatKubernetesSetsForAService() throws {
        let folder = try Folder()
        defer { withExtendedLifetime(folder) {} }
        let file = try folder.write(Self.fine)
        #expect(
            findings(
                file,
                environment: [
                    "SLUICE_SERVICE_HOST": "10.0.0.1", "SLUICE_SERVICE_PORT_HTTP": "80",
                    "SLUICE_PORT": "tcp://10.0.0.1:80", "SLUICE_PORT_80_TCP_ADDR": "10.0.0.1",
                ]) == [])
        let names = Configuration.settings.map { Configuration.variable($0.path) }
        #expect(Set(names).count == names.count)
        #expect(!names.contains { $0.hasPrefix("SLUICE_PORT") || $0.hasPrefix("SLUICE_SERVICE") })
    }

    @Test func aNullAddressSwitchesTLSOff() throws {
        let https = "listen: { https: { address: 127.0.0.1:1, certificate: c, key: k } }\n"
        let folder = try Folder()
        defer { withExtendedLifetime(folder) {} }
        let file = try folder.write(https + Self.fine)
        let off = Configuration.Override(
            path: "listen.https.address", value: "null", source: "--set listen.https.address")
        #expect(findings(file, flags: [off]) == [])
    }

    // MARK: Paths

    @Test func pathsAreRelativeToTheFile() throws {
        let folder = try Folder()
        let file = try folder.write(
            "rules: none\nbuckets:\n  a: { directory: { path: ../x } }\n  b: { directory: { path: /y/./z/ } }\n"
        )
        let parent = URL(filePath: folder.path).deletingLastPathComponent().path
        let buckets = try Configuration.load(file: file).buckets
        #expect(buckets.map(\.directory) == ["\(parent)/x", "/y/z"])
    }

    private func findings(
        _ file: String, environment: [String: String] = [:], flags: [Configuration.Override] = []
    ) -> [String] {
        do throws(ConfigurationError) {
            _ = try Configuration.load(file: file, environment: environment, flags: flags)
            return []
        } catch {
            return error.findings
        }
    }
}

/// A folder that goes with the test.
final class Folder {
    let path: String

    init() throws {
        let url = FileManager.default.temporaryDirectory.appending(path: "sluice-\(UUID())")
        try FileManager.default.createDirectory(at: url, withIntermediateDirectories: true)
        path = url.standardizedFileURL.path
    }

    deinit { try? FileManager.default.removeItem(atPath: path) }

    /// Writes `sluice.yaml`; returns its path.
    func write(_ text: String) throws -> String {
        let file = path + "/sluice.yaml"
        try text.write(toFile: file, atomically: false, encoding: .utf8)
        return file
    }
}
