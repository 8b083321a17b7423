import Foundation
import SluiceStorage
import TestSupport
import Testing

/// The programs of `Examples` with the real gateway.
@Suite struct ExampleTests {
    /// Runs a program; its output is written to the file `example`.
    private func example(
        _ name: String, _ gateway: GatewayProcess, _ port: UInt16, _ arguments: [String]
    ) throws -> pid_t {
        let log = open(gateway.directory.path + "/example", O_WRONLY | O_CREAT | O_APPEND, 0o600)
        defer { close(log) }
        let variables = ["SLUICE_URL=http://127.0.0.1:\(port)", "SLUICE_BUCKET=photos"]
        let command = ["env"] + variables + [GatewayProcess.path(of: name)] + arguments
        return try spawn(command, output: log, errors: log)
    }

    /// - Returns: The status.
    private func wait(_ identifier: pid_t) async throws -> Int32 {
        try await onThread {
            var status: Int32 = 0
            waitpid(identifier, &status, 0)
            return status
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
        #expect(result == 0)
        for name in ["a", "b/1", "b/c/2"] {
            #expect(try String(contentsOfFile: copy + "/" + name, encoding: .utf8) == name)
        }
    }

    /// A store has a name with two slashes.
    @Test func aFolderWithoutAName() async throws {
        let gateway = try await GatewayProcess()
        let service = FakeService { request in
            request.query["prefix"] == "images/"
                ? .json(#"{"prefixes": ["images//"], "items": []}"#)
                : FakeService.Response(status: 404)
        }
        let copy = gateway.directory.path + "/copy"
        let result = try await wait(
            example("ExampleDownload", gateway, service.port, ["images", copy]))
        #expect(result == 0 && service.log.count == 1)
    }

    /// The client is killed in the middle; the same command continues.
    @Test func anUploadThatIsKilled() async throws {
        let size = 80 << 20
        let gateway = try await GatewayProcess()
        // Each piece of 8 MiB has a connection of its own. The upload can't end before it is killed.
        let gate = Gate()
        let proxy = FaultProxy(gateway.port) { number in
            if number >= 7 { gate.pass() }
            return .none
        }
        let storage = gateway.storage(proxy)
        let file = URL(filePath: gateway.directory.path + "/file")
        try await onThread {
            _ = FileManager.default.createFile(atPath: file.path, contents: nil)
            let handle = try FileHandle(forWritingTo: file)
            var block = pattern(1 << 20)
            for number in 0..<80 {
                block[0] = UInt8(number)
                try handle.write(contentsOf: block)
            }
            try handle.close()
        }
        let arguments = [file.path, "large"]
        let first = try example("ExampleUpload", gateway, proxy.port, arguments)
        await eventually { proxy.sent > size / 2 }
        kill(first, SIGKILL)
        _ = try await wait(first)
        gate.open()
        let saved = file.path + ".upload"
        #expect(FileManager.default.fileExists(atPath: saved))
        let second = try await wait(example("ExampleUpload", gateway, proxy.port, arguments))
        #expect(second == 0)
        #expect(!FileManager.default.fileExists(atPath: saved))
        // One piece is sent twice at most.
        #expect(proxy.sent < size + 9_000_000)
        let target = URL(filePath: gateway.directory.path + "/target")
        try await storage.reference(withPath: "large").writeAsync(toFile: target)
        #expect(
            try await onThread { try Data(contentsOf: target) == Data(contentsOf: file) })
    }
}
