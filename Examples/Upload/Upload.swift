import Foundation
import SluiceStorage

/// Uploads a file and prints its progress. If it is interrupted, even by `kill -9`, the same command continues:
///
///     SLUICE_URL=http://127.0.0.1:8080 SLUICE_BUCKET=photos swift run ExampleUpload big.iso images/big.iso
@main struct Upload {
    static func main() async {
        guard CommandLine.arguments.count == 3 else { fail("usage: ExampleUpload FILE PATH") }
        let file = URL(fileURLWithPath: CommandLine.arguments[1])
        let reference = Storage.storage().reference(withPath: CommandLine.arguments[2])
        let saved = file.path + ".upload"

        let task = start(reference, file, saved)
        for await snapshot in task.snapshots where snapshot.status == .progress {
            save(task.resumptionData, to: saved)
            print("\(Int(snapshot.progress!.fractionCompleted * 100)) %")
        }
        // A failure of the connection leaves the upload at the gateway, to be continued. If the file has changed, it does
        // not: the next run begins again.
        if task.resumptionData == nil { try? FileManager.default.removeItem(atPath: saved) }
        if let error = task.snapshot.error { fail("\(error)") }
        print("\(reference) is stored.")
    }

    /// Continues an earlier upload of this file to the same object, or begins one.
    static func start(_ reference: StorageReference, _ file: URL, _ saved: String)
        -> StorageUploadTask
    {
        if let text = FileManager.default.contents(atPath: saved),
            let data = try? JSONDecoder().decode(StorageUploadResumptionData.self, from: text),
            data.bucket == reference.bucket, data.path == reference.fullPath
        {
            return reference.resumeUpload(from: data, file: file)
        }
        return reference.putFile(from: file)
    }

    /// Only the owner may read it: it continues the upload.
    static func save(_ data: StorageUploadResumptionData?, to path: String) {
        guard let data, let text = try? JSONEncoder().encode(data) else { return }
        _ = FileManager.default.createFile(
            atPath: path, contents: text, attributes: [.posixPermissions: 0o600])
    }

    static func fail(_ message: String) -> Never {
        FileHandle.standardError.write(Data("\(message)\n".utf8))
        exit(1)
    }
}
