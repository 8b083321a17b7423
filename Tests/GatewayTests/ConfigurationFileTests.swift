import Foundation
import HTTPServer
import Testing

@testable import Gateway

/// The table of settings, the files in `config/`, and configurations that are printed and read back.
@Suite struct ConfigurationFileTests {
    private static let folder = URL(filePath: #filePath)
        .deletingLastPathComponent().deletingLastPathComponent().deletingLastPathComponent()
        .appending(path: "config")

    @Test func everyFileInConfigLoads() throws {
        let files = try FileManager.default.contentsOfDirectory(
            at: Self.folder, includingPropertiesForKeys: nil)
        #expect(files.count >= 2)
        for file in files { _ = try Configuration.load(file: file.path) }
    }

    // MARK: The reference

    @Test func referenceGivesEveryDefault() throws {
        let read = try Configuration.load(file: Self.folder.appending(path: "reference.yaml").path)
        let defaults = Configuration()
        for setting in Configuration.settings where setting.path != "rules" {
            #expect(setting.print(read) == setting.print(defaults), "\(setting.path)")
        }
        let bucket = try #require(read.buckets.first)
        let fresh = Configuration.Bucket(name: bucket.name)
        for setting in Configuration.Bucket.settings where setting.path != "directory.path" {
            #expect(setting.print(bucket) == setting.print(fresh), "\(setting.path)")
        }
    }

    @Test func referenceExplainsEveryKey() throws {
        let text = try String(
            contentsOf: Self.folder.appending(path: "reference.yaml"), encoding: .utf8)
        let lines = KeyLines(text)
        let keys =
            Configuration.settings.map { ($0.path, $0.type, $0.meaning) }
            + Configuration.Bucket.settings.map {
                ("buckets.photos.\($0.path)", $0.type, $0.meaning)
            }
        #expect(Set(lines.comments.keys) == Set(keys.map(\.0)))
        for (path, type, meaning) in keys {
            #expect(lines.comments[path] == "\(meaning) (\(type))", "\(path)")
        }
    }

    @Test func everyLimitIsASetting() {
        let fields = Mirror(reflecting: ServerLimits()).children.compactMap(\.label)
        let keys = Configuration.settings.compactMap { setting in
            setting.path.hasPrefix("limits.") ? String(setting.path.dropFirst(7)) : nil
        }
        #expect(Set(fields) == Set(keys))
    }

    // MARK: Units

    @Test(
        arguments: [
            ("0", 0), ("4096", 4096), ("1KiB", 1024), ("8MiB", 8 << 20), ("3GiB", 3 << 30),
            ("2TiB", 2 << 40), ("16777215TiB", 16_777_215 << 40),
        ] as [(String, UInt64)])
    func readsBytes(_ text: String, _ value: UInt64) {
        #expect(Units.parseBytes(text) == value)
        #expect(Units.parseBytes(Units.bytes(value)) == value)
    }

    @Test(arguments: [
        "", "KiB", "-1", "+1", "1.5MiB", "1 MiB", "1MB", "1kib", "16777216TiB",
        "18446744073709551616", "0x10", "1_000",
    ])
    func refusesBytes(_ text: String) { #expect(Units.parseBytes(text) == nil) }

    @Test(
        arguments: [
            ("0s", 0), ("500ms", 500_000_000), ("10s", 10_000_000_000), ("2m", 120_000_000_000),
            ("1h", 3_600_000_000_000), ("1500ms", 1_500_000_000),
        ] as [(String, UInt64)])
    func readsDurations(_ text: String, _ value: UInt64) {
        #expect(Units.parseDuration(text) == value)
        #expect(Units.parseDuration(Units.duration(value)) == value)
    }

    @Test(arguments: ["", "s", "10", "1.5s", "-1s", "10S", "10 s", "1d", "99999999999999h"])
    func refusesDurations(_ text: String) { #expect(Units.parseDuration(text) == nil) }

    // MARK: Printing

    @Test func whatIsPrintedReadsBackTheSame() throws {
        let folder = try Folder()
        defer { withExtendedLifetime(folder) {} }
        var random = Seeded(2026)
        for _ in 0..<300 {
            let configuration = random.configuration()
            let printed = configuration.yaml()
            let read = try Configuration.load(file: folder.write(printed))
            #expect(read == configuration, "\(printed)")
        }
    }

    @Test func aBucketNameWithDotsStaysOneKey() throws {
        var configuration = Configuration()
        configuration.rules = "none"
        configuration.buckets = ["a", "a.rules", "null", "1.5", "no"].map {
            var bucket = Configuration.Bucket(name: $0)
            bucket.directory = "/d/\($0)"
            return bucket
        }
        let folder = try Folder()
        defer { withExtendedLifetime(folder) {} }
        #expect(try Configuration.load(file: folder.write(configuration.yaml())) == configuration)
    }
}

/// The comment right above each key of a file of block mappings, by dotted path; sections have none here.
private struct KeyLines {
    var comments: [String: String] = [:]

    init(_ text: String) {
        var parents: [String] = []
        var comment: [String] = []
        for line in text.split(separator: "\n", omittingEmptySubsequences: false) {
            let content = line.trimmingCharacters(in: .whitespaces)
            if content.hasPrefix("#") {
                comment.append(content.dropFirst().trimmingCharacters(in: .whitespaces))
                continue
            }
            if let colon = content.firstIndex(of: ":") {
                let depth = line.prefix { $0 == " " }.count / 2
                parents = parents.prefix(depth) + [String(content[..<colon])]
                if content.index(after: colon) < content.endIndex {
                    comments[parents.joined(separator: ".")] = comment.joined(separator: " ")
                }
            }
            comment = []
        }
    }
}

extension Seeded {
    /// A valid configuration with every kind of value.
    fileprivate mutating func configuration() -> Configuration {
        var made = Configuration()
        made.rules = "none"
        made.http = pick(["127.0.0.1:1", "[::1]:2"])
        made.operatorAddress = pick([nil, "127.0.0.1:3"])
        if Bool.random(using: &self) {
            made.https = .init(address: "127.0.0.1:4", certificate: "self-signed")
        }
        made.threads = Int.random(in: 0...256, using: &self)
        made.logLevel = pick(["trace", "info", "critical"])
        made.logsAccess = Bool.random(using: &self)
        made.corsOrigins = pick([[], ["*"], ["https://a.example:1", "http://[::1]"]])
        made.corsMaximumAge = UInt64.random(in: 0...86_400_000, using: &self) * 1_000_000
        made.corsExposedHeaders = pick([[], ["*"], ["etag", "x-a"]])
        made.limits.idleTimeout = UInt64.random(in: 10...86_400_000, using: &self) * 1_000_000
        made.limits.headerBytes = Int.random(in: 1024...1 << 20, using: &self)
        made.limits.minimumProgress = UInt64.random(in: 0...1 << 30, using: &self)
        for index in 0..<Int.random(in: 1...3, using: &self) {
            var bucket = Configuration.Bucket(name: "\(pick(["b", "no", "1", "x.y_z"]))\(index)")
            bucket.directory = "/d\(index)/" + text().replacingOccurrences(of: "/", with: "_") + "e"
            bucket.rules = pick([nil, "none"])
            bucket.maximumObjectSize = UInt64.random(in: 1...1 << 50, using: &self)
            bucket.allowedPaths = (0..<Int.random(in: 0...3, using: &self)).map { _ in
                text().filter { $0 != "*" && $0 != "/" && !$0.isNewline } + "x/**"
            }
            bucket.maximumDepth = Int.random(in: 0...1024, using: &self)
            bucket.refusesDiscouraged = Bool.random(using: &self)
            made.buckets.append(bucket)
        }
        return made
    }

    private mutating func pick<Value>(_ values: [Value]) -> Value {
        values.randomElement(using: &self)!
    }

    /// What YAML might take for something else.
    private mutating func text() -> String {
        let pieces = [
            "a", " ", "'", "\"", "\\", "#", ": ", "-", "null", "~", "1", "é", "\u{1F600}", "\t",
            "{", "[",
            "&", "*", "!", "|", ">", "%", "@", "`", ",", "?", "\u{85}", "\u{2028}", "\u{7f}",
        ]
        return (0..<Int.random(in: 0...8, using: &self)).map { _ in pick(pieces) }.joined()
    }
}
