import Foundation
import HTTPClient
import Synchronization
import TestSupport
import Testing

@testable import SluiceStorage

/// Transfers that are continued, and what is left of those that are not.
@Suite struct ContinuationTests {
    private static let size = 9_000_000

    /// A proxy that passes on the first connections of an upload, and the others when the gate is open.
    private func held(_ gateway: GatewayProcess) -> (FaultProxy, Gate) {
        let gate = Gate()
        let proxy = FaultProxy(gateway.port) { number in
            if number >= 3 { gate.pass() }
            return .none
        }
        return (proxy, gate)
    }

    /// The gateway has lost its keys: the upload begins again, with the metadata of its beginning.
    @Test func metadataOfAnUploadThatBeginsAgain() async throws {
        let gateway = try await GatewayProcess()
        let (proxy, gate) = held(gateway)
        let storage = gateway.storage(proxy)
        storage.uploadChunkSizeBytes = 100_000
        let reference = storage.reference(withPath: "a")
        let file = gateway.file("file.txt", size: 1_000_000)
        let metadata = StorageMetadata(contentType: "image/x-a")
        metadata.customMetadata = ["Place": "Oslo"]
        metadata.cacheControl = "no-cache"
        let task = reference.putFile(from: file, metadata: metadata)
        await eventually { task.snapshot.progress!.completedUnitCount > 0 }
        task.pause()
        gate.open()
        await eventually { task.snapshot.status == .pause }
        let text = try JSONEncoder().encode(try #require(task.resumptionData))

        gateway.kill()
        gateway.directory.write("upload-keys", "k2 YU2Ty2Ej3JUkbQkyqFzkQviU9Tfq2L--XYD96kx2fDM\n")
        try await gateway.start()
        let saved = try JSONDecoder().decode(StorageUploadResumptionData.self, from: text)
        let continued = reference.resumeUpload(from: saved, file: file)
        for await _ in continued.snapshots {}
        let stored = try #require(continued.snapshot.metadata)
        #expect(stored.contentType == "image/x-a" && stored.cacheControl == "no-cache")
        #expect(stored.customMetadata == ["Place": "Oslo"])
        #expect(try await reference.data(maxSize: 1 << 30) == pattern(1_000_000))
        task.cancel()
        for await _ in task.snapshots {}
    }

    private func status(_ gateway: GatewayProcess, _ session: String) async throws -> Int {
        try await TestLoop.run { [port = gateway.port] in
            let origin = Origin(.http, host: "127.0.0.1", port: port)
            let upstream = Upstream(UpstreamSettings(name: "test", origin: origin))
            let response = try await upstream.call(ClientRequest("HEAD", session))
            await upstream.close()
            return response.status
        }
    }

    @Test func aCancelledUploadLeavesNothing() async throws {
        let gateway = try await GatewayProcess()
        let (proxy, gate) = held(gateway)
        let storage = gateway.storage(proxy)
        storage.uploadChunkSizeBytes = 100_000
        let task = storage.reference(withPath: "a").putFile(
            from: gateway.file("file", size: 1_000_000))
        await eventually { task.snapshot.progress!.completedUnitCount > 0 }
        task.pause()
        gate.open()
        await eventually { task.snapshot.status == .pause }
        let session = try #require(task.resumptionData).session
        #expect(try await status(gateway, session) == 204)
        task.cancel()
        for await _ in task.snapshots {}
        #expect(task.snapshot.storageError?.reason == .cancelled)
        #expect(try await status(gateway, session) == 404)
    }

    /// Begins the upload of a file, and pauses it in the middle.
    private func paused(_ gateway: GatewayProcess, _ file: URL) async throws
        -> (StorageUploadTask, StorageUploadResumptionData)
    {
        let (proxy, gate) = held(gateway)
        let storage = gateway.storage(proxy)
        storage.uploadChunkSizeBytes = 100_000
        let task = storage.reference(withPath: "a").putFile(from: file)
        await eventually { task.snapshot.progress!.completedUnitCount > 0 }
        task.pause()
        gate.open()
        await eventually { task.snapshot.status == .pause }
        return (task, try #require(task.resumptionData))
    }

    private func end(_ task: StorageUploadTask) async -> StorageTaskSnapshot {
        for await _ in task.snapshots {}
        return task.snapshot
    }

    /// The gateway repeats the result of a complete upload without a look at its object.
    @Test func aCompleteUploadWhoseObjectIsGone() async throws {
        let gateway = try await GatewayProcess()
        let file = gateway.file("file", size: 1_000_000)
        let (task, saved) = try await paused(gateway, file)
        task.resume()
        let first = try #require(await end(task).metadata)
        let reference = gateway.storage().reference(withPath: "a")
        let same = await end(reference.resumeUpload(from: saved, file: file))
        #expect(same.metadata?.generation == first.generation)

        try await reference.putDataAsync(Data("other".utf8))
        let second = await end(reference.resumeUpload(from: saved, file: file))
        #expect(second.status == .success && second.metadata?.generation != first.generation)
        #expect(try await reference.data(maxSize: 1 << 30) == pattern(1_000_000))

        try await reference.delete()
        let third = await end(reference.resumeUpload(from: saved, file: file))
        #expect(third.status == .success && third.progress!.fractionCompleted == 1)
        #expect(try await reference.getMetadata() == third.metadata)
    }

    /// What can't be continued is not offered again.
    @Test func resumptionDataThatIsOfNoUse() async throws {
        let gateway = try await GatewayProcess()
        let file = gateway.file("file", size: 1_000_000)
        let (task, saved) = try await paused(gateway, file)
        let reference = gateway.storage().reference(withPath: "a")
        let other = reference.root().child("b").resumeUpload(from: saved, file: file)
        #expect(
            await end(other).storageError?.reason == .invalidArgument && other.resumptionData == nil
        )
        #expect(try await status(gateway, saved.session) == 204)

        let damaged = StorageUploadResumptionData(
            bucket: "photos", path: "a", session: "", file: saved.file, fields: [])
        let again = reference.resumeUpload(from: damaged, file: file)
        #expect(await end(again).status == .success)

        try Data("changed".utf8).write(to: file)
        let changed = reference.resumeUpload(from: saved, file: file)
        #expect(await end(changed).storageError?.message.contains("has changed") == true)
        #expect(changed.resumptionData == nil)
        #expect(try await status(gateway, saved.session) == 404)
        task.cancel()
        _ = await end(task)
    }

    /// The connection fails in the middle, and another task has only the rest to load.
    @Test func aDownloadThatIsContinued() async throws {
        let gateway = try await GatewayProcess()
        try await gateway.storage().reference(withPath: "large").putDataAsync(pattern(Self.size, 1))
        let first = FaultProxy(gateway.port) { number in
            var fault = FaultProxy.Fault()
            fault.isSilent = number > 1
            return fault
        }
        let folder = gateway.directory.path
        let target = URL(filePath: folder + "/target")
        let failing = gateway.storage(first)
        failing.maxDownloadRetryTime = 10
        let error = await #expect(throws: StorageError.self) {
            try await failing.reference(withPath: "large").writeAsync(toFile: target)
        }
        #expect(error?.reason == .retryLimitExceeded)
        let parts = entries(folder).filter { $0.hasSuffix(".part") }
        #expect(parts.count == 1)

        let second = FaultProxy(gateway.port) { _ in .none }
        let reference = gateway.storage(second).reference(withPath: "large")
        try await reference.writeAsync(toFile: target)
        #expect(try Data(contentsOf: target) == pattern(Self.size, 1))
        #expect(second.received < 1_000_000)
        #expect(entries(folder).filter { $0.hasSuffix(".part") }.isEmpty)

        // What is left of a killed download is verified, and that of another version is removed.
        let part = try #require(parts.first)
        try pattern(100_000, 9).write(to: URL(filePath: folder + "/" + part))
        try await reference.writeAsync(toFile: target)
        #expect(try Data(contentsOf: target) == pattern(Self.size, 1))
        try pattern(100_000, 9).write(to: URL(filePath: folder + "/" + part))
        try await gateway.storage().reference(withPath: "large").putDataAsync(pattern(Self.size, 2))
        try await reference.writeAsync(toFile: target)
        #expect(try Data(contentsOf: target) == pattern(Self.size, 2))
        #expect(entries(folder).filter { $0.hasSuffix(".part") }.isEmpty)
    }

