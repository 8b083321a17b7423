import Foundation
import SluiceStorage
import Synchronization
import TestSupport
import Testing

/// Connections to the real program: over TLS, and with something between that repeats bytes.
@Suite struct ConnectionTests {
    private func error(_ storage: Storage) async -> StorageError? {
        await #expect(throws: StorageError.self) {
            try await storage.reference(withPath: "a").putDataAsync(Data())
        }
    }

    @Test func overTLS() async throws {
        let certificates = try await Certificates()
        let gateway = try await GatewayProcess(https: certificates)
        let proxy = FaultProxy(gateway.port) { _ in .none }
        let storage = gateway.storage(proxy)
        storage.configuration.certificateAuthorities = certificates.authority
        storage.uploadChunkSizeBytes = 100_000
        let reference = storage.reference(withPath: "a/b")
        try await reference.putFileAsync(from: gateway.file("file", size: 1_000_000))
        #expect(try await reference.data(maxSize: 1 << 30) == pattern(1_000_000))
        #expect(try await storage.reference(withPath: "a").listAll().items == [reference])
        // Connections are used again.
        #expect(proxy.connections == 1)

        // The system does not know the authority, which is reported at once.
        let stranger = gateway.storage()
        let untrusted = await error(stranger)
        #expect(untrusted?.reason == .unknown && untrusted?.message.contains("trusted") == true)
        stranger.configuration.certificateAuthorities = URL(filePath: "/nowhere.pem")
        #expect(await error(stranger)?.message.contains("/nowhere.pem") == true)
        let other = Storage(url: "https://localhost:\(gateway.port)", bucket: "photos")
        other.configuration.certificateAuthorities = certificates.authority
        #expect(await error(other)?.reason == .unknown)
    }

    @Test func faultsOverTLS() async throws {
        let certificates = try await Certificates()
        let gateway = try await GatewayProcess(https: certificates)
        let proxy = FaultProxy(gateway.port) { number in
            var fault = FaultProxy.Fault()
            switch number {
            case 0: fault.cutsResponse = 1000
            case 1: fault.cutsRequest = 300_000
            case 2: fault.flipsRequest = 200_000
            case 3: fault.repeatsResponse = 2500
            case 4: fault.cutsResponse = 5000
            default: break
            }
            return fault
        }
        let storage = gateway.storage(proxy)
        storage.configuration.certificateAuthorities = certificates.authority
        storage.uploadChunkSizeBytes = 100_000
        let reference = storage.reference(withPath: "a")
        try await reference.putFileAsync(from: gateway.file("file", size: 1_000_000, seed: 1))
        #expect(try await reference.data(maxSize: 1 << 30) == pattern(1_000_000, 1))
        #expect(proxy.connections > 5)
    }

    @Test func aClientCertificate() async throws {
        let certificates = try await Certificates(asksClients: true)
        let gateway = try await GatewayProcess(https: certificates)
        let storage = gateway.storage()
        storage.configuration.certificateAuthorities = certificates.authority
        storage.configuration.clientCertificate = certificates.client
        storage.configuration.clientKey = certificates.clientKey
        try await storage.reference(withPath: "a").putDataAsync(Data("x".utf8))
        let without = gateway.storage()
        without.configuration.certificateAuthorities = certificates.authority
        without.maxUploadRetryTime = 0.5
        #expect(await error(without)?.reason == .retryLimitExceeded)
    }

    /// Requests and responses come twice, also late: no response is taken for that to another request.
    @Test(arguments: [false, true])
    func everythingTwice(requests: Bool) async throws {
        let gateway = try await GatewayProcess()
        let proxy = FaultProxy(gateway.port) { number in
            var fault = FaultProxy.Fault()
            if requests { fault.repeatsRequest = true } else { fault.repeatsResponse = 0 }
            fault.delay = Double(number % 3) * 0.005
            return fault
        }
        let root = gateway.storage(proxy).reference()
        try await withThrowingTaskGroup { group in
            for number in 0..<4 {
                group.addTask {
                    for round in 0..<5 {
                        let reference = root.child("\(number)/\(round % 2)")
                        let bytes = Data("\(number) \(round)".utf8)
                        #expect(try await reference.putDataAsync(bytes).path == reference.fullPath)
                        #expect(try await reference.getMetadata().size == Int64(bytes.count))
                        #expect(try await reference.data(maxSize: 100) == bytes)
                        try await reference.delete()
                        let error = await #expect(throws: StorageError.self) {
                            try await reference.getMetadata()
                        }
                        #expect(error?.reason == .objectNotFound)
                    }
                }
            }
            try await group.waitForAll()
        }
    }
}
