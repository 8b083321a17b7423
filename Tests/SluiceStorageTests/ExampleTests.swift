import Foundation
import SluiceStorage
import TestSupport
import Testing

/// The programs of `Examples` with the real gateway.
@Suite struct ExampleTests {
    /// Runs a program; its output is written to `log`.
    private func example(
        _ name: String, _ gateway: GatewayProcess, _ port: UInt16, _ arguments: [String]
    ) throws -> pid_t {
        let log = open(gateway.directory.path + "/example", O_WRONLY | O_CREAT | O_APPEND, 0o600)
        defer { close(log) }
        let variables = ["SLUICE_URL=http://127.0.0.1:\(port)", "SLUICE_BUCKET=photos"]
        let command = ["env"] + variables + [GatewayProcess.path(of: name)] + arguments
        return try spawn(command, output: log)
    }

    /// - Returns: The status, and the largest resident size in KiB.
    private func wait(_ identifier: pid_t) async throws -> (status: Int32, memory: Int) {
        try await onThread {
            var (status, usage) = (Int32(0), rusage())
            wait4(identifier, &status, 0, &usage)
            return (status, usage.ru_maxrss)
        }
    }

    @Test func aTree() async throws {
        let gateway = try await GatewayProcess()
        let root = gateway.storage().reference(withPath: "images")
        for name in ["a", "b/1", "b/c/2"] {
            try await root.child(name).putDataAsync(Data(name.utf8))
        }
        let copy = gateway.directory.path + "/copy"
        let result = try await wait(
            example("ExampleDownload", gateway, gateway.port, ["images", copy]))
        #expect(result.status == 0)
        for name in ["a", "b/1", "b/c/2"] {
            #expect(try String(contentsOfFile: copy + "/" + name, encoding: .utf8) == name)
        }
    }

    /// The client is killed in the middle; the same command continues. Memory does not grow with the file.
    @Test func anUploadThatIsKilled() async throws {
        let size = 100_000_000
        let gateway = try await GatewayProcess()
        let proxy = FaultProxy(gateway.port) { _ in .none }
        let file = gateway.file("file", size: size, seed: 1)
        let arguments = [file.path, "large"]
        let first = try example("ExampleUpload", gateway, proxy.port, arguments)
        await eventually { proxy.sent > 40_000_000 }
        kill(first, SIGKILL)
        _ = try await wait(first)
        let saved = file.path + ".upload"
        #expect(FileManager.default.fileExists(atPath: saved))
        let second = try await wait(example("ExampleUpload", gateway, proxy.port, arguments))
        #expect(second.status == 0 && second.memory < 64 << 10, "\(second.memory) KiB")
        #expect(!FileManager.default.fileExists(atPath: saved))
        // One piece is sent twice at most.
        #expect(proxy.sent < size + 9_000_000)
        let target = URL(filePath: gateway.directory.path + "/target")
        try await gateway.storage().reference(withPath: "large").writeAsync(toFile: target)
        #expect(try Data(contentsOf: target) == pattern(size, 1))
    }
}
