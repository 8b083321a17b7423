import Foundation
import HTTPServer
import SecurityRules
import Testing
import Wire

@testable import Configuration

/// What a right configuration comes to. ``ConfigurationErrorTests`` has the wrong ones.
@Suite struct ConfigurationTests {
    private static let root = URL(fileURLWithPath: #filePath).deletingLastPathComponent()
        .deletingLastPathComponent().deletingLastPathComponent()

    @Test func everythingInConfigLoads() throws {
        let directory = ConfigurationTests.root.appendingPathComponent("config")
        let names = try FileManager.default.contentsOfDirectory(atPath: directory.path)
        // Suites of rules are run by the tests of the command line.
        let files = names.filter { $0.hasSuffix(".yaml") && !$0.hasSuffix(".suite.yaml") }
        #expect(files.contains("quickstart.yaml") && files.contains("reference.yaml"))
        for file in files { _ = try Configuration.load(file: "\(directory.path)/\(file)") }
    }

    @Test func theReferenceMatchesTheTable() throws {
        let file = ConfigurationTests.root.appendingPathComponent("config/reference.yaml")
        let text = try String(contentsOf: file, encoding: .utf8)
        #expect(
            text == Configuration.reference(),
            "run: sluice check --reference > config/reference.yaml")
        for setting in Configuration.settings {
            let key = setting.path.split(separator: ".").last!
            #expect(text.contains("\(key): \(setting.print(Configuration()))\n"), "\(setting.path)")
        }
    }

    @Test func theReferenceChangesNoDefault() throws {
        let file = ConfigurationTests.root.appendingPathComponent("config/reference.yaml")
        let loaded = try Configuration.load(file: file.path)
        for setting in Configuration.settings {
            #expect(setting.print(loaded) == setting.print(Configuration()), "\(setting.path)")
        }
    }

