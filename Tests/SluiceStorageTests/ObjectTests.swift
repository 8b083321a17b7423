import Foundation
import SluiceStorage
import Synchronization
import TestSupport
import Testing

/// Small objects, metadata, lists and errors, with the real program.
@Suite struct ObjectTests {
    @Test func anObjectsLife() async throws {
        let gateway = try await GatewayProcess()
        let reference = gateway.storage().reference(withPath: "images/a ü+%.png")
        let metadata = StorageMetadata()
        metadata.cacheControl = "no-cache"
        metadata.customMetadata = ["Camera": "Ω ", "place": "Oslo\n2"]
        let stored = try await reference.putDataAsync(Data("hello".utf8), metadata: metadata)
        #expect(stored.bucket == "photos" && stored.path == "images/a ü+%.png")
        #expect(stored.name == "a ü+%.png" && stored.size == 5 && stored.generation > 0)
        #expect(stored.metageneration == 1 && stored.contentType == "image/png")
        #expect(stored.md5Hash == "XUFAKrxLKna5cZ2REBfFkg==" && stored.crc32c == "mnG7TA==")
        #expect(
            stored.cacheControl == "no-cache" && stored.customMetadata == metadata.customMetadata)
        #expect(abs(try #require(stored.timeCreated).timeIntervalSinceNow) < 60)
        #expect(try await reference.getMetadata() == stored)
        #expect(try await reference.data(maxSize: 5) == Data("hello".utf8))

        // Only what was set is sent; nil removes.
        let change = try await reference.getMetadata()
        change.cacheControl = nil
        change.contentLanguage = "no"
        change.customMetadata?["Camera"] = nil
        change.customMetadata?["New"] = "x"
        let changed = try await reference.updateMetadata(change)
        #expect(changed.cacheControl == nil && changed.contentLanguage == "no")
        #expect(changed.customMetadata == ["place": "Oslo\n2", "New": "x"])
        #expect(changed.contentType == "image/png" && changed.metageneration == 2)
        let other = StorageMetadata()
        other.customMetadata = ["third": "3"]
        #expect(try await reference.updateMetadata(other).customMetadata?.count == 3)
        other.customMetadata = nil
        #expect(try await reference.updateMetadata(other).customMetadata == nil)

