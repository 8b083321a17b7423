import CLinux
import Glibc
import Wire

/// Operations on non-blocking stream sockets, given as descriptors.
public enum Socket {
    /// Binds and listens, close-on-exec and non-blocking. `SO_REUSEPORT` spreads connections over sharing listeners.
    /// - Parameter joining: Whether to share the address with another listener of this process. Otherwise any listener
    ///   on that address is an error, even another process's shared one. For a path, use ``duplicate(_:)``.
    /// - Parameter mode: The permissions of a Unix domain socket.
    /// - Throws: ``SystemError``, for example if the address is in use or does not belong to this host.
    public static func listen(
        _ address: SocketAddress, backlog: Int32 = 4096, joining: Bool = false,
        mode: UInt32 = 0o600
    ) throws(SystemError) -> Int32 {
        if let path = address.path { return try listen(address, path, backlog, mode) }
        let type = Int32(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue | SOCK_NONBLOCK.rawValue)
        let descriptor = try SystemError.check("socket") {
            socket(Int32(address.storage.ss_family), type, 0)
        }
        do throws(SystemError) {
            var on: Int32 = 1
            setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &on, 4)
            if joining { setsockopt(descriptor, SOL_SOCKET, SO_REUSEPORT, &on, 4) }
            try SystemError.check("bind \(address)") {
                withAddress(address) { bind(descriptor, $0, address.length) }
            }
            // Set after bind, so that bind requires a free address. Later listeners of this process can join.
            setsockopt(descriptor, SOL_SOCKET, SO_REUSEPORT, &on, 4)
            try SystemError.check("listen") { Glibc.listen(descriptor, backlog) }
            return descriptor
        } catch {
            Glibc.close(descriptor)
            throw error
        }
    }

    /// Binds a path and listens. Removes the socket of an earlier process.
    private static func listen(
        _ address: SocketAddress, _ path: String, _ backlog: Int32, _ mode: UInt32
    ) throws(SystemError) -> Int32 {
        let type = Int32(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue | SOCK_NONBLOCK.rawValue)
        let descriptor = try SystemError.check("socket") { socket(AF_UNIX, type, 0) }
        do throws(SystemError) {
            // A socket that refuses a connection is abandoned. Other files refuse it too.
            var status = stat()
            let exists = lstat(path, &status) == 0
            let isSocket = status.st_mode & S_IFMT == S_IFSOCK
            if exists && !isSocket {
                throw SystemError("bind \(address), which is not a socket", EEXIST)
            }
            if exists,
                withAddress(address, { Glibc.connect(descriptor, $0, address.length) }) != 0,
                errno == ECONNREFUSED
            {
                try SystemError.check("unlink \(path)") { unlink(path) }
            }
        } catch {
            Glibc.close(descriptor)
            throw error
        }
        Glibc.close(descriptor)
        let listener = try SystemError.check("socket") { socket(AF_UNIX, type, 0) }
        do throws(SystemError) {
            // The permissions are never wider than these, even before `chmod`.
            try SystemError.check("fchmod") { fchmod(listener, mode) }
            try SystemError.check("bind \(address)") {
                withAddress(address) { bind(listener, $0, address.length) }
            }
            try SystemError.check("chmod \(path)") { chmod(path, mode) }
            try SystemError.check("listen") { Glibc.listen(listener, backlog) }
            return listener
        } catch {
            Glibc.close(listener)
            throw error
        }
    }

    /// Duplicates the descriptor of a socket, close-on-exec.
    /// - Throws: ``SystemError`` if no descriptor is free.
    public static func duplicate(_ descriptor: Int32) throws(SystemError) -> Int32 {
        try SystemError.check("fcntl") { fcntl(descriptor, F_DUPFD_CLOEXEC, 0) }
    }

    /// The user and process that connected to a Unix domain socket (unix(7), `SO_PEERCRED`); nil for other sockets.
    public static func peerProcess(_ descriptor: Int32) -> (user: UInt32, process: Int32)? {
        // The structure ucred: process, user, group.
        var credentials: [3 of UInt32] = [0, 0, 0]
        var length = socklen_t(12)
        guard getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0 else {
            return nil
        }
        return (credentials[1], Int32(bitPattern: credentials[0]))
    }

    /// Begins to connect, close-on-exec, non-blocking and without Nagle's delay. When the attempt ends, the socket
    /// becomes writable or hangs up, and ``failure(_:)`` returns the result.
    /// - Throws: ``SystemError`` if the attempt can't begin.
    public static func connect(_ address: SocketAddress) throws(SystemError) -> Int32 {
        let type = Int32(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue | SOCK_NONBLOCK.rawValue)
        let descriptor = try SystemError.check("socket") {
            socket(Int32(address.storage.ss_family), type, 0)
        }
        var on: Int32 = 1
        setsockopt(descriptor, Int32(IPPROTO_TCP), TCP_NODELAY, &on, 4)
        let result = withAddress(address) { Glibc.connect(descriptor, $0, address.length) }
        // An interrupted attempt continues in the background (connect(2)).
        if result == 0 || errno == EINPROGRESS || errno == EINTR { return descriptor }
        let error = SystemError("connect \(address)")
        Glibc.close(descriptor)
        throw error
    }

    /// Returns and clears a socket's pending error (`SO_ERROR`), 0 for none.
    public static func failure(_ descriptor: Int32) -> Int32 {
        var code: Int32 = 0
        var length = socklen_t(4)
        return getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &code, &length) == 0 ? code : errno
    }

    /// The number of sent bytes that the peer has not acknowledged (tcp(7), `SIOCOUTQ`).
    public static func unacknowledged(_ descriptor: Int32) -> Int {
        var count: Int32 = 0
        return ioctl(descriptor, UInt(TIOCOUTQ), &count) == 0 ? Int(count) : 0
    }

    /// The address that a descriptor is bound to, for example after binding port 0.
    public static func localAddress(_ descriptor: Int32) -> SocketAddress? {
        var storage = sockaddr_storage()
        var length = socklen_t(MemoryLayout<sockaddr_storage>.size)
        let result = withUnsafeMutablePointer(to: &storage) {
            $0.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                getsockname(descriptor, $0, &length)
            }
        }
        return result == 0 ? SocketAddress(storage: storage, length: length) : nil
    }

    /// Accepts a pending connection, non-blocking and without Nagle's delay; nil if there is none.
    /// - Throws: ``SystemError`` if accepting fails (`EMFILE`, `ENFILE`, `ENOBUFS`, …).
    public static func accept(_ listener: Int32) throws(SystemError) -> (Int32, SocketAddress)? {
        var storage = sockaddr_storage()
        var length = socklen_t(MemoryLayout<sockaddr_storage>.size)
        while true {
            let descriptor = withUnsafeMutablePointer(to: &storage) {
                $0.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                    sluice_accept4(listener, $0, &length)
                }
            }
            if descriptor >= 0 {
                var on: Int32 = 1
                setsockopt(descriptor, Int32(IPPROTO_TCP), TCP_NODELAY, &on, 4)
                return (descriptor, SocketAddress(storage: storage, length: length))
            }
            switch errno {
            case EINTR, ECONNABORTED: continue
            case EAGAIN: return nil
            default: throw SystemError("accept4", errno)
            }
        }
    }

    /// Closes a descriptor.
    public static func close(_ descriptor: Int32) { Glibc.close(descriptor) }

    private static func withAddress<Result>(
        _ address: SocketAddress, _ body: (UnsafePointer<sockaddr>) -> Result
    ) -> Result {
        withUnsafePointer(to: address.storage) {
            $0.withMemoryRebound(to: sockaddr.self, capacity: 1, body)
        }
    }
}
