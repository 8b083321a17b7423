import Foundation
import SluiceStorage
import Testing

@Suite struct ReferenceTests {
    private let storage = Storage(url: "http://127.0.0.1:1/base/", bucket: "photos")

    @Test func paths() {
        let root = storage.reference()
        #expect(root.fullPath == "" && root.name == "" && root.parent() == nil)
        #expect(root.description == "gs://photos/")
        let image = root.child("/images//2026/a b.png/")
        #expect(image.fullPath == "images/2026/a b.png" && image.name == "a b.png")
        #expect(image.bucket == "photos" && image.description == "gs://photos/images/2026/a b.png")
        #expect(image.parent() == storage.reference(withPath: "images/2026"))
        #expect(image.parent()?.parent()?.parent() == root)
        #expect(image.root() == root && root.child("//") == root)
        #expect(root.child("a").child("b/c").fullPath == "a/b/c")
        // Names are compared by their bytes.
        #expect(root.child("\u{e9}") != root.child("e\u{301}"))
        #expect(
            Set([root.child("\u{e9}"), root.child("e\u{301}"), root.child("\u{e9}")]).count == 2)
    }

    @Test func referencesOfOtherGateways() {
        let reference = storage.reference(withPath: "a")
        let same = Storage(url: "http://127.0.0.1:1/base", bucket: "photos")
        let other = Storage(url: "http://127.0.0.1:2/base", bucket: "photos")
        #expect(reference == same.reference(withPath: "a"))
        #expect(Set([reference, same.reference(withPath: "a")]).count == 1)
        #expect(reference != other.reference(withPath: "a"))
        #expect(Set([reference, other.reference(withPath: "a")]).count == 2)
    }

    @Test func secretsAreNotShown() throws {
        let secret = "s3cr3t"
        var configuration = StorageConfiguration()
        configuration.headerFields = ["Authorization": secret]
        let saved = try JSONDecoder().decode(
            StorageUploadResumptionData.self,
            from: Data(
                """
                {"bucket": "b", "path": "a", "session": "/b/b/u/\(secret)", "fields": [],
                "file": {"size": 1, "modified": 1, "changed": 1, "number": 1}}
                """.utf8))
        for value: Any in [StorageCredentials.token(secret), saved, [saved], configuration] {
            var text = "\(value) \(String(reflecting: value)) "
            dump(value, to: &text)
            #expect(!text.contains(secret))
        }
        #expect("\(saved)".contains("gs://b/a") && "\(configuration)".contains("Authorization"))
    }

    @Test(arguments: [
        ("gs://photos/a/b.png", "a/b.png"), ("gs://photos", ""), ("gs://photos/", ""),
        ("http://127.0.0.1:1/base/b/photos/o/a%20b/%C3%A9.png?metadata", "a b/é.png"),
        ("http://127.0.0.1:1/base/v0/b/photos/o/a%2Fb.png?alt=media&token=x", "a/b.png"),
        ("https://firebasestorage.googleapis.com/v0/b/photos/o/a%2Fb.png?alt=media", "a/b.png"),
        ("http://127.0.0.1:1/base/b/photos/o", ""), ("gs://photos/100%", "100%"),
    ])
    func urls(url: String, path: String) throws {
        #expect(storage.reference(forURL: url).fullPath == path)
        if let url = URL(string: url), !path.contains("%") {
            #expect(try storage.reference(for: url).fullPath == path)
        }
    }

    @Test(arguments: [
        ("gs://other/a", StorageErrorCode.bucketMismatch),
        ("http://127.0.0.1:1/base/b/other/o/a", .bucketMismatch),
        ("http://127.0.0.1:2/base/b/photos/o/a", .invalidArgument),
        ("http://127.0.0.1:1/base/b/photos/ox/a", .invalidArgument),
        ("http://127.0.0.1:1/base/b/photos/o/%FF", .invalidArgument),
        ("https://127.0.0.1:1/base/b/photos/o/a", .invalidArgument),
        ("gs://", .invalidArgument), ("", .invalidArgument), ("a", .invalidArgument),
    ])
    func otherURLs(text: String, code: StorageErrorCode) async {
        if let url = URL(string: text) {
            let error = #expect(throws: StorageError.self) { try storage.reference(for: url) }
            #expect(error?.reason == code)
        }
        // Without `throws` each operation fails, also on what is made of the reference.
        let made = storage.reference(forURL: text)
        let expected = code == .bucketMismatch ? code : .pathError
        for reference in [made, made.child("a"), made.child("a").parent(), made.root()] {
            guard let reference else { continue }
            let calls: [() async throws -> Void] = [
                { _ = try await reference.getMetadata() },
                { _ = try await reference.updateMetadata(StorageMetadata()) },
                { try await reference.delete() }, { _ = try await reference.downloadURL() },
                { _ = try await reference.listAll() },
                { _ = try await reference.list(maxResults: 1) },
                { _ = try await reference.data(maxSize: 1) },
                { _ = try await reference.putDataAsync(Data()) },
                { _ = try await reference.putDataAsync(Data(count: 300_000)) },
                { _ = try await reference.putFileAsync(from: URL(filePath: "/proc/self/exe")) },
                { _ = try await reference.writeAsync(toFile: URL(filePath: "/dev/null/a")) },
            ]
            for (index, call) in calls.enumerated() {
                let error = await #expect(throws: StorageError.self) { try await call() }
                #expect(error?.reason == expected, "call \(index)")
                #expect(error?.code == expected.rawValue)
            }
        }
    }

    @Test func metadataIsReadWhenItIsPassed() async throws {
        let gateway = try await GatewayProcess()
        let reference = gateway.storage().reference(withPath: "a")
        let metadata = StorageMetadata(contentType: "image/png")
        metadata.customMetadata = ["k": "1"]
        let task = reference.putData(Data(), metadata: metadata)
        metadata.contentType = "text/plain"
        metadata.customMetadata = nil
        for await _ in task.snapshots {}
        let stored = try await reference.getMetadata()
        #expect(stored.contentType == "image/png" && stored.customMetadata == ["k": "1"])
        // It is not changed by an upload of a file, whose name has a type.
        let empty = StorageMetadata()
        try await reference.putFileAsync(from: gateway.file("a.png", size: 1), metadata: empty)
        #expect(empty.contentType == nil && empty == StorageMetadata())
        #expect(stored == stored.copy() as? StorageMetadata)
        #expect(stored.dictionaryRepresentation()["contentType"] == AnyHashable("image/png"))
    }

    /// Metadata that threads share has all their changes.
    @Test func metadataOfManyThreads() async {
        let metadata = StorageMetadata()
        await withTaskGroup(of: Void.self) { group in
            for number in 0..<100 {
                group.addTask {
                    metadata.contentType = "a/\(number)"
                    _ = (metadata.contentType, metadata.description, metadata.hashValue)
                }
            }
        }
        #expect(metadata.contentType?.hasPrefix("a/") == true)
    }

    @Test(arguments: [
        StorageErrorCode.unknown, .objectNotFound, .bucketNotFound, .projectNotFound,
        .quotaExceeded, .unauthenticated, .unauthorized, .retryLimitExceeded,
        .nonMatchingChecksum, .downloadSizeExceeded, .cancelled, .invalidArgument,
        .bucketMismatch, .internalError, .pathError,
    ])
    func errorsAreNSErrors(code: StorageErrorCode) {
        let error: Error = StorageError(code, "A sentence.")
        let found = error as NSError
        #expect(found.domain == "FIRStorageErrorDomain" && found.code == code.rawValue)
        #expect(error.localizedDescription == "A sentence." && "\(error)" == "A sentence.")
        #expect(StorageErrorCode(rawValue: (error as NSError).code) == code)
    }

    @Test func whatCanNotBeAnObject() async {
        for (path, code) in [
            ("", StorageErrorCode.pathError), ("a/../b", .pathError), ("./a", .pathError),
        ] {
            let error = await #expect(throws: StorageError.self) {
                try await storage.reference(withPath: path).putDataAsync(Data())
            }
            #expect(error?.reason == code)
        }
        for url in ["", "ftp://a", "http://", "http://a?b", "a"] {
            let error = await #expect(throws: StorageError.self) {
                try await Storage(url: url, bucket: "b").reference(withPath: "a").getMetadata()
            }
            #expect(error?.reason == .invalidArgument)
        }
    }

    @Test func sharedInstances() {
        #expect(
            Storage.storage(url: "http://a", bucket: "b")
                === Storage.storage(url: "http://a", bucket: "b"))
        #expect(
            Storage.storage(url: "http://a", bucket: "b")
                !== Storage.storage(url: "http://a", bucket: "c"))
        #expect(Storage.storage(url: "gs://b/c").bucket == "b")
        #expect(storage.maxUploadRetryTime == 600 && storage.maxDownloadRetryTime == 600)
        #expect(storage.maxOperationRetryTime == 120)
    }

    @Test func errorsAreThoseOfTheSDK() {
        let error =
            StorageError(.objectNotFound, "There is no such object.") as any Error as NSError
        #expect(error.domain == "FIRStorageErrorDomain" && error.code == -13010)
        #expect(error.localizedDescription == "There is no such object.")
    }
}