        try await reference.delete()
        for code in [try await code(reference.getMetadata), try await code(reference.delete)] {
            #expect(code == .objectNotFound)
        }
    }

    private func code<Value>(_ body: () async throws -> Value) async throws -> StorageErrorCode? {
        do {
            _ = try await body()
            return nil
        } catch let error as StorageError {
            return error.reason
        }
    }

    @Test func copiesAndMoves() async throws {
        let gateway = try await GatewayProcess()
        let root = gateway.storage().reference()
        let (source, copy, moved) = (root.child("a ü+%&?.png"), root.child("copies/b"), root.child("moved/c"))
        let metadata = StorageMetadata()
        metadata.cacheControl = "no-cache"
        metadata.customMetadata = ["place": "Oslo"]
        let stored = try await source.putDataAsync(Data("hello".utf8), metadata: metadata)
        let copied = try await source.copy(to: copy)
        #expect(copied.path == "copies/b" && copied.generation != stored.generation && copied.crc32c == stored.crc32c)
        #expect(copied.contentType == "image/png" && copied.customMetadata == ["place": "Oslo"])
        let change = StorageMetadata()
        change.cacheControl = nil
        change.contentType = "text/plain"
        let changed = try await source.copy(to: copy, metadata: change)
        #expect(changed.cacheControl == nil && changed.contentType == "text/plain")
        #expect(changed.customMetadata == ["place": "Oslo"])
        #expect(try await copy.move(to: moved).contentType == "text/plain")
        #expect(try await moved.data(maxSize: 5) == Data("hello".utf8))
        #expect(try await code { try await copy.getMetadata() } == .objectNotFound)
        #expect(try await source.getMetadata() == stored)

        let backup = Storage(url: "http://127.0.0.1:\(gateway.port)", bucket: "backup").reference(withPath: "x ü")
        let kept = try await source.copy(to: backup, metadata: change)
        #expect(kept.bucket == "backup" && kept.contentType == "text/plain" && kept.crc32c == stored.crc32c)
        #expect(try await backup.move(to: copy).bucket == "photos")
        #expect(try await code { try await backup.getMetadata() } == .objectNotFound)
        #expect(try await copy.data(maxSize: 5) == Data("hello".utf8))
        try await copy.delete()

        let other = Storage(url: "http://127.0.0.1:1", bucket: "photos").reference(withPath: "x")
        #expect(try await code { try await source.copy(to: other) } == .bucketMismatch)
        #expect(try await code { try await source.copy(to: root) } == .pathError)
        #expect(try await code { try await root.move(to: source) } == .pathError)
        #expect(try await code { try await copy.copy(to: moved) } == .objectNotFound)
        #expect(try await code { try await copy.move(to: moved) } == .objectNotFound)
    }

    @Test func deletionsOfMany() async throws {
        let gateway = try await GatewayProcess()
        let storage = gateway.storage()
        let kept = storage.reference(withPath: "kept")
        try await kept.putDataAsync(Data())
        // More than one request has.
        let many = (0..<1203).map { storage.reference(withPath: "many/\($0) ü\"") }
        for reference in [many[0], many[999], many[1000], many[1202]] {
            try await reference.putDataAsync(Data())
        }
        #expect(try await storage.delete(many).isEmpty)
        #expect(try await storage.reference().listAll().items == [kept])
        #expect(try await storage.reference().listAll().prefixes.isEmpty)
        #expect(try await storage.delete([]).isEmpty)
        let failures = try await storage.delete([
            kept, storage.reference(withPath: String(repeating: "n", count: 1025)),
        ])
        #expect(failures.map(\.key.fullPath.count) == [1025] && failures.first?.value.problemCode == "invalid-name")
        #expect(try await code { try await kept.getMetadata() } == .objectNotFound)
        let other = Storage(url: "http://127.0.0.1:\(gateway.port)", bucket: "other").reference(withPath: "x")
        #expect(try await code { try await storage.delete([kept, other]) } == .bucketMismatch)
        #expect(try await code { try await storage.delete([storage.reference()]) } == .pathError)
    }

    @Test func aDownloadURL() async throws {
        let gateway = try await GatewayProcess()
        let reference = gateway.storage().reference(withPath: "a b.txt")
        try await reference.putDataAsync(Data("hello".utf8))
        let url = try await reference.downloadURL()
        #expect(
            url.absoluteString.hasPrefix("http://127.0.0.1:\(gateway.port)/b/photos/o/a%20b.txt?"))
        #expect(try await load(url) == Data("hello".utf8))
        #expect(try gateway.storage().reference(for: url) == reference)
    }

    @Test func lists() async throws {
        let gateway = try await GatewayProcess()
        let root = gateway.storage().reference()
        for name in ["a", "b/1", "b/2", "b/c/3", "d ü/4"] {
            try await root.child(name).putDataAsync(Data())
        }
        let all = try await root.listAll()
        #expect(all.prefixes == [root.child("b"), root.child("d ü")])
        #expect(all.items == [root.child("a")] && all.pageToken == nil)
        let folder = try await root.child("b").listAll()
        #expect(folder.prefixes.map(\.fullPath) == ["b/c"])
        #expect(folder.items.map(\.fullPath) == ["b/1", "b/2"])
        #expect(try await root.child("d ü").listAll().items.map(\.name) == ["4"])
        var page = try await root.list(maxResults: 2)
        #expect(page.items.count + page.prefixes.count == 2)
        page = try await root.list(maxResults: 2, pageToken: try #require(page.pageToken))
        #expect(page.prefixes.map(\.fullPath) == ["d ü"] && page.pageToken == nil)
        #expect(try await root.child("none").listAll().items.isEmpty)
        #expect(try await code { try await root.list(maxResults: 1001) } == .invalidArgument)
        #expect(try await code { try await root.list(maxResults: 0) } == .invalidArgument)
        #expect(
            try await code { try await root.list(maxResults: 1, pageToken: "x") } == .unknown)
    }

    @Test func credentials() async throws {
        let token = "s3cr3t-t0ken-of-alice"
        let digest = "4735c1953f3fdf0c2f08d39e1a817ec39d9e34f81c9640c7b11f4884e8143695"
        let gateway = try await GatewayProcess("tokens: { alice: { sha256: \"\(digest)\" } }")
        let storage = gateway.storage()
        let reference = storage.reference(withPath: "private/a")
        let file = URL(filePath: gateway.directory.write("token", "\(token)\n"))
        for credentials in [
            StorageCredentials.token(token), .bearer { token }, .file(file),
        ] {
            storage.credentials = credentials
            try await reference.putDataAsync(pattern(300_000))
            #expect(try await reference.data(maxSize: 300_000) == pattern(300_000))
        }
        // The file is read again, a wrong token is an error, and without one nobody is allowed.
        gateway.directory.write("token", "other")
        #expect(try await code { try await reference.getMetadata() } == .unauthenticated)
        storage.credentials = .none
        #expect(try await code { try await reference.getMetadata() } == .unauthenticated)
        storage.credentials = .token(token)
        let denied = storage.reference(withPath: "denied/a")
        #expect(try await code { try await denied.putDataAsync(Data()) } == .unauthorized)
        #expect(try await code { try await denied.putDataAsync(pattern(300_000)) } == .unauthorized)
    }

    @Test func errorsOfTheGateway() async throws {
        let gateway = try await GatewayProcess()
        let storage = gateway.storage()
        let denied = storage.reference(withPath: "private/a")
        #expect(try await code { try await denied.getMetadata() } == .unauthenticated)
        #expect(try await code { try await denied.putDataAsync(Data()) } == .unauthenticated)
        #expect(
            try await code { try await denied.putDataAsync(pattern(300_000)) } == .unauthenticated)
        let other = Storage(url: "http://127.0.0.1:\(gateway.port)", bucket: "other")
        #expect(
            try await code { try await other.reference(withPath: "a").delete() } == .bucketNotFound)
        let reserved = storage.reference(withPath: ".sluice/x")
        let error = await #expect(throws: StorageError.self) {
            try await reserved.putDataAsync(Data())
        }
        #expect(error?.reason == .unknown && error?.status == 400)
        #expect(error?.problemCode == "invalid-name" && error?.requestID?.isEmpty == false)
        #expect(error?.errorUserInfo["code"] as? String == "invalid-name")
        storage.credentials = .bearer { throw CancellationError() }
        #expect(
            try await code { try await storage.reference(withPath: "a").getMetadata() }
                == .unauthenticated)
        storage.credentials = .token("a\r\nX: y")
        #expect(
            try await code { try await storage.reference(withPath: "a").getMetadata() }
                == .unauthenticated)
    }

    @Test func completions() async throws {
        let gateway = try await GatewayProcess()
        let storage = gateway.storage()
        let queue = DispatchQueue(label: "test")
        storage.callbackQueue = queue
        let reference = storage.reference(withPath: "a.txt")
        let steps = Mutex<[String]>([])
        reference.putData(Data("x".utf8)) { metadata, error in
            dispatchPrecondition(condition: .onQueue(queue))
            steps.withLock { $0.append("put \(metadata?.size ?? -1) \(error == nil)") }
            reference.getMetadata { metadata, _ in
                steps.withLock { $0.append("metadata \(metadata?.size ?? -1)") }
                reference.getData(maxSize: 0) { data, error in
                    steps.withLock {
                        $0.append("data \(data == nil) \((error as NSError?)?.code ?? 0)")
                    }
                    reference.delete { error in
                        steps.withLock { $0.append("delete \(error == nil)") }
                    }
                }
            }
        }
        await eventually { steps.withLock { $0.count } == 4 }
        #expect(
            steps.withLock { $0 } == [
                "put 1 true", "metadata 1", "data true -13032", "delete true",
            ])
    }
}
