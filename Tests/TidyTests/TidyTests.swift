import Foundation
import Testing

/// The rules of CONTRIBUTING.md on the whole repository.
@Suite struct TidyTests {
    private let sources: [SourceFile]
    private let others: [SourceFile]

    private static let everything = Result {
        try ["Sources", "Tests", "Benchmarks", "Fuzz"].flatMap { try files(below: $0) }
            .map { SourceFile(path: $0.0, text: $0.1) }
    }

    init() throws {
        let everything = try Self.everything.get()
        sources = everything.filter { $0.path.hasPrefix("Sources/") }
        others = everything.filter { !$0.path.hasPrefix("Sources/") }
        try #require(sources.count > 50 && others.count > 10, "the files were not found")
    }

    private var libraries: [SourceFile] {
        sources.filter { $0.target != "CLI" && $0.target != "Client" }
    }

    // MARK: Imports

    /// What each target may import besides the C library and Synchronization. A target imports only those above it.
    /// Foundation is for the tests, the client and its library, which the server does not link: it would take a third of
    /// an idle program's memory.
    private static let mayImport: [(target: String, modules: Set<String>)] = [
        ("Wire", []),
        ("System", ["Wire", "CLinux"]),
        ("XML", ["Wire", "CExpat"]),
        ("YAML", ["Wire", "CYAML"]),
        ("OpenSSL", ["Wire", "COpenSSL", "COpenSSLSetup"]),
        ("SecurityRules", ["Wire", "CRE2"]),
        ("Telemetry", ["System", "Wire", "CBuild", "Logging"]),
        ("HTTPServer", ["System", "OpenSSL", "Wire", "CNghttp2"]),
        ("HTTPClient", ["System", "OpenSSL", "Wire", "CCurl", "CNghttp2"]),
        ("Identity", ["System", "OpenSSL", "Wire", "HTTPClient"]),
        ("Credentials", ["System", "OpenSSL", "Wire", "XML", "HTTPClient"]),
        (
            "Buckets",
            ["System", "OpenSSL", "Wire", "XML", "HTTPClient", "Credentials", "CSQLite"]
        ),
        (
            "Gateway",
            [
                "System", "OpenSSL", "Wire", "XML", "HTTPServer", "HTTPClient", "Credentials", "Buckets",
                "Identity", "SecurityRules", "Telemetry", "Logging",
            ]
        ),
        (
            "Configuration",
            [
                "System", "Wire", "YAML", "HTTPServer", "HTTPClient", "Buckets", "Identity",
                "SecurityRules", "Gateway",
            ]
        ),
        ("RulesTesting", ["SecurityRules", "Wire", "YAML"]),
        ("RulesAnalysis", ["SecurityRules", "Wire", "CSolver"]),
        (
            "Console",
            [
                "System", "OpenSSL", "Wire", "SecurityRules", "HTTPServer", "HTTPClient", "Telemetry", "Gateway",
                "RulesTesting",
            ]
        ),
        (
            "SluiceStorage",
            [
                "System", "OpenSSL", "Wire", "HTTPClient", "Foundation", "Dispatch", "CryptoKit",
            ]
        ),
        ("ClientCommands", ["Wire", "ArgumentParser"]),
        (
            "Client",
            [
                "ClientCommands", "SluiceStorage", "Wire", "Foundation", "Dispatch",
                "ArgumentParser",
            ]
        ),
        (
            "CLI",
            [
                "System", "OpenSSL", "Wire", "SecurityRules", "HTTPServer", "HTTPClient",
                "Credentials", "Buckets", "Identity", "Telemetry", "Gateway", "Configuration",
                "RulesTesting", "RulesAnalysis", "Console", "ClientCommands", "ArgumentParser", "Logging",
            ]
        ),
    ]

    @Test func importsFollowTheTable() {
        var wrong: [String] = []
        for file in sources {
            guard let rule = Self.mayImport.first(where: { $0.target == file.target }) else {
                wrong.append("\(file.path): no rule for the target \(file.target)")
                continue
            }
            for module in file.imports
            where !rule.modules.contains(module)
                && !["Glibc", "Darwin", "Synchronization"].contains(module)
            {
                wrong.append("\(file.path) imports \(module)")
            }
        }
        #expect(wrong.isEmpty, report(wrong))
    }

    @Test func importsFormADAG() {
        let order = Self.mayImport.map(\.target)
        for (index, rule) in Self.mayImport.enumerated() {
            #expect(
                rule.modules.isDisjoint(with: order[index...]), "\(rule.target) imports upwards")
        }
    }

    @Test func eachCModuleHasOneImporter() throws {
        let maps = try files(below: "Sources", suffixes: ["module.modulemap"])
        #expect(!maps.isEmpty)
        for (path, _) in maps {
            let module = String(path.split(separator: "/")[1])
            let importers = Set(sources.filter { $0.imports.contains(module) }.map(\.target))
            // HTTP/2 has two sides, which share nothing but the library: a target between would only pass its calls on.
            let expected = module == "CNghttp2" ? 2 : 1
            #expect(importers.count == expected, "\(module) is imported by \(importers.sorted())")
        }
    }

    // MARK: Length

    @Test func filesAreShort() {
        // A table that a script makes is not read.
        let read = sources.filter { $0.name != "MediaTypeTable.swift" }
        let long =
            read.filter { $0.lines.count > Rules.maximumFileLines }
            + others.filter { $0.lines.count > Rules.maximumTestFileLines }
        #expect(long.isEmpty, report(long.map { "\($0.path): \($0.lines.count) lines" }))
        let counts = sources.map(\.lines.count).sorted()
        #expect(counts[counts.count / 2] <= 130, "the median of \(counts.count) files")
    }

    /// A folder can be taken in at a glance: it holds at most 25 files of any kind, besides hidden ones.
    @Test func foldersAreSmall() throws {
        let large = try folderSizes().filter { $0.value > Rules.maximumFolderFiles }
            .map { "\($0.key): \($0.value) files" }.sorted()
        #expect(large.isEmpty, report(large))
    }

    @Test func functionsAreShort() {
        let found = (sources + others).flatMap(Rules.longFunctions)
        #expect(found.isEmpty, report(found))
    }

    // MARK: Words

    @Test func librariesPrintNothing() {
        let found = libraries.flatMap(Rules.prints)
        #expect(found.isEmpty, report(found))
    }

    @Test func uncheckedCodeIsExplained() {
        let found = (sources + others).flatMap(Rules.unexplainedSafety)
        #expect(found.isEmpty, report(found))
    }

    @Test func publicDeclarationsAreDocumented() {
        let witnesses = Rules.requirements(libraries)
        let found = libraries.flatMap { Rules.undocumented($0, witnesses: witnesses) }
        #expect(found.isEmpty, report(found))
    }

    @Test func nothingIsPostponed() throws {
        let suffixes = [".swift", ".h", ".c", ".py", ".sh", ".yaml", ".yml", ".md", ".awk"]
        let folders = ["Sources", "Tests", "Benchmarks", "Fuzz", "config", "deploy", ".ci"]
        let texts =
            try folders.flatMap { try files(below: $0, suffixes: suffixes) }
            + ["Makefile", ".ci/run", ".ci/install", "Package.swift"].map {
                ($0, try String(contentsOf: repository.appending(path: $0), encoding: .utf8))
            }
        let found = texts.flatMap { Rules.leftovers(path: $0.0, text: $0.1) }
        #expect(found.isEmpty, report(found))
    }

    private func report(_ findings: [String]) -> Comment {
        Comment(rawValue: findings.joined(separator: "\n"))
    }
}
