import CLinux
import Glibc
import Wire

/// An IPv4 or IPv6 address with a port, or the path of a Unix domain socket, in the kernel's format.
public struct SocketAddress: Sendable, CustomStringConvertible {
    private(set) var storage: sockaddr_storage
    private(set) var length: socklen_t

    init(storage: sockaddr_storage, length: socklen_t) {
        self.storage = storage
        self.length = length
    }

    /// The prefix of a Unix domain socket's address.
    public static let unixPrefix = "unix:"

    /// Parses `host:port`, `[v6]:port` or `unix:/path`. The system resolves names.
    /// - Returns: nil for another format, an unknown host, or a path longer than 107 bytes.
    public init?(_ text: String) {
        if text.hasPrefix(SocketAddress.unixPrefix) {
            self.init(unix: text.dropFirst(SocketAddress.unixPrefix.count))
            return
        }
        guard let colon = text.lastIndex(of: ":"),
            let port = UInt16(text[text.index(after: colon)...])
        else { return nil }
        let host = String(text[..<colon])
        guard !host.isEmpty, let first = SocketAddress.resolve(host, port).first else { return nil }
        self = first
    }

    private init?(unix path: Substring) {
        var address = sockaddr_un()
        guard path.hasPrefix("/"), !path.utf8.contains(0),
            path.utf8.count < MemoryLayout.size(ofValue: address.sun_path)
        else { return nil }
        address.sun_family = sa_family_t(AF_UNIX)
        withUnsafeMutableBytes(of: &address.sun_path) { $0.copyBytes(from: path.utf8) }
        var storage = sockaddr_storage()
        withUnsafeMutableBytes(of: &storage) { storage in withUnsafeBytes(of: address) { storage.copyMemory(from: $0) }
        }
        self.init(storage: storage, length: socklen_t(MemoryLayout<sockaddr_un>.size))
    }

    /// All addresses of a host by preference (RFC 6724); empty if unknown. May take seconds: use a ``BlockingPool``.
    /// - Parameter host: A name, an IPv4 address, or an IPv6 address with or without brackets.
    /// - Parameter numeric: Accept only numeric addresses, which need no lookup.
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

    /// The port in host order; 0 for a path.
    public var port: UInt16 {
        guard path == nil else { return 0 }
        return withUnsafePointer(to: storage) { pointer in
            // sin_port and sin6_port have the same offset.
            UInt16(
                bigEndian: UnsafeRawPointer(pointer).assumingMemoryBound(to: sockaddr_in.self)
                    .pointee
                    .sin_port)
        }
    }

    /// The address without the port; nil for the path of a Unix domain socket.
    public var ip: IPAddress? {
        withUnsafePointer(to: storage) { pointer in
            let raw = UnsafeRawPointer(pointer)
            switch Int32(storage.ss_family) {
            case AF_INET:
                let address = raw.assumingMemoryBound(to: sockaddr_in.self).pointee.sin_addr
                return IPAddress(ipv4: UInt32(bigEndian: address.s_addr))
            case AF_INET6:
                let address = raw.assumingMemoryBound(to: sockaddr_in6.self).pointee.sin6_addr
                return withUnsafeBytes(of: address) { IPAddress($0) }
            default: return nil
            }
        }
    }

    /// The path of a Unix domain socket; nil for an IP address.
    public var path: String? {
        guard Int32(storage.ss_family) == AF_UNIX else { return nil }
        return withUnsafeBytes(of: storage) { bytes in
            let start = MemoryLayout<sockaddr_un>.offset(of: \.sun_path)!
            return String(decoding: bytes[start...].prefix { $0 != 0 }, as: UTF8.self)
        }
    }

    public var description: String {
        if let path { return SocketAddress.unixPrefix + path }
        return ip?.with(port: port) ?? "unknown"
    }

    /// Whether only processes on this host can connect to it.
    public var isLoopback: Bool { path != nil || ip?.isLoopback == true }
}

/// The key under which connections and callers are counted: an IPv4 address, the first 64 bits of an IPv6 address, because a site
/// has all addresses with this prefix (RFC 4291, section 2.5.1), or the user of a process on this host.
public enum NetworkPrefix: Hashable, Sendable {
    case ipv4(UInt32)
    case ipv6(UInt64)
    case user(UInt32)
}