    @Test func twoDownloadsToOneFile() async throws {
        let gateway = try await GatewayProcess()
        let reference = gateway.storage().reference(withPath: "large")
        try await reference.putDataAsync(pattern(Self.size, 1))
        let target = URL(filePath: gateway.directory.path + "/target")
        async let first = reference.writeAsync(toFile: target)
        async let second = reference.writeAsync(toFile: target)
        _ = try await (first, second)
        #expect(try Data(contentsOf: target) == pattern(Self.size, 1))
        #expect(entries(gateway.directory.path).filter { $0.hasSuffix(".part") }.isEmpty)
    }

    @Test func filesOfOtherKinds() async throws {
        let gateway = try await GatewayProcess()
        let reference = gateway.storage().reference(withPath: "a")
        let folder = gateway.directory.path
        let file = gateway.file("file", size: 1000)
        try FileManager.default.createSymbolicLink(
            atPath: folder + "/link", withDestinationPath: "file")
        mkfifo(folder + "/fifo", 0o600)
        #expect(
            try await reference.putFileAsync(from: URL(filePath: folder + "/link")).size == 1000)
        for path in ["/fifo", "/photos", "/none"] {
            let error = await #expect(throws: StorageError.self) {
                try await reference.putFileAsync(from: URL(filePath: folder + path))
            }
            #expect(error?.reason == .unknown)
        }
        // A link is followed, and the permissions of a file are kept.
        try await reference.putDataAsync(pattern(500, 3))
        try await reference.writeAsync(toFile: URL(filePath: folder + "/link"))
        #expect(try Data(contentsOf: file) == pattern(500, 3))
        let attributes = try FileManager.default.attributesOfItem(atPath: file.path)
        #expect(attributes[.posixPermissions] as? Int == 0o600)
        for path in ["/fifo", "/photos", "/none/x"] {
            let error = await #expect(throws: StorageError.self) {
                try await reference.writeAsync(toFile: URL(filePath: folder + path))
            }
            #expect(error?.reason == .unknown)
        }
    }
}
