import Foundation
import SluiceStorage

/// Downloads a folder with everything below it, and prints each file:
///
///     SLUICE_URL=http://127.0.0.1:8080 SLUICE_BUCKET=photos swift run ExampleDownload images ./copy
@main struct Download {
    static func main() async {
        guard CommandLine.arguments.count == 3 else { fail("usage: ExampleDownload PATH FOLDER") }
        let folder = Storage.storage().reference(withPath: CommandLine.arguments[1])
        do {
            try await download(folder, to: URL(fileURLWithPath: CommandLine.arguments[2]))
        } catch {
            fail("\(error)")
        }
    }

    static func download(_ folder: StorageReference, to target: URL) async throws {
        try FileManager.default.createDirectory(at: target, withIntermediateDirectories: true)
        let list = try await folder.listAll()
        for item in list.items {
            let file = target.appendingPathComponent(item.name)
            try await item.writeAsync(toFile: file)
            print(file.path)
        }
        // A folder without a name, from names such as `a//b`, is no other folder here.
        for prefix in list.prefixes where prefix != folder {
            try await download(prefix, to: target.appendingPathComponent(prefix.name))
        }
    }

    static func fail(_ message: String) -> Never {
        FileHandle.standardError.write(Data("\(message)\n".utf8))
        exit(1)
    }
}
