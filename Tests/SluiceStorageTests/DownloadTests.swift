import Foundation
import Synchronization
import TestSupport
import Testing

@testable import SluiceStorage

/// Downloads from the real program, also through a proxy that damages connections.
@Suite struct DownloadTests {
    private static let size = 9_000_000

    private func start(_ plan: @escaping @Sendable (Int) -> FaultProxy.Fault) async throws
        -> (GatewayProcess, FaultProxy, StorageReference)
    {
        let gateway = try await GatewayProcess()
        let proxy = FaultProxy(gateway.port, plan)
        return (gateway, proxy, gateway.storage(proxy).reference(withPath: "large.bin"))
    }

    private func seed(_ gateway: GatewayProcess, _ bytes: Data) async throws {
        try await gateway.storage().reference(withPath: "large.bin").putDataAsync(bytes)
    }

    private func leftovers(_ gateway: GatewayProcess) -> [String] {
        entries(gateway.directory.path).filter { $0.hasPrefix(".sluice") }
    }

    @Test func memoryAndFiles() async throws {
        let (gateway, _, reference) = try await start { _ in .none }
        for size in [0, 1, 8 << 20, Self.size] {
            let bytes = pattern(size, 1)
            try await seed(gateway, bytes)
            #expect(try await reference.data(maxSize: Int64(size)) == bytes)
            let target = URL(filePath: gateway.directory.path + "/target")
            try Data("old".utf8).write(to: target)
            let progress = Mutex<[Double]>([])
            let file = try await reference.writeAsync(toFile: target) { value in
                progress.withLock { $0.append(value?.fractionCompleted ?? -1) }
            }
            #expect(file == target)
            #expect(try Data(contentsOf: target) == bytes)
            let seen = progress.withLock { $0 }
            #expect(seen == seen.sorted() && (size == 0 || seen.last == 1))
            #expect(leftovers(gateway).isEmpty)
        }
        let error = await #expect(throws: StorageError.self) {
            try await reference.data(maxSize: Int64(Self.size - 1))
        }
        #expect(error?.reason == .downloadSizeExceeded)
    }

    @Test func connectionsThatAreCut() async throws {
        let (gateway, proxy, reference) = try await start { number in
            var fault = FaultProxy.Fault()
            switch number {
            case 0: fault.cutsResponse = 100
            case 1: fault.cutsResponse = 5_000_000
            case 2: fault.cutsRequest = 30
            case 3: fault.repeatsResponse = 3_000_000
            case 4: fault.cutsResponse = 2_000_000
            case 5: fault.repeatsResponse = 0
            default: break
            }
            return fault
        }
        let bytes = pattern(Self.size, 2)
        try await seed(gateway, bytes)
        let target = URL(filePath: gateway.directory.path + "/target")
        _ = try await reference.writeAsync(toFile: target)
        #expect(try Data(contentsOf: target) == bytes)
        #expect(proxy.connections > 5)
        #expect(try await reference.data(maxSize: .max) == bytes)
    }

    /// The object is replaced in the middle: the file has the bytes of one version.
    @Test func anObjectThatIsReplaced() async throws {
        // The first range waits until the pause.
        let gate = Gate()
        let (gateway, proxy, reference) = try await start { number in
            if number == 1 { gate.pass() }
            return .none
        }
        try await seed(gateway, pattern(Self.size, 3))
        let target = URL(filePath: gateway.directory.path + "/target")
        let task = reference.write(toFile: target)
        await eventually { proxy.connections == 2 }
        task.pause()
        gate.open()
        await eventually { task.snapshot.status == .pause }
        try await seed(gateway, pattern(Self.size + 5, 4))
        task.resume()
        for await _ in task.snapshots {}
        #expect(task.snapshot.status == .success)
        #expect(try Data(contentsOf: target) == pattern(Self.size + 5, 4))
    }

    @Test func whatFailsLeavesTheOldFile() async throws {
        let (gateway, _, reference) = try await start { _ in .none }
        let target = URL(filePath: gateway.directory.path + "/target")
        try Data("old".utf8).write(to: target)
        var error = await #expect(throws: StorageError.self) {
            try await reference.writeAsync(toFile: target)
        }
        #expect(error?.reason == .objectNotFound)
        try await seed(gateway, pattern(Self.size))
        let task = reference.write(toFile: target)
        await eventually { task.snapshot.progress!.completedUnitCount > 0 }
        task.cancel()
        for await _ in task.snapshots {}
        #expect(
            task.snapshot.storageError?.reason == .cancelled || task.snapshot.status == .success)
        error = await #expect(throws: StorageError.self) {
            try await reference.writeAsync(toFile: URL(filePath: "/nowhere/target"))
        }
        #expect(error?.reason == .unknown)
        // The bytes on the disk are damaged: the last byte of the largest file of the bucket.
        try damage(gateway)
        error = await #expect(throws: StorageError.self) {
            try await reference.writeAsync(toFile: target)
        }
        #expect(error?.reason == .nonMatchingChecksum)
        #expect(leftovers(gateway).isEmpty)
    }

    private func damage(_ gateway: GatewayProcess) throws {
        let bucket = URL(filePath: gateway.directory.path + "/photos")
        let files = try #require(
            FileManager.default.enumerator(at: bucket, includingPropertiesForKeys: nil))
        var damaged = 0
        for case let file as URL in files {
            let size =
                try FileManager.default.attributesOfItem(atPath: file.path)[.size] as? NSNumber
            guard size?.intValue == Self.size else { continue }
            let handle = try FileHandle(forUpdating: file)
            try handle.seek(toOffset: UInt64(Self.size - 1))
            let last = try #require(try handle.read(upToCount: 1))
            try handle.seek(toOffset: UInt64(Self.size - 1))
            try handle.write(contentsOf: Data([last[last.startIndex] ^ 1]))
            try handle.close()
            damaged += 1
        }
        try #require(damaged > 0)
    }
}
