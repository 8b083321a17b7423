import Foundation
import SluiceStorage
import Synchronization
import TestSupport
import Testing

/// The real program with a bucket `photos` in a temporary directory, as long as its test.
final class GatewayProcess: Sendable {
    /// Allows everybody everything, except below some folders.
    private static let rules = """
        rules_version = '2';
        service firebase.storage {
          match /b/photos/o {
            match /{name=**} {
              allow list: if true;
              allow get, write: if !(request.path[3] in ['private', 'denied']);
            }
            match /private/{name=**} { allow read, write: if request.auth.uid == 'alice'; }
          }
        }
        """

    let directory = TemporaryDirectory()
    let port: UInt16
    private let process = Mutex<pid_t?>(nil)
    /// They run as long as the gateway.
    private let proxies = Mutex<[FaultProxy]>([])

    /// - Parameter options: Lines of configuration.
    init(_ options: String = "") async throws {
        port = freePorts(1)[0]
        directory.write("storage.rules", Self.rules)
        for (verb, file) in [
            (["uploads", "new-key", "k1"], "upload-keys"),
            (["sign", "--new-key", "k1"], "link-keys"),
        ] {
            try Self.keep(verb, directory.path + "/" + file)
        }
        directory.write(
            "sluice.yaml",
            """
            listen: { http: "127.0.0.1:\(port)", operator: "127.0.0.1:\(freePorts(1)[0])" }
            rules: storage.rules
            buckets: { photos: { directory: { path: ./photos } } }
            uploads: { keys: ./upload-keys }
            links: { keys: ./link-keys }
            \(options)
            """)
        try await start()
    }

    deinit { kill() }

    static var program: String {
        URL(filePath: "/proc/self/exe").resolvingSymlinksInPath().deletingLastPathComponent()
            .appending(path: "sluice").path
    }

    /// Writes what the program prints to a file that only its owner may read.
    private static func keep(_ verb: [String], _ path: String) throws {
        let output = open(path, O_WRONLY | O_CREAT, 0o600)
        defer { close(output) }
        var status: Int32 = 0
        waitpid(try spawn([program] + verb, output: output), &status, 0)
        try #require(status == 0)
    }

    /// Starts the program and waits until it accepts connections.
    func start() async throws {
        let log = open(directory.path + "/log", O_WRONLY | O_CREAT | O_APPEND, 0o600)
        defer { close(log) }
        let identifier = try spawn(
            [Self.program, "serve", "--config", directory.path + "/sluice.yaml"], output: log)
        process.withLock { $0 = identifier }
        await eventually { Socket.connect(self.port).map { _ = close($0) } != nil }
    }

    /// Kills it as `kill -9` does.
    func kill() {
        guard let identifier = process.withLock({ $0.take() }) else { return }
        Foundation.kill(identifier, SIGKILL)
        var status: Int32 = 0
        waitpid(identifier, &status, 0)
    }

    /// A storage of its own at the gateway, or at a proxy before it.
    func storage(_ proxy: FaultProxy? = nil) -> Storage {
        if let proxy { proxies.withLock { $0.append(proxy) } }
        return Storage(url: "http://127.0.0.1:\(proxy?.port ?? port)", bucket: "photos")
    }

    /// Writes a file of bytes that depend on their offset and on `seed`.
    func file(_ name: String, size: Int, seed: UInt8 = 0) -> URL {
        URL(filePath: directory.write(name, Array(pattern(size, seed))))
    }
}

/// Bytes that differ with their offset and with `seed`.
func pattern(_ size: Int, _ seed: UInt8 = 0) -> Data {
    var state = UInt32(seed) &* 0x9e37_79b9 &+ 1
    var bytes = [UInt8](repeating: 0, count: size)
    bytes.withUnsafeMutableBytes { buffer in
        var offset = 0
        while offset < size {
            state = state &* 1_664_525 &+ 1_013_904_223
            buffer[offset] = UInt8(truncatingIfNeeded: state >> 24)
            offset += 1
        }
    }
    return Data(bytes)
}

enum Socket {
    /// A connection to a port of this machine.
    static func connect(_ port: UInt16) -> Int32? {
        withAddress(port) { descriptor, address, size in
            if Glibc.connect(descriptor, address, size) == 0 { return descriptor }
            close(descriptor)
            return nil
        }
    }

    /// A listener on a port of this machine that the kernel chooses.
    static func listen() -> (descriptor: Int32, port: UInt16)? {
        withAddress(0) { descriptor, address, size in
            var size = size
            guard bind(descriptor, address, size) == 0, Glibc.listen(descriptor, 64) == 0,
                getsockname(descriptor, address, &size) == 0
            else { return nil }
            let port = address.withMemoryRebound(to: sockaddr_in.self, capacity: 1) {
                UInt16(bigEndian: $0.pointee.sin_port)
            }
            return (descriptor, port)
        }
    }

    private static func withAddress<Result>(
        _ port: UInt16,
        _ body: (Int32, UnsafeMutablePointer<sockaddr>, socklen_t) -> Result
    ) -> Result {
        let descriptor = socket(AF_INET, Int32(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue), 0)
        var address = sockaddr_in()
        address.sin_family = sa_family_t(AF_INET)
        address.sin_port = port.bigEndian
        address.sin_addr.s_addr = UInt32(0x7f00_0001).bigEndian
        let size = socklen_t(MemoryLayout<sockaddr_in>.size)
        return withUnsafeMutablePointer(to: &address) {
            $0.withMemoryRebound(to: sockaddr.self, capacity: 1) { body(descriptor, $0, size) }
        }
    }
}
