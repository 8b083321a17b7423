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
        ("http://127.0.0.1:1/base/b/photos/o", ""), ("gs://photos/100%", "100%"),
    ])
    func urls(url: String, path: String) throws {
        #expect(try storage.reference(forURL: url).fullPath == path)
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
    func otherURLs(url: String, code: StorageErrorCode) {
        let error = #expect(throws: StorageError.self) { try storage.reference(forURL: url) }
        #expect(error?.code == code)
    }

    @Test func whatCanNotBeAnObject() async {
        for (path, code) in [
            ("", StorageErrorCode.pathError), ("a/../b", .pathError), ("./a", .pathError),
        ] {
            let error = await #expect(throws: StorageError.self) {
                try await storage.reference(withPath: path).putDataAsync(Data())
            }
            #expect(error?.code == code)
        }
        for url in ["", "ftp://a", "http://", "http://a?b", "a"] {
            let error = await #expect(throws: StorageError.self) {
                try await Storage(url: url, bucket: "b").reference(withPath: "a").getMetadata()
            }
            #expect(error?.code == .invalidArgument)
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
