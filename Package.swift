// swift-tools-version: 6.2
import PackageDescription

/// Every Swift target: language mode 6 and no warning let through.
let strict: [SwiftSetting] = [
    .swiftLanguageMode(.v6), .treatAllWarnings(as: .error),
    .enableUpcomingFeature("NonisolatedNonsendingByDefault"),
]

/// Test code stays unoptimised in a release build, which tests what is shipped and not itself. Builds in half the time.
let tests = strict + [.unsafeFlags(["-Onone"], .when(configuration: .release))]

/// What the program says of its build: `make dist` sets these variables. A build without them works too.
let stamp: [CSetting] = ["SLUICE_BUILD_COMMIT", "SLUICE_BUILD_DATE"].compactMap { name in
    Context.environment[name].map { .define(name, to: "\"\($0)\"") }
}

/// RE2 as the linker knows it. `make dist` sets the static library, because each release of Debian has another shared one.
let re2 = Context.environment["SLUICE_RE2"] ?? "re2"

let package = Package(
    name: "sluice",
    platforms: [.macOS(.v15), .iOS(.v18)],
    products: [
        .executable(name: "sluice", targets: ["CLI"]),
        .executable(name: "sluice-client", targets: ["Client"]),
        .library(name: "SecurityRules", targets: ["SecurityRules"]),
        .library(name: "SluiceStorage", targets: ["SluiceStorage"]),
    ],
    dependencies: [
        .package(url: "https://github.com/apple/swift-argument-parser", from: "1.8.2"),
        .package(url: "https://github.com/apple/swift-log", from: "1.16.2"),
        .package(url: "https://github.com/jpsim/Yams", from: "6.2.2"),
    ],
    targets: [
        .systemLibrary(name: "CLinux"),
        .systemLibrary(
            name: "CNghttp2", pkgConfig: "libnghttp2", providers: [.apt(["libnghttp2-dev"])]),
        .systemLibrary(
            name: "COpenSSL", pkgConfig: "openssl", providers: [.apt(["libssl-dev"])]),
        .systemLibrary(
            name: "CSQLite", pkgConfig: "sqlite3", providers: [.apt(["libsqlite3-dev"])]),
        .systemLibrary(
            name: "CYAML", pkgConfig: "yaml-0.1", providers: [.apt(["libyaml-dev"])]),
        .systemLibrary(name: "CCurl", providers: [.apt(["libcurl4-openssl-dev"])]),
        .systemLibrary(
            name: "CExpat", pkgConfig: "expat", providers: [.apt(["libexpat1-dev"])]),
        .target(name: "Wire", exclude: ["MediaTypeTable.awk"], swiftSettings: strict),
        .target(name: "XML", dependencies: ["Wire", "CExpat"], swiftSettings: strict),
        .target(name: "YAML", dependencies: ["Wire", "CYAML"], swiftSettings: strict),
        .target(name: "System", dependencies: ["Wire", "CLinux"], swiftSettings: strict),
        .target(name: "COpenSSLSetup", dependencies: ["COpenSSL"]),
        .target(
            name: "OpenSSL", dependencies: ["Wire", "COpenSSL", "COpenSSLSetup"],
            swiftSettings: strict),
        .target(name: "CRE2", linkerSettings: [.linkedLibrary(re2)]),
        .target(
            name: "SecurityRules", dependencies: ["Wire", "CRE2"],
            swiftSettings: strict + [.strictMemorySafety()]),
        .target(
            name: "HTTPServer", dependencies: ["System", "OpenSSL", "Wire", "CNghttp2"],
            swiftSettings: strict),
        .target(
            name: "HTTPClient", dependencies: ["System", "OpenSSL", "Wire", "CCurl", "CNghttp2"],
            swiftSettings: strict),
        .target(
            name: "Identity",
            dependencies: ["System", "OpenSSL", "Wire", "HTTPClient"],
            swiftSettings: strict),
        .target(
            name: "Credentials",
            dependencies: ["System", "OpenSSL", "Wire", "XML", "HTTPClient"],
            swiftSettings: strict),
        .target(
            name: "Buckets",
            dependencies: [
                "System", "OpenSSL", "Wire", "XML", "HTTPClient", "Credentials", "CSQLite",
            ],
            swiftSettings: strict),
        .target(name: "CBuild", cSettings: stamp),
        .target(
            name: "Telemetry",
            dependencies: [
                "System", "Wire", "CBuild",
                .product(name: "Logging", package: "swift-log"),
            ],
            swiftSettings: strict),
        .target(
            name: "Gateway",
            dependencies: [
                "HTTPServer", "HTTPClient", "Buckets", "Credentials", "Identity", "SecurityRules", "XML",
                "Telemetry", "System", "OpenSSL", "Wire",
                .product(name: "Logging", package: "swift-log"),
            ],
            resources: [.embedInCode("NativeAPI/openapi.yaml")], swiftSettings: strict),
        .target(
            name: "Configuration",
            dependencies: [
                "Gateway", "HTTPServer", "HTTPClient", "Buckets", "Identity", "SecurityRules",
                "System", "Wire", "YAML",
            ],
            swiftSettings: strict),
        .target(
            name: "RulesTesting", dependencies: ["SecurityRules", "Wire", "YAML"],
            swiftSettings: strict),
        .target(name: "CSolver"),
        .target(
            name: "RulesAnalysis", dependencies: ["SecurityRules", "Wire", "CSolver"],
            swiftSettings: strict),
        .target(
            name: "Console",
            dependencies: [
                "Gateway", "HTTPServer", "HTTPClient", "RulesTesting", "SecurityRules", "Telemetry", "System",
                "OpenSSL", "Wire",
            ],
            resources: [
                "index.html", "style.css", "icon.svg", "app.js", "elements.js", "explanation.js", "editor.js",
                "live.js",
                "objects.js", "requests.js", "rules.js", "state.js", "transfers.js", "uploads.js",
            ].map { .embedInCode("Web/\($0)") }, swiftSettings: strict),
        .target(
            name: "SluiceStorage",
            dependencies: [
                "Wire",
                .target(name: "System", condition: .when(platforms: [.linux])),
                .target(name: "OpenSSL", condition: .when(platforms: [.linux])),
                .target(name: "HTTPClient", condition: .when(platforms: [.linux])),
            ],
            swiftSettings: strict),
        .target(
            name: "ClientCommands",
            dependencies: [
                "Wire", .product(name: "ArgumentParser", package: "swift-argument-parser"),
            ],
            swiftSettings: strict),
        .executableTarget(
            name: "Client",
            dependencies: [
                "ClientCommands", "SluiceStorage", "Wire",
                .product(name: "ArgumentParser", package: "swift-argument-parser"),
            ],
            swiftSettings: strict),
        .executableTarget(
            name: "CLI",
            dependencies: [
                "Configuration", "Console", "Gateway", "HTTPServer", "HTTPClient", "Buckets", "Credentials",
                "System", "Identity", "OpenSSL", "SecurityRules", "RulesTesting", "RulesAnalysis", "Telemetry",
                "ClientCommands", "Wire",
                .product(name: "ArgumentParser", package: "swift-argument-parser"),
                .product(name: "Logging", package: "swift-log"),
            ],
            swiftSettings: strict,
            // Resolve all symbols at the start, and make their table read-only (full RELRO).
            linkerSettings: [
                .unsafeFlags(
                    ["-Xlinker", "-z", "-Xlinker", "now", "-Xlinker", "--build-id=sha1"],
                    .when(configuration: .release))
            ]),
        .executableTarget(
            name: "ExampleUpload", dependencies: ["SluiceStorage"], path: "Examples/Upload",
            swiftSettings: strict),
        .executableTarget(
            name: "ExampleDownload", dependencies: ["SluiceStorage"], path: "Examples/Download",
            swiftSettings: strict),
        .executableTarget(
            name: "BucketBenchmark", dependencies: ["Buckets", "System"],
            path: "Benchmarks/Buckets", swiftSettings: strict),
        .target(name: "CAllocations", path: "Benchmarks/CAllocations"),
        .executableTarget(
            name: "RulesBenchmark", dependencies: ["SecurityRules", "CAllocations"],
            path: "Benchmarks/Rules", swiftSettings: strict),
        .executableTarget(
            name: "AnalysisBenchmark", dependencies: ["RulesAnalysis", "SecurityRules", "Wire"],
            path: "Benchmarks/Analysis", swiftSettings: strict),
        .executableTarget(
            name: "IdentityBenchmark",
            dependencies: ["Identity", "OpenSSL", "Wire", "System", "CAllocations", "COpenSSL"],
            path: "Benchmarks/Identity", swiftSettings: strict),
        .testTarget(name: "WireTests", dependencies: ["Wire"], swiftSettings: tests),
        .testTarget(name: "SystemTests", dependencies: ["System"], swiftSettings: tests),
        .systemLibrary(
            name: "CHTTPParser", path: "Tests/CHTTPParser",
            providers: [.apt(["libhttp-parser-dev"])]),
        .target(
            name: "TestSupport", dependencies: ["System", "HTTPClient"],
            path: "Tests/TestSupport", swiftSettings: tests),
        .testTarget(
            name: "HTTPServerTests",
            dependencies: ["TestSupport", "HTTPServer", "System", "Wire", "CHTTPParser"],
            swiftSettings: tests),
        .testTarget(
            name: "HTTPClientTests",
            dependencies: [
                "TestSupport", "HTTPClient", "System", "Wire", "CNghttp2", "COpenSSL",
                "COpenSSLSetup", "CHTTPParser",
            ],
            swiftSettings: tests),
        .testTarget(
            name: "CredentialsTests",
            dependencies: [
                "TestSupport", "Credentials", "HTTPClient", "System", "OpenSSL", "Wire",
            ],
            exclude: ["Fixtures"], swiftSettings: tests),
        .target(
            name: "BucketConformance",
            dependencies: ["Buckets", "HTTPClient", "System", "OpenSSL", "Wire"],
            path: "Tests/BucketConformance", swiftSettings: tests),
        .executableTarget(
            name: "BucketStorm", dependencies: ["Buckets", "BucketConformance", "System"],
            path: "Tests/BucketStorm", swiftSettings: tests),
        .testTarget(
            name: "BucketsTests",
            dependencies: [
                "TestSupport", "Buckets", "BucketConformance", "BucketStorm", "Credentials",
                "HTTPClient", "System", "OpenSSL", "Wire", "XML",
            ],
            swiftSettings: tests),
        .testTarget(
            name: "IdentityTests",
            dependencies: [
                "TestSupport", "Identity", "HTTPClient", "System", "OpenSSL", "Wire", "COpenSSL",
            ],
            swiftSettings: tests),
        .testTarget(
            name: "GatewayTests",
            dependencies: [
                "TestSupport", "BucketConformance", "Gateway", "SecurityRules", "HTTPServer",
                "HTTPClient", "Identity", "Buckets", "System", "OpenSSL", "Telemetry", "Wire",
                .product(name: "Logging", package: "swift-log"),
            ],
            swiftSettings: tests),
        .testTarget(
            name: "ConsoleTests",
            dependencies: [
                "Console", "Gateway", "RulesTesting", "SecurityRules", "HTTPServer", "System", "OpenSSL", "Wire",
            ],
            swiftSettings: tests),
        .testTarget(
            name: "ConfigurationTests",
            dependencies: [
                "Configuration", "Gateway", "HTTPServer", "Identity", "SecurityRules", "Wire",
                .product(name: "Yams", package: "Yams"),
            ],
            swiftSettings: tests),
        .testTarget(
            name: "SecurityRulesTests", dependencies: ["SecurityRules"], swiftSettings: tests),
        .testTarget(
            name: "RulesTestingTests",
            dependencies: ["RulesTesting", "SecurityRules", "Wire", "YAML"], swiftSettings: tests),
        .testTarget(
            name: "RulesAnalysisTests",
            dependencies: ["TestSupport", "RulesAnalysis", "RulesTesting", "SecurityRules", "Wire"],
            swiftSettings: tests),
        // The same file in both language modes, as in an app.
        .target(
            name: "AppSamples5", dependencies: ["SluiceStorage"], path: "Tests/AppSamples/Mode5",
            swiftSettings: [.swiftLanguageMode(.v5)]),
        .target(
            name: "AppSamples6", dependencies: ["SluiceStorage"], path: "Tests/AppSamples/Mode6",
            swiftSettings: [.swiftLanguageMode(.v6)]),
        .testTarget(
            name: "SluiceStorageTests",
            dependencies: [
                "SluiceStorage", "AppSamples5", "AppSamples6", "ExampleUpload", "ExampleDownload",
                "TestSupport", "HTTPClient",
                "Wire",
            ],
            swiftSettings: tests),
        .testTarget(name: "TidyTests", swiftSettings: tests),
    ]
)

// `Fuzz/run` builds the fuzzers, which need sanitizers on every target, into a folder of their own.
if Context.environment["SLUICE_FUZZ"] != nil {
    package.targets += [
        .systemLibrary(name: "CLibFuzzer", path: "Fuzz/CLibFuzzer"),
        .executableTarget(
            name: "Fuzz",
            dependencies: [
                "CLibFuzzer", "Gateway", "HTTPServer", "HTTPClient", "Buckets", "Credentials",
                "Identity", "System", "OpenSSL", "SecurityRules", "Wire", "XML",
            ],
            path: "Fuzz/Sources", swiftSettings: strict,
            // gold, the default, fails on the sanitizers.
            linkerSettings: [.unsafeFlags(["-use-ld=lld"])]),
    ]
}
