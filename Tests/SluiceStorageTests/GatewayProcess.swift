import Foundation
import HTTPClient
import SluiceStorage
import Synchronization
import TestSupport
import Testing

/// The real program with a bucket `photos` in a temporary directory, as long as its test.
final class GatewayProcess: Sendable {
    /// Allows everybody everything, except below some folders.
    static let rules = """
        rules_version = '2';
        service firebase.storage {
          match /b/{bucket}/o {
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
    private let scheme: String
    private let process = Mutex<pid_t?>(nil)
    /// They run as long as the gateway.
    private let proxies = Mutex<[FaultProxy]>([])

    /// - Parameters:
    ///   - options: Lines of configuration.
    ///   - https: The certificates of a listener with TLS; nil for clear text.
    init(_ options: String = "", https: Certificates? = nil, rules: String = rules) async throws {
        port = freePorts(1)[0]
        scheme = https == nil ? "http" : "https"
        directory.write("storage.rules", rules)
        directory.write("upload-keys", "k1 1WstpC3BgO86AFEsOuCpsjvwIT7Oy_TpMb8MdJI0uRU\n")
        directory.write("link-keys", "k1 YU2Ty2Ej3JUkbQkyqFzkQviU9Tfq2L--XYD96kx2fDM\n")
        let address = "127.0.0.1:\(port)"
        let listener =
            https.map { "http: null, https: { address: \"\(address)\", \($0.options) }" }
            ?? "http: \"\(address)\""
        directory.write(
            "sluice.yaml",
            """
            listen: { \(listener), operator: "127.0.0.1:\(freePorts(1)[0])" }
            rules: storage.rules
            buckets: { photos: { directory: { path: ./photos } }, backup: { directory: { path: ./backup } } }
            uploads: { keys: ./upload-keys }
            links: { keys: ./link-keys }
            \(options)
            """)
        try await start()
    }

    deinit { kill() }

    static var program: String { path(of: "sluice") }

    /// A program that was built with the tests.
    static func path(of program: String) -> String {
        URL(filePath: "/proc/self/exe").resolvingSymlinksInPath().deletingLastPathComponent()
            .appending(path: program).path
    }

    /// Starts the program and waits until it accepts connections.
    func start() async throws {
        try await onThread { [self] in
            let path = directory.path + "/log"
            let log = open(path, O_WRONLY | O_CREAT | O_APPEND, 0o600)
            defer { close(log) }
            // The variable of other tests is none of the gateway's keys.
            let identifier = try spawn(
                [
                    "env", "-u", "SLUICE_UPSTREAMS", Self.program, "serve", "--config",
                    directory.path + "/sluice.yaml",
                ], output: log, errors: log)
            process.withLock { $0 = identifier }
            for _ in 0..<6000 {
                if let connection = Socket.connect(port) {
                    close(connection)
                    return
                }
                usleep(10_000)
            }
            let text = (try? String(contentsOfFile: path, encoding: .utf8)) ?? ""
            Issue.record("the gateway does not start: \(text)")
        }
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
        return Storage(
            url: "\(scheme)://127.0.0.1:\(proxy?.port ?? port)", bucket: "photos")
    }

    /// Writes a file of bytes that depend on their offset and on `seed`.
    func file(_ name: String, size: Int, seed: UInt8 = 0) -> URL {
        URL(filePath: directory.write(name, Array(pattern(size, seed))))
    }
}

/// Runs what blocks on a thread of its own: a thread of Swift's tasks would be missed by all other tests.
func onThread<Result: Sendable>(_ body: @escaping @Sendable () throws -> Result) async throws
    -> Result
{
    try await withCheckedThrowingContinuation { waiter in
        Thread.detachNewThread { waiter.resume(with: Swift.Result { try body() }) }
    }
}

/// Loads a URL of the gateway as any client does.
func load(_ url: URL) async throws -> Data {
    let (origin, target) = try #require(Origin.cut(url.absoluteString))
    return try await TestLoop.run {
        let upstream = Upstream(UpstreamSettings(name: "test", origin: origin))
        let response = try await upstream.call(ClientRequest("GET", target), limit: 1 << 24)
        await upstream.close()
        try #require(response.status == 200)
        return Data(response.body)
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

extension StorageTaskSnapshot {
    /// ``error`` with the type that it has.
    var storageError: StorageError? { error as? StorageError }
}
