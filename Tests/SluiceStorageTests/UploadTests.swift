import Foundation
import Synchronization
import TestSupport
import Testing

@testable import SluiceStorage

/// Uploads to the real program, also through a proxy that damages connections.
@Suite struct UploadTests {
    private static let chunk: Int64 = 64 << 10
    private static let size = 2_000_000

    private func start(
        _ options: String = "", _ plan: (@Sendable (Int) -> FaultProxy.Fault)? = nil
    ) async throws -> (GatewayProcess, FaultProxy?, StorageReference) {
        let gateway = try await GatewayProcess(options)
        let proxy = plan.map { FaultProxy(gateway.port, $0) }
        let storage = gateway.storage(proxy)
        storage.uploadChunkSizeBytes = Self.chunk
        return (gateway, proxy, storage.reference(withPath: "large.bin"))
    }

    /// The object as the gateway has it, read without a proxy.
    private func stored(_ gateway: GatewayProcess, _ name: String = "large.bin") async throws
        -> Data
    {
        try await gateway.storage().reference(withPath: name).data(maxSize: 1 << 30)
    }

    @Test(arguments: [0, 1, 262_144, 262_145, 327_680, 2_000_000])
    func sizes(size: Int) async throws {
        let (gateway, _, reference) = try await start()
        let file = gateway.file("file.JPG", size: size)
        for stored in [
            try await reference.putFileAsync(from: file),
            try await reference.child("data").putDataAsync(pattern(size)),
        ] {
            #expect(stored.size == Int64(size))
            #expect(
                stored.contentType
                    == (stored.name == "data" ? "application/octet-stream" : "image/jpeg"))
        }
        #expect(try await self.stored(gateway) == pattern(size))
        #expect(try await self.stored(gateway, "large.bin/data") == pattern(size))
        let typed = try await reference.putFileAsync(
            from: file, metadata: StorageMetadata(contentType: "a/b"))
        #expect(typed.contentType == "a/b")
    }

    @Test func eventsAreInOrder() async throws {
        let (gateway, _, reference) = try await start()
        let events = Mutex<[(StorageTaskStatus, Int64)]>([])
        let task = reference.putFile(from: gateway.file("file", size: Self.size)) {
            metadata, error in
            #expect(metadata?.size == Int64(Self.size) && error == nil)
            events.withLock { $0.append((.unknown, 0)) }
        }
        for status in [StorageTaskStatus.resume, .progress, .pause, .success, .failure] {
            task.observe(status) { snapshot in
                #expect(snapshot.status == status && snapshot.task === task)
                events.withLock { $0.append((status, snapshot.progress!.completedUnitCount)) }
            }
        }
        var fractions: [Double] = []
        for await snapshot in task.snapshots {
            fractions.append(snapshot.progress!.fractionCompleted)
        }
        #expect(fractions.last == 1 && fractions == fractions.sorted() && fractions.count > 2)
        await eventually { events.withLock { $0.last?.0 } == .unknown }
        let seen = events.withLock { $0 }
        #expect(seen.map(\.0).filter { $0 != .progress } == [.resume, .success, .unknown])
        let progress = seen.filter { $0.0 == .progress }.map(\.1)
        #expect(progress == progress.sorted() && progress.last == Int64(Self.size))
        #expect(seen.dropLast(2).last?.0 == .progress)
        #expect(task.resumptionData == nil && task.snapshot.metadata?.size == Int64(Self.size))
        // An observer that is added after the end gets the end.
        let late = Mutex(0)
        task.observe(.success) { _ in late.withLock { $0 += 1 } }
        task.observe(.failure) { _ in late.withLock { $0 += 10 } }
        await eventually { late.withLock { $0 } == 1 }
    }

    @Test func connectionsThatAreCut() async throws {
        let (gateway, proxy, reference) = try await start { number in
            var fault = FaultProxy.Fault()
            // Between requests, in heads, in bodies, and in responses.
            if number < 12 {
                let cut = 400 + number * 30_011
                if number % 3 == 0 {
                    fault.cutsResponse = 50 + number * 40
                } else {
                    fault.cutsRequest = cut
                }
            }
            return fault
        }
        let before = Self.size
        try await reference.putFileAsync(from: gateway.file("file", size: Self.size, seed: 3))
        #expect(try await stored(gateway) == pattern(Self.size, 3))
        #expect(try #require(proxy).connections > 12)
        // Each cut repeats a piece at most.
        #expect(try #require(proxy).sent < before + 14 * (Int(Self.chunk) + 4096))
    }

    @Test func bytesThatAreDamaged() async throws {
        let (gateway, _, reference) = try await start { number in
            var fault = FaultProxy.Fault()
            switch number {
            case 1: fault.flipsRequest = 30_000
            case 2: fault.repeatsResponse = 0
            case 3: fault.repeatsResponse = 70
            case 4: fault.delay = 0.05
            case 5: fault.flipsRequest = 100
            default: break
            }
            return fault
        }
        try await reference.putFileAsync(from: gateway.file("file", size: Self.size, seed: 4))
        #expect(try await stored(gateway) == pattern(Self.size, 4))
        let small = reference.child("small")
        try await small.putDataAsync(pattern(100_000))
        #expect(try await stored(gateway, "large.bin/small") == pattern(100_000))
    }

    @Test func aGatewayThatIsKilled() async throws {
        let (gateway, proxy, reference) = try await start("") { _ in .none }
        let kills = Mutex(0)
        let task = reference.putFile(from: gateway.file("file", size: Self.size, seed: 5))
        // Kills at different moments of a request.
        for await snapshot in task.snapshots where snapshot.status == .progress {
            let done = snapshot.progress!.completedUnitCount
            let count = kills.withLock { $0 }
            guard count < 4, done > Int64(count) * 300_000 else { continue }
            kills.withLock { $0 += 1 }
            gateway.kill()
            try await gateway.start()
        }
        #expect(task.snapshot.status == .success && task.snapshot.error == nil)
        #expect(kills.withLock { $0 } == 4)
        #expect(try await stored(gateway) == pattern(Self.size, 5))
        #expect(try #require(proxy).sent < Self.size + 5 * (Int(Self.chunk) + 4096) + 40 * 1024)
    }

    @Test func pauseResumeAndCancelFromManyThreads() async throws {
        let (gateway, _, reference) = try await start()
        let task = reference.putFile(from: gateway.file("file", size: Self.size, seed: 6))
        await withTaskGroup { group in
            for number in 0..<8 {
                group.addTask {
                    for round in 0..<50 { (number + round) % 2 == 0 ? task.pause() : task.resume() }
                }
            }
        }
        task.pause()
        await eventually { [.pause, .success].contains(task.snapshot.status) }
        task.resume()
        for await _ in task.snapshots {}
        #expect(task.snapshot.status == .success)
        #expect(try await stored(gateway) == pattern(Self.size, 6))

        let cancelled = reference.child("cancelled").putFile(
            from: gateway.file("file2", size: Self.size))
        await withTaskGroup { group in
            for number in 0..<4 {
                group.addTask { number == 2 ? cancelled.cancel() : cancelled.resume() }
            }
        }
        for await _ in cancelled.snapshots {}
        #expect(
            cancelled.snapshot.storageError?.reason == .cancelled && cancelled.resumptionData == nil
        )
        await #expect(throws: StorageError.self) {
            try await stored(gateway, "large.bin/cancelled")
        }
    }

    @Test func aPausedUploadSendsNothing() async throws {
        let (gateway, proxy, reference) = try await start("") { _ in .none }
        let task = reference.putFile(from: gateway.file("file", size: Self.size))
        let paused = Mutex(0)
        task.observe(.pause) { _ in paused.withLock { $0 += 1 } }
        task.pause()
        await eventually { task.snapshot.status == .pause }
        await eventually { paused.withLock { $0 } == 1 }
        let sent = try #require(proxy).sent
        #expect(task.snapshot.status == .pause && sent < 4 * Int(Self.chunk))
        // The gateway restarts meanwhile.
        gateway.kill()
        try await gateway.start()
        #expect(try #require(proxy).sent == sent)
        task.resume()
        for await _ in task.snapshots {}
        #expect(task.snapshot.status == .success)
        // A cancelled pause ends too.
        let other = reference.child("other").putFile(from: gateway.file("file2", size: Self.size))
        other.pause()
        await eventually { other.snapshot.status == .pause }
        other.cancel()
        for await _ in other.snapshots {}
        #expect(other.snapshot.storageError?.reason == .cancelled)
    }

    @Test func anotherProcessContinues() async throws {
        let gate = Gate()
        let (gateway, proxy, reference) = try await start("") { number in
            if number >= 12 { gate.pass() }
            return .none
        }
        let file = gateway.file("file", size: Self.size, seed: 7)
        let first = reference.putFile(from: file)
        await eventually { first.snapshot.progress!.completedUnitCount > 500_000 }
        first.pause()
        gate.open()
        await eventually { first.snapshot.status == .pause }
        let text = try JSONEncoder().encode(try #require(first.resumptionData))
        let sent = try #require(proxy).sent

        let saved = try JSONDecoder().decode(StorageUploadResumptionData.self, from: text)
        #expect(saved.path == "large.bin" && saved.bucket == "photos")
        let second = reference.resumeUpload(from: saved, file: file)
        for await _ in second.snapshots {}
        #expect(
            second.snapshot.status == .success && second.snapshot.metadata?.size == Int64(Self.size)
        )
        #expect(try await stored(gateway) == pattern(Self.size, 7))
        #expect(try #require(proxy).sent - sent < Self.size - 400_000)
        // The upload is complete: the first process gets the result too.
        first.resume()
        for await _ in first.snapshots {}
        #expect(first.snapshot.metadata?.generation == second.snapshot.metadata?.generation)

        // Another object, another file, and an upload that the gateway does not know.
        let wrong = reference.child("x").resumeUpload(from: saved, file: file)
        for await _ in wrong.snapshots {}
        #expect(wrong.snapshot.storageError?.reason == .invalidArgument)
        let changed = reference.resumeUpload(
            from: saved, file: gateway.file("file3", size: Self.size))
        for await _ in changed.snapshots {}
        #expect(changed.snapshot.storageError?.reason == .unknown)
        let unknown = StorageUploadResumptionData(
            bucket: "photos", path: "large.bin",
            session: "/b/photos/u/" + String(repeating: "A", count: 80),
            file: saved.file, fields: saved.fields)
        let again = reference.resumeUpload(from: unknown, file: file)
        for await _ in again.snapshots {}
        #expect(again.snapshot.status == .success)
    }

    @Test func aFileThatChanges() async throws {
        let gate = Gate()
        let (gateway, _, reference) = try await start("") { number in
            if number >= 12 { gate.pass() }
            return .none
        }
        let file = gateway.file("file", size: Self.size)
        let task = reference.putFile(from: file)
        await eventually { task.snapshot.progress!.completedUnitCount > 200_000 }
        task.pause()
        gate.open()
        await eventually { task.snapshot.status == .pause }
        let handle = try FileHandle(forWritingTo: file)
        try handle.write(contentsOf: Data("changed".utf8))
        try handle.close()
        task.resume()
        for await _ in task.snapshots {}
        #expect(task.snapshot.storageError?.message.contains("has changed") == true)
        await #expect(throws: StorageError.self) { try await stored(gateway) }
        let error = await #expect(throws: StorageError.self) {
            try await reference.putFileAsync(from: URL(filePath: "/nowhere/file"))
        }
        #expect(error?.reason == .unknown)
        await #expect(throws: StorageError.self) {
            try await reference.putFileAsync(from: URL(filePath: "/tmp"))
        }
    }

    @Test func theRetryTimeExpires() async throws {
        let (gateway, _, reference) = try await start("") { _ in
            var fault = FaultProxy.Fault()
            fault.isSilent = true
            return fault
        }
        let storage = reference.storage
        storage.maxUploadRetryTime = 1
        storage.maxOperationRetryTime = 1
        storage.maxDownloadRetryTime = 1
        for operation: @Sendable () async throws -> Void in [
            { try await reference.putDataAsync(Data()) },
            { try await reference.putFileAsync(from: gateway.file("file", size: Self.size)) },
            { _ = try await reference.getMetadata() }, { _ = try await reference.data(maxSize: 1) },
        ] {
            let error = await #expect(throws: StorageError.self) { try await operation() }
            #expect(error?.reason == .retryLimitExceeded)
        }
        gateway.kill()
        let refused = gateway.storage()
        refused.maxOperationRetryTime = 0.5
        let error = await #expect(throws: StorageError.self) {
            try await refused.reference(withPath: "a").getMetadata()
        }
        #expect(error?.reason == .retryLimitExceeded)
    }

    @Test func aCancelledTaskCancelsItsUpload() async throws {
        let (gateway, _, reference) = try await start("") { _ in
            var fault = FaultProxy.Fault()
            fault.isSilent = true
            return fault
        }
        let file = gateway.file("file", size: Self.size)
        let upload = Task { try await reference.putFileAsync(from: file) }
        let metadata = Task { try await reference.getMetadata() }
        upload.cancel()
        metadata.cancel()
        for result in [await upload.result, await metadata.result] {
            let error = #expect(throws: StorageError.self) { try result.get() }
            #expect(error?.reason == .cancelled)
        }
    }
}
