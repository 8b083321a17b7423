import Glibc
import Wire

/// The protocol of the service manager, such as systemd: state messages (sd_notify(3)), the watchdog
/// (sd_watchdog_enabled(3)) and listening sockets (sd_listen_fds(3)). Without a manager it does nothing.
public final class ServiceManager: Sendable {
    /// The nanoseconds within which ``alive()`` is expected; nil without a watchdog.
    public let watchdogInterval: UInt64?
    /// Listening sockets bound by the manager. The process that uses them owns them.
    public let sockets: [InheritedSocket]
    /// The path of the manager's socket; a path in the abstract namespace begins with `@`.
    private let path: String?

    /// Reads `NOTIFY_SOCKET`, `WATCHDOG_USEC`, `WATCHDOG_PID`, `LISTEN_FDS` and `LISTEN_PID` of this process.
    /// - Throws: ``SystemError`` if an inherited descriptor is no listening stream socket.
    public init(_ environment: [BytewiseString: String]) throws(SystemError) {
        path = environment["NOTIFY_SOCKET"]
        let isOurs = environment["WATCHDOG_PID"].map { Int32($0) == getpid() } ?? true
        let microseconds = environment["WATCHDOG_USEC"].flatMap { UInt64($0) }
        watchdogInterval = microseconds.flatMap { count in
            isOurs && count > 0 ? count.multipliedReportingOverflow(by: 1000).partialValue : nil
        }
        var sockets: [InheritedSocket] = []
        if let process = environment["LISTEN_PID"], Int32(process) == getpid() {
            let count = environment["LISTEN_FDS"].flatMap { Int32($0) } ?? 0
            for descriptor in 3..<(3 + max(0, min(count, 64))) {
                sockets.append(try InheritedSocket(descriptor))
            }
        }
        self.sockets = sockets
    }

    /// Reports that the service accepts requests, at startup or after a reload.
    public func ready() { send("READY=1") }

    /// Reports the start of a reload; the manager waits for ``ready()``.
    public func reloading() {
        send("RELOADING=1\nMONOTONIC_USEC=\(EventLoop.monotonicNow() / 1000)")
    }

    /// Reports that the service drains.
    public func stopping() { send("STOPPING=1") }

    /// Resets the watchdog: without this message for an interval, the manager restarts the service.
    public func alive() { send("WATCHDOG=1") }

    /// Sends a message, ignoring failures: the service does not depend on its manager.
    private func send(_ message: String) {
        guard let path, path.utf8.count > 1 else { return }
        var address = sockaddr_un()
        address.sun_family = sa_family_t(AF_UNIX)
        var name = Array(path.utf8)
        if name[0] == UInt8(ascii: "@") { name[0] = 0 }
        guard name.count < MemoryLayout.size(ofValue: address.sun_path) else { return }
        withUnsafeMutableBytes(of: &address.sun_path) { $0.copyBytes(from: name) }
        let type = Int32(SOCK_DGRAM.rawValue | SOCK_CLOEXEC.rawValue | SOCK_NONBLOCK.rawValue)
        let descriptor = socket(AF_UNIX, type, 0)
        guard descriptor >= 0 else { return }
        defer { close(descriptor) }
        // The exact length, because zero bytes are part of an abstract name.
        let length = socklen_t(MemoryLayout<sa_family_t>.size + name.count)
        let bytes = Array(message.utf8)
        _ = withUnsafePointer(to: &address) { pointer in
            pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                sendto(descriptor, bytes, bytes.count, Int32(MSG_NOSIGNAL), $0, length)
            }
        }
    }
}

/// A listening socket bound by the service manager.
public struct InheritedSocket: Sendable {
    /// Non-blocking, and closed on exec.
    public let descriptor: Int32
    /// The address in the format of the configuration's listeners.
    public let address: SocketAddress

    init(_ descriptor: Int32) throws(SystemError) {
        var isListening: Int32 = 0
        var length = socklen_t(4)
        try SystemError.check("inherited descriptor \(descriptor)") {
            getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &isListening, &length)
        }
        guard isListening == 1, let address = Socket.localAddress(descriptor) else {
            throw SystemError("inherited descriptor \(descriptor): not listening", EINVAL)
        }
        _ = fcntl(descriptor, F_SETFD, FD_CLOEXEC)
        _ = fcntl(descriptor, F_SETFL, fcntl(descriptor, F_GETFL) | O_NONBLOCK)
        self.descriptor = descriptor
        self.address = address
    }
}
