import AppSamples5
import AppSamples6
import Foundation
import Testing

/// The code of the documentation compiles, runs, and is that of `Samples.swift`.
@Suite struct SampleTests {
    @Test func samplesRun() async throws {
        let gateway = try await GatewayProcess()
        let storage = gateway.storage()
        storage.uploadChunkSizeBytes = 100_000
        let samples = Samples(
            url: "http://127.0.0.1:\(gateway.port)", storage: storage,
            file: gateway.file("rivers.jpg", size: 700_000),
            copy: URL(filePath: gateway.directory.path + "/copy.jpg"),
            tokenFile: URL(filePath: gateway.directory.path + "/token"))
        try await samples.all()
    }

    /// What apps have written for the Storage SDK for Apple platforms compiles and runs, in both language modes.
    @Test(arguments: [5, 6])
    func samplesOfApps(mode: Int) async throws {
        let gateway = try await GatewayProcess()
        let storage = gateway.storage()
        storage.uploadChunkSizeBytes = 100_000
        let file = gateway.file("rivers.jpg", size: 700_000)
        let copy = URL(filePath: gateway.directory.path + "/copy.jpg")
        let steps =
            mode == 5
            ? await AppSamples5.AppSamples(storage: storage, localFile: file, localURL: copy).run()
            : await AppSamples6.AppSamples(storage: storage, localFile: file, localURL: copy).run()
        #expect(
            steps == [
                "NSError", "async downloads", "async uploads", "bucketMismatch", "cancel",
                "completion's NSError", "delete", "getData", "getMetadata", "item", "main actor",
                "managed upload", "pages", "pathError", "pause", "prefix", "putData", "putFile",
                "references", "removed metadata", "result", "resume", "updateMetadata", "write",
            ])
    }

    @Test func theDocumentationHasThem() throws {
        let repository = URL(filePath: #filePath).deletingLastPathComponent()
            .deletingLastPathComponent().deletingLastPathComponent()
        let source = lines(
            try text(repository.appending(path: "Tests/SluiceStorageTests/Samples.swift")))
        let pages = repository.appending(path: "Sources/SluiceStorage/SluiceStorage.docc")
        var count = 0
        for page in try FileManager.default.contentsOfDirectory(atPath: pages.path) {
            for block in try text(pages.appending(path: page)).components(separatedBy: "```swift\n")
                .dropFirst()
            {
                let wanted = lines(block.components(separatedBy: "```")[0])
                let isThere = source.indices.contains { source[$0...].starts(with: wanted) }
                #expect(isThere, "\(page): \(wanted.first ?? "")")
                count += 1
            }
        }
        #expect(count > 12)
    }

    private func text(_ file: URL) throws -> String {
        try String(contentsOf: file, encoding: .utf8)
    }

    /// The lines without indentation and empty lines.
    private func lines(_ text: String) -> [String] {
        text.split(separator: "\n").map { $0.trimmingCharacters(in: .whitespaces) }
            .filter { !$0.isEmpty }
    }
}
