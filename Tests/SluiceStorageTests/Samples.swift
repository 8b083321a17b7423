import Foundation
import SluiceStorage
import Testing

/// The code of the documentation, word for word; ``SampleTests`` compares and runs it.
struct Samples {
    let url: String
    let storage: Storage
    let file: URL
    let copy: URL
    let tokenFile: URL
    let authorities = URL(filePath: "/etc/ssl/gateway.pem")
    let bytes = Data("rivers".utf8)

    private var image: StorageReference { storage.reference().child("images/rivers.jpg") }
    private var folder: StorageReference { storage.reference().child("images") }

    private func print(_ values: Any...) {}
    private func currentToken() async throws -> String { "t" }

    func all() async throws {
        try await overview()
        try references()
        try await uploads()
        try await downloads()
        try await lists()
        try await metadata()
        await errors()
    }

    private func overview() async throws {
        let storage = Storage.storage(url: url, bucket: "photos")
        let image = storage.reference().child("images/rivers.jpg")
        try await image.putFileAsync(from: file)
        let bytes = try await image.data(maxSize: 10 << 20)
        try #require(try Data(contentsOf: file) == bytes)
    }

    private func references() throws {
        let root = storage.reference()
        let image = root.child("images/2026/rivers.jpg")
        print(image.fullPath, image.name, image.bucket)
        let folder = image.parent()
        let same = folder?.child("rivers.jpg")
        try #require(same == image)

        let found = storage.reference(forURL: "gs://photos/images/2026/rivers.jpg")
        try #require(found == image)

        storage.credentials = .bearer { try await currentToken() }
        storage.credentials = .file(tokenFile)
        storage.credentials = .none

        storage.configuration.certificateAuthorities = authorities
        storage.configuration.headerFields = ["X-Team": "maps"]
        storage.configuration = StorageConfiguration()
    }

    private func uploads() async throws {
        try await image.putDataAsync(bytes, metadata: StorageMetadata(contentType: "image/jpeg"))
        try await image.putFileAsync(from: file) { progress in
            print(progress?.fractionCompleted ?? 0)
        }

        let task = image.putFile(from: file)
        task.observe(.progress) { snapshot in
            print(snapshot.progress!.completedUnitCount)
        }
        task.pause()
        task.resume()
        for await snapshot in task.snapshots {
            print(snapshot.status, snapshot.progress!.fractionCompleted)
        }
        try #require(task.snapshot.status == .success)
        task.observe(.failure) { snapshot in
            if let error = snapshot.error as? NSError {
                switch StorageErrorCode(rawValue: error.code) {
                case .objectNotFound: print("There is no such object.")
                case .cancelled: print("The upload was cancelled.")
                default: print(error.localizedDescription)
                }
            }
        }
        // A fast upload can end before its pause.
        var attempts = 1
        while try await !continuation() {
            attempts += 1
            try #require(attempts < 100)
        }
    }

    /// Returns false if the upload had ended.
    private func continuation() async throws -> Bool {
        let task = image.putFile(from: file)
        for await snapshot in task.snapshots {
            if snapshot.status == .progress { task.pause() }
            if snapshot.status == .pause { break }
        }
        guard let unfinished = task.resumptionData else { return false }
        let saved = try JSONEncoder().encode(unfinished)
        let data = try JSONDecoder().decode(StorageUploadResumptionData.self, from: saved)
        let continued = image.resumeUpload(from: data, file: file)
        for await _ in continued.snapshots {}
        try #require(continued.snapshot.status == .success)
        return true
    }

    private func downloads() async throws {
        do {
            let bytes = try await image.data(maxSize: 10 << 20)
            try await image.writeAsync(toFile: copy) { progress in
                print(progress?.fractionCompleted ?? 0)
            }
            try #require(try Data(contentsOf: copy) == bytes)
        }
        do {
            let task = image.write(toFile: copy) { url, error in
                print(url?.path ?? "", error?.localizedDescription ?? "")
            }
            task.cancel()
            for await _ in task.snapshots {}
        }
        do {
            let url = try await image.downloadURL()
            try #require(try await load(url) == Data(contentsOf: file))
        }
    }

    private func lists() async throws {
        let result = try await folder.listAll()
        for item in result.items { print(item.fullPath) }
        for prefix in result.prefixes { print(prefix.fullPath) }
        try #require(result.items == [image])

        var page = try await folder.list(maxResults: 100)
        while let token = page.pageToken {
            page = try await folder.list(maxResults: 100, pageToken: token)
        }
    }

    private func metadata() async throws {
        let metadata = try await image.getMetadata()
        print(metadata.size, metadata.contentType ?? "", metadata.generation)

        let change = StorageMetadata()
        change.cacheControl = "public, max-age=300"
        change.contentLanguage = nil
        change.customMetadata = ["place": "Oslo"]
        let changed = try await image.updateMetadata(change)
        try #require(changed.customMetadata == ["place": "Oslo"])

        try await image.delete()
    }

    private func errors() async {
        do {
            _ = try await image.getMetadata()
        } catch {
            switch error.reason {
            case .objectNotFound: print("There is no such object.")
            case .unauthenticated, .unauthorized: print("This is not allowed.")
            default: print(error.message, error.problemCode ?? "", error.requestID ?? "")
            }
        }
    }
}