    @Test func everyLimitOfTheServerIsAKey() {
        let limits = Mirror(reflecting: ServerLimits()).children.compactMap(\.label)
        let keys = Configuration.settings.map(\.path).filter { $0.hasPrefix("limits.") }
        let upstream = Mirror(reflecting: Configuration().upstream).children.compactMap(\.label)
        let others = [
            "name", "origin", "certificateAuthorities", "revocations", "clientCertificate",
            "clientKey", "secureTransport", "passesTrace",
        ]
        let ofUpstreams = Configuration.settings.map(\.path).filter { $0.hasPrefix("upstream.") }
        #expect(
            Set(upstream).subtracting(others) == Set(ofUpstreams.map { String($0.dropFirst(9)) }))
        // The delay of the drain is the program's, not the server's.
        #expect(Set(limits.map { "limits.\($0)" } + ["limits.drainDelay"]) == Set(keys))
        #expect(Set(Configuration.settings.map(\.path)).count == Configuration.settings.count)
    }

    @Test func theQuickstartServesOneBucketOnLoopback() throws {
        let root = ConfigurationTests.root
        let file = root.appendingPathComponent("config/quickstart.yaml").path
        let configuration = try Configuration.load(file: file)
        #expect(configuration.http == "127.0.0.1:8080")
        #expect(configuration.operatorAddress == "127.0.0.1:9090")
        #expect(configuration.buckets.map(\.name) == ["photos"])
        #expect(configuration.buckets[0].directory == root.path + "/data/photos")
        #expect(configuration.loopCount >= 1)
    }

    @Test func aFileSetsEverything() throws {
        let file = try ConfigurationFile(
            """
            listen:
              http: null
              https: { address: "[::1]:8443", certificate: self-signed }
              operator: 127.0.0.1:9090
            threads: 2
            log: { level: debug, format: json, access: false }
            cors: { origins: [https://app.example], maximumAge: 10m }
            limits: { idleTimeout: 1500ms, receiveBudget: 16MiB, headerBytes: 2048 }
            buckets:
              b.two:
                rules: none
                directory: { path: /srv/two }
              one:
                rules: none
                directory: { path: data/../one }
                maximumObjectSize: 5GiB
                paths: { allowed: ["images/**"], denied: [], maximumDepth: 3, refuseDiscouraged: true }
            """)
        let configuration = try file.load()
        #expect(configuration.http == nil)
        #expect(configuration.https.address == "[::1]:8443")
        #expect(configuration.https.certificate == Configuration.HTTPS.selfSigned)
        #expect(configuration.loopCount == 2)
        #expect(configuration.logLevel == "debug" && configuration.logFormat == "json")
        #expect(!configuration.logsAccess)
        #expect(configuration.corsOrigins == ["https://app.example"])
        #expect(configuration.corsMaximumAge == 600_000_000_000)
        #expect(configuration.limits.idleTimeout == 1_500_000_000)
        #expect(configuration.limits.receiveBudget == 16 << 20)
        #expect(configuration.limits.headerBytes == 2048)
        #expect(configuration.buckets.map(\.name) == ["b.two", "one"])
        let one = configuration.buckets[1]
        #expect(one.directory == file.directory + "/one")
        #expect(one.maximumObjectSize == 5 << 30)
        #expect(
            one.allowedPaths == ["images/**"] && one.maximumDepth == 3 && one.rejectsDiscouraged)
    }

    @Test func flagsOverrideVariablesAndVariablesTheFile() throws {
        let file = try ConfigurationFile("threads: 1\nfileThreads: 1\n" + ConfigurationFile.minimal)
        let configuration = try Configuration.load(
            file: file.path,
            environment: [
                "SLUICE_THREADS": "2", "SLUICE_FILETHREADS": "2", "SLUICE_LIMITS_IDLETIMEOUT": "5s",
                "SLUICE_BUCKETS_PHOTOS_DIRECTORY_PATH": "elsewhere",
                "SLUICE_CORS_ORIGINS": "https://a.example , https://b.example",
                "SLUICE_LISTEN_OPERATOR": "null", "SLUICE_LOG_LEVEL": "", "THREADS": "x",
            ],
            flags: [
                .init(path: "threads", value: "3", source: "--threads"),
                .init(path: "buckets.my.own.directory.path", value: "/own", source: "--set"),
            ], directory: "/srv")
        #expect(configuration.threads == 3)
        #expect(configuration.fileThreads == 2)
        #expect(configuration.limits.idleTimeout == 5_000_000_000)
        #expect(configuration.corsOrigins == ["https://a.example", "https://b.example"])
        #expect(configuration.operatorAddress == nil)
        #expect(configuration.logLevel == "info")
        #expect(configuration.buckets.map(\.name) == ["my.own", "photos"])
        #expect(configuration.buckets.map(\.directory) == ["/own", "/srv/elsewhere"])
        let yaml = configuration.yaml()
        #expect(yaml.contains("\nthreads: 3  # from --threads\n"))
        #expect(yaml.contains("idleTimeout: 5s  # from SLUICE_LIMITS_IDLETIMEOUT\n"))
        #expect(
            yaml.contains("path: /srv/elsewhere  # from SLUICE_BUCKETS_PHOTOS_DIRECTORY_PATH\n"))
        #expect(!yaml.contains("log:  #") && yaml.contains("level: info\n"))
    }

    /// Kubernetes sets these in every pod beside a service called `sluice`, and a user for the client's verbs.
    @Test func otherVariablesAreNotOverrides() throws {
        let environment: [BytewiseString: String] = [
            "SLUICE_PORT": "tcp://10.0.0.1:80", "SLUICE_PORT_80_TCP": "tcp://10.0.0.1:80",
            "SLUICE_PORT_80_TCP_ADDR": "10.0.0.1", "SLUICE_SERVICE_HOST": "10.0.0.1",
            "SLUICE_SERVICE_PORT": "80", "SLUICE_SERVICE_PORT_HTTP": "80",
            "SLUICE_CONFIG": "sluice.yaml", "SLUICE_URL": "http://127.0.0.1:8080",
            "SLUICE_BUCKET": "photos", "SLUICE_TOKEN": "t", "SLUICE_TOKEN_FILE": "/token",
            "SLUICE_OTHER_TOKEN": "t", "SLUICE_OTHER_TOKEN_FILE": "/token",
        ]
        let file = try ConfigurationFile(ConfigurationFile.minimal)
        _ = try Configuration.load(file: file.path, environment: environment)
    }

    @Test(arguments: [
        "10.0.0.0/8,unix", "10.0.0.0/8 , unix", "[10.0.0.0/8, unix]", "['10.0.0.0/8', unix]",
    ])
    func aFlagSetsAListAsItIsPrinted(_ text: String) throws {
        let file = try ConfigurationFile(ConfigurationFile.minimal)
        let flag = Configuration.Override(
            path: "listen.trustedProxies", value: text, source: "--set")
        let loaded = try Configuration.load(file: file.path, flags: [flag])
        #expect(loaded.trustedProxies == ["10.0.0.0/8", "unix"])
    }

    @Test func theOutputLoadsAsTheSameConfiguration() throws {
        let file = try ConfigurationFile(
            """
            rules: none
            limits: { idleTimeout: 90s, receiveBudget: 1000000 }
            cors: { origins: ["*"] }
            buckets:
              1.5: { directory: { path: "odd: #'\\" name\\\\" } }
              photos: { directory: { path: "-1" }, paths: { denied: ["**/*.tmp", "a b"] } }
            """)
        let first = try file.load()
        #expect(first.buckets[0].directory == file.directory + "/odd: #'\" name\\")
        let again = try ConfigurationFile(first.yaml()).load()
        #expect(again.yaml() == first.yaml())
        #expect(again.buckets == first.buckets && again.limits == first.limits)
    }

    @Test(
        arguments: [
            ("0", 0), ("1", 1), ("4096", 4096), ("32KiB", 32768), ("8MiB", 8 << 20), ("7B", 7),
            ("18446744073709551615", UInt64.max), ("16777215TiB", 16_777_215 << 40),
        ] as [(String, UInt64)])
    func bytes(_ text: String, _ value: UInt64) {
        #expect(Units.bytes.value(text) == value)
        #expect(Units.bytes.value(Units.bytes.text(value)) == value)
    }

    @Test(arguments: [
        "", "KiB", "1 KiB", "1kb", "1K", "-1", "1.5MiB", "16777216TiB", "１KiB", "1KiBx",
    ])
    func invalidBytes(_ text: String) {
        #expect(Units.bytes.value(text) == nil)
    }

    @Test(
        arguments: [
            ("500ms", 500_000_000), ("10s", 10_000_000_000), ("2m", 120_000_000_000),
            ("24h", 86_400_000_000_000), ("0s", 0), ("0", 0), ("1500ms", 1_500_000_000),
        ] as [(String, UInt64)])
    func durations(_ text: String, _ value: UInt64) {
        #expect(Units.durations.value(text) == value)
        #expect(Units.durations.value(Units.durations.text(value)) == value)
    }

    @Test(arguments: ["", "10", "s", "1d", "1.5s", "-1s", "10 s", "1m30s"])
    func invalidDurations(_ text: String) {
        #expect(Units.durations.value(text) == nil)
    }

    @Test(arguments: [
        ("127.0.0.1:80", "127.0.0.1:80", true), ("127.0.0.1:80", "0.0.0.0:80", true),
        ("[::]:80", "10.0.0.1:80", true), ("localhost:80", "127.0.0.1:80", true),
        ("127.0.0.1:80", "127.0.0.1:81", false), ("127.0.0.1:80", "127.0.0.2:80", false),
        ("127.0.0.1:0", "127.0.0.1:0", false),
    ])
    func overlaps(_ first: String, _ second: String, _ expected: Bool) throws {
        let (a, b) = (try #require(ListenAddress(first)), try #require(ListenAddress(second)))
        #expect(a.overlaps(b) == expected && b.overlaps(a) == expected)
    }

    @Test(arguments: [
        "", ":80", "host", "host:", "host:65536", "::1:80", "[]:80", "[a]:80", "a b:80", "a/b:80",
        "h:+1",
    ])
    func invalidAddresses(_ text: String) {
        #expect(ListenAddress(text) == nil)
    }

    @Test func uploadsWithoutALimitAreFoundUnlessTheBucketHasOne() throws {
        let rules = try Ruleset.load(
            source: """
                rules_version = '2';
                service firebase.storage { match /b/photos/o/{name=**} {
                  allow create: if request.resource.size < 5;
                  allow write: if request.resource.contentType == 'a/b';
                } }
                """)
        var bucket = Configuration.Bucket(name: "photos")
        #expect(bucket.findings(in: rules).map(\.position.line) == [4])
        bucket.maximumObjectSize = 1 << 20
        #expect(bucket.findings(in: rules).isEmpty)
    }

    @Test func nearestSpelling() {
        let keys = ["threads", "rules", "listen", "buckets"]
        #expect(Spelling.nearest(to: "thraeds", among: keys) == "threads")
        #expect(Spelling.nearest(to: "Rule", among: keys) == "rules")
        #expect(Spelling.nearest(to: "zzz", among: keys) == nil)
    }
}

/// A configuration file in a directory of its own, removed with it.
final class ConfigurationFile {
    /// The least that can be served.
    static let minimal = "rules: none\nbuckets: { photos: { directory: { path: photos } } }\n"
    let directory: String
    var path: String { directory + "/sluice.yaml" }

    convenience init(_ text: String) throws { try self.init(bytes: Array(text.utf8)) }

    init(bytes: [UInt8]) throws {
        directory = NSTemporaryDirectory() + "sluice-\(UUID().uuidString)"
        try FileManager.default.createDirectory(
            atPath: directory, withIntermediateDirectories: false)
        try Data(bytes).write(to: URL(fileURLWithPath: path))
    }

    func load() throws(ConfigurationError) -> Configuration { try Configuration.load(file: path) }

    deinit { try? FileManager.default.removeItem(atPath: directory) }
}
