import BucketConformance
import Foundation
import TestSupport
import Testing

@testable import Buckets

/// A store and the server behind it, as a column of docs/capabilities.md.
private struct Column: Sendable {
    let driver: String
    let server: String
    /// What the server can't do, and why, by the names of cases.
    let known: [String: String]
    /// Keeps the server for as long as buckets are made.
    let prepare: @Sendable () async throws -> BucketConformance.MakeDriver

    static let all: [Column] =
        [
            Column(driver: "directory", server: "local disk", known: [:]) {
                let directory = TemporaryDirectory()
                return { try openBucket("\(directory.path)/\(UUID().uuidString)") }
            }
        ]
        + GCSServer.allCases.map { server in
            Column(driver: "gcs", server: server.rawValue, known: server.known) {
                let running = RunningGCSServer(server)
                return { try await running.makeBucket() }
            }
        }
        + S3Server.allCases.map { server in
            Column(
                driver: "s3", server: server.rawValue,
                known: S3ConformanceTests.known[server] ?? [:]
            ) {
                let running = try RunningServer(server)
                return { try await running.makeBucket() }
            }
        }

    /// What it promises, and of each case whether it passed; nil where it was not asked.
    func run() async throws -> (Capabilities, [String: Bool]) {
        let make = try await prepare()
        let capabilities = try await onLoop {
            let driver = try await make()
            let capabilities = try await driver.capabilities()
            await driver.close()
            return capabilities
        }
        var passed: [String: Bool] = [:]
        for check in BucketConformance.cases(for: capabilities) {
            do {
                try await check.run(make)
                // What depends on who comes first is shown as what it may be.
                let mayFail =
                    S3ConformanceTests.unsteady.contains(check.name) && known[check.name] != nil
                passed[check.name] = !mayFail
            } catch {
                passed[check.name] = false
            }
        }
        return (capabilities, passed)
    }
}

/// docs/capabilities.md, from a run of all cases with all servers.
private struct CapabilitiesTable {
    private(set) var text = """
        # What each store does

        Generated from a run of the conformance suite (`Tests/BucketConformance`), driver by driver and server by server:
        `make capabilities` writes it again, and a test compares it with its own run. *no* marks what the server does
        otherwise than the service that it stands for, with the reason below; — what the driver does not promise, and the
        gateway answers with 501.

        """
    private let columns: [Column]

    init(_ columns: [Column]) async throws {
        self.columns = columns
        var runs: [(capabilities: Capabilities, passed: [String: Bool])] = []
        for column in columns { runs.append(try await column.run()) }
        header("promise")
        let promises: [(String, (Capabilities) -> Bool)] = [
            ("an upload's preconditions are decided with its commit", \.atomicUploads),
            ("a patch's are decided with the change", \.atomicPatches),
            ("a deletion's are decided with the removal", \.atomicDeletions),
            ("an upload's may change until its commit", \.lateConditions),
            ("what is acknowledged outlives a loss of power", \.durable),
        ]
        for (name, promise) in promises {
            row(name, runs.map { promise($0.capabilities) ? "yes" : "—" })
        }
        header("case")
        for check in BucketConformance.all {
            row(
                check.name,
                runs.map { run in run.passed[check.name].map { $0 ? "yes" : "*no*" } ?? "—" })
        }
        for (column, run) in zip(columns, runs) {
            let failed = run.passed.filter { !$0.value }.map(\.key).sorted()
            if failed.isEmpty { continue }
            text += "\n## What \(column.server) does otherwise\n\n"
            for name in failed { text += "- \(name): \(column.known[name] ?? "not known why")\n" }
        }
    }

    private mutating func header(_ first: String) {
        text +=
            "\n| \(first) | "
            + columns.map { "\($0.driver): \($0.server)" }.joined(separator: " | ")
        text += " |\n" + String(repeating: "|---", count: columns.count + 1) + "|\n"
    }

    private mutating func row(_ name: String, _ cells: [String]) {
        text += "| \(name) | \(cells.joined(separator: " | ")) |\n"
    }
}

@Suite(
    "The table of capabilities", .serialized, .enabled(if: UpstreamProcess.environment != nil),
    .timeLimit(.minutes(10)))
struct CapabilitiesTests {
    @Test func isWhatARunShows() async throws {
        let file = URL(fileURLWithPath: #filePath).deletingLastPathComponent()
            .appendingPathComponent("../../docs/capabilities.md").standardizedFileURL
        let table = try await CapabilitiesTable(Column.all)
        if ProcessInfo.processInfo.environment["WRITE_CAPABILITIES"] != nil {
            try table.text.write(to: file, atomically: true, encoding: .utf8)
        }
        let committed = try? String(contentsOf: file, encoding: .utf8)
        #expect(committed == table.text, "run: make capabilities")
    }
}
