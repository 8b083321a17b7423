import Glibc
import HTTPClient
import System
import TestSupport
import Testing

/// A real object server that runs as long as its test.
///
/// `SLUICE_UPSTREAMS` names the virtual environment with the servers of `Tests/EndToEnd/upstreams.txt`. Without it,
/// these tests are skipped.
final class UpstreamProcess: Sendable {
    static let environment: String? = getenv("SLUICE_UPSTREAMS").map { String(cString: $0) }

    let origin: Origin
    private let identifier: pid_t
    /// The running processes. Values that live until the end of the tests are never deinitialized.
    private static let running = Lock<Set<pid_t>>([])
    private static let endsThemAtExit: Void = {
        atexit {
            for identifier in UpstreamProcess.running.withLock({ $0 }) { kill(identifier, SIGKILL) }
        }
    }()

    /// Starts a program of the virtual environment and waits until it responds.
    /// - Parameter arguments: Called with a free port. The first argument is the program, relative to the environment.
    init(_ arguments: (UInt16) -> [String]) async throws {
        let port = freePorts(1)[0]
        origin = Origin(.http, host: "127.0.0.1", port: port)
        var words = arguments(port)
        words[0] = "\(try #require(UpstreamProcess.environment))/\(words[0])"
        let identifier = try spawn(words)
        self.identifier = identifier
        UpstreamProcess.endsThemAtExit
        _ = UpstreamProcess.running.withLock { $0.insert(identifier) }
        await eventually { UpstreamProcess.listens(port) }
    }

    deinit {
        _ = UpstreamProcess.running.withLock { [identifier] in $0.remove(identifier) }
        kill(identifier, SIGKILL)
        var status: Int32 = 0
        waitpid(identifier, &status, 0)
    }

    /// Whether the port accepts connections.
    var listens: Bool { UpstreamProcess.listens(origin.port) }

    private static func withSocket<Result>(
        _ port: UInt16, _ body: (Int32, UnsafeMutablePointer<sockaddr>, inout socklen_t) -> Result
    ) -> Result {
        let descriptor = socket(AF_INET, Int32(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue), 0)
        defer { close(descriptor) }
        var address = sockaddr_in()
        address.sin_family = sa_family_t(AF_INET)
        address.sin_port = port.bigEndian
        address.sin_addr.s_addr = UInt32(0x7f00_0001).bigEndian
        var size = socklen_t(MemoryLayout<sockaddr_in>.size)
        return withUnsafeMutablePointer(to: &address) {
            $0.withMemoryRebound(to: sockaddr.self, capacity: 1) { body(descriptor, $0, &size) }
        }
    }

    private static func listens(_ port: UInt16) -> Bool {
        withSocket(port) { connect($0, $1, $2) == 0 }
    }
}
