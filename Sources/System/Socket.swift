import CLinux
import Glibc
import Wire

/// An IPv4 or IPv6 address with a port, in the kernel's format.
public struct SocketAddress: Sendable, CustomStringConvertible {
    private(set) var storage: sockaddr_storage
    private(set) var length: socklen_t

    init(storage: sockaddr_storage, length: socklen_t) {
        self.storage = storage
        self.length = length
    }

    /// Parses `host:port` or `[v6]:port`. A name is resolved by the system.
    /// - Returns: nil if the text has another format or the host is unknown.
    public init?(_ text: String) {
        guard let colon = text.lastIndex(of: ":"),
            let port = UInt16(text[text.index(after: colon)...])
        else { return nil }
        let host = String(text[..<colon])
        guard !host.isEmpty, let first = SocketAddress.resolve(host, port).first else { return nil }
        self = first
    }

    /// All addresses of a host in the order of preference (RFC 6724); none if the host is unknown. Resolving a name can
    /// take seconds, so it should run on a ``BlockingPool``.
    /// - Parameters:
    ///   - host: A name, an IPv4 address, or an IPv6 address with or without brackets.
    ///   - numeric: Whether only numeric addresses are accepted, which needs no lookup.
    public static func resolve(_ host: String, _ port: UInt16, numeric: Bool = false)
        -> [SocketAddress]
    {
        var host = host
        if host.hasPrefix("[") && host.hasSuffix("]") { host = String(host.dropFirst().dropLast()) }
        var hints = addrinfo()
        hints.ai_socktype = Int32(SOCK_STREAM.rawValue)
        if numeric { hints.ai_flags = AI_NUMERICHOST }
        var list: UnsafeMutablePointer<addrinfo>?
        guard getaddrinfo(host, String(port), &hints, &list) == 0 else { return [] }
        defer { freeaddrinfo(list) }
        var addresses: [SocketAddress] = []
        var next = list
        while let entry = next?.pointee {
            if entry.ai_family == AF_INET || entry.ai_family == AF_INET6 {
                var storage = sockaddr_storage()
                memcpy(&storage, entry.ai_addr, Int(entry.ai_addrlen))
                addresses.append(SocketAddress(storage: storage, length: entry.ai_addrlen))
            }
            next = entry.ai_next
        }
        return addresses
    }

    /// The numeric host, without brackets.
    public var host: String {
        var buffer = [CChar](repeating: 0, count: Int(INET6_ADDRSTRLEN))
        return withUnsafePointer(to: storage) { pointer in
            let raw = UnsafeRawPointer(pointer)
            if Int32(storage.ss_family) == AF_INET6 {
                var address = raw.assumingMemoryBound(to: sockaddr_in6.self).pointee.sin6_addr
                inet_ntop(AF_INET6, &address, &buffer, socklen_t(buffer.count))
            } else {
                var address = raw.assumingMemoryBound(to: sockaddr_in.self).pointee.sin_addr
                inet_ntop(AF_INET, &address, &buffer, socklen_t(buffer.count))
            }
            return buffer.withUnsafeBufferPointer { String(cString: $0.baseAddress!) }
        }
    }

    /// The port in host order.
    public var port: UInt16 {
        withUnsafePointer(to: storage) { pointer in
            // sin_port and sin6_port have the same offset.
            UInt16(
                bigEndian: UnsafeRawPointer(pointer).assumingMemoryBound(to: sockaddr_in.self)
                    .pointee
                    .sin_port)
        }
    }

    /// The network that identifies the peer's site: the address itself, or for IPv6 its network.
    public var network: NetworkPrefix {
        withUnsafePointer(to: storage) { pointer in
            let raw = UnsafeRawPointer(pointer)
            guard Int32(storage.ss_family) == AF_INET6 else {
                let address = raw.assumingMemoryBound(to: sockaddr_in.self).pointee.sin_addr
                return NetworkPrefix(ipv4: address.s_addr)
            }
            let address = raw.assumingMemoryBound(to: sockaddr_in6.self).pointee.sin6_addr
            return withUnsafeBytes(of: address) { bytes in
                let high = bytes.loadUnaligned(as: UInt64.self)
                let low = bytes.loadUnaligned(fromByteOffset: 8, as: UInt64.self)
                let isMapped = high == 0 && UInt64(bigEndian: low) >> 32 == 0xffff
                return isMapped
                    ? NetworkPrefix(ipv4: bytes.loadUnaligned(fromByteOffset: 12, as: UInt32.self))
                    : NetworkPrefix(ipv6: high)
            }
        }
    }

    public var description: String {
        Int32(storage.ss_family) == AF_INET6 ? "[\(host)]:\(port)" : "\(host):\(port)"
    }

    /// Whether the address is in the loopback network.
    public var isLoopback: Bool { host == "::1" || host.hasPrefix("127.") }
}

/// An IPv4 address, or the first 64 bits of an IPv6 address, because a site has all addresses with this prefix (RFC
/// 4291, section 2.5.1). An IPv4-mapped address counts as IPv4 (section 2.5.5.2).
public struct NetworkPrefix: Hashable, Sendable {
    private let bits: UInt64
    private let isIPv4: Bool

    init(ipv4 address: UInt32) {
        bits = UInt64(address)
        isIPv4 = true
    }

    init(ipv6 bits: UInt64) {
        self.bits = bits
        isIPv4 = false
    }
}

/// Operations on non-blocking TCP sockets, as plain descriptors.
public enum Socket {
    /// Binds and listens, close-on-exec and non-blocking. The kernel spreads connections over the listeners that share
    /// an address (`SO_REUSEPORT`).
    /// - Parameter joining: Whether to share the address with another listener of this process. Otherwise any listener
    ///   on that address is an error, even one of another process that would share it.
    /// - Throws: ``SystemError``, for example if the address is in use or does not belong to this host.
    public static func listen(
        _ address: SocketAddress, backlog: Int32 = 4096, joining: Bool = false
    ) throws(SystemError) -> Int32 {
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
            // Set after bind, so that the address had to be free. Later listeners of this process can join.
            setsockopt(descriptor, SOL_SOCKET, SO_REUSEPORT, &on, 4)
            try SystemError.check("listen") { Glibc.listen(descriptor, backlog) }
            return descriptor
        } catch {
            Glibc.close(descriptor)
            throw error
        }
    }

    /// Another descriptor of the same socket, close-on-exec.
    /// - Throws: ``SystemError`` if no descriptor is free.
    public static func duplicate(_ descriptor: Int32) throws(SystemError) -> Int32 {
        try SystemError.check("fcntl") { fcntl(descriptor, F_DUPFD_CLOEXEC, 0) }
    }

    /// Begins to connect, close-on-exec, non-blocking and without Nagle's delay. At the end of the attempt the socket
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

    /// Returns and clears a socket's pending error (`SO_ERROR`); 0 if there is none.
    public static func failure(_ descriptor: Int32) -> Int32 {
        var code: Int32 = 0
        var length = socklen_t(4)
        return getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &code, &length) == 0 ? code : errno
    }

    /// The number of sent bytes that the peer has not acknowledged yet (tcp(7), `SIOCOUTQ`).
    public static func unacknowledged(_ descriptor: Int32) -> Int {
        var count: Int32 = 0
        return ioctl(descriptor, UInt(TIOCOUTQ), &count) == 0 ? Int(count) : 0
    }

    /// The address that a descriptor is bound to, which is needed if port 0 was requested.
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
