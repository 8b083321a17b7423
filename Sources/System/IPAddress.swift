import Glibc

/// An IPv4 or IPv6 address without a port. An IPv4-mapped one (RFC 4291, 2.5.5.2) equals the IPv4 address.
public struct IPAddress: Hashable, Sendable, CustomStringConvertible {
    /// The 128 bits of the IPv6 or IPv4-mapped address.
    let bits: UInt128

    private static let mapped: UInt128 = 0xffff << 32

    init(bits: UInt128) { self.bits = bits }

    /// The IPv4 address with these bits in host order.
    init(ipv4: UInt32) { bits = IPAddress.mapped | UInt128(ipv4) }

    /// Parses a numeric address without brackets, zone or port; nil for anything else.
    public init?(_ text: String) {
        var ipv4 = in_addr()
        var ipv6 = in6_addr()
        if inet_pton(AF_INET, text, &ipv4) == 1 {
            self.init(ipv4: UInt32(bigEndian: ipv4.s_addr))
        } else if inet_pton(AF_INET6, text, &ipv6) == 1 {
            self = withUnsafeBytes(of: ipv6) { IPAddress($0) }
        } else {
            return nil
        }
    }

    /// The address in 4 or 16 bytes in network order; traps for another number of bytes.
    public init(_ bytes: UnsafeRawBufferPointer) {
        precondition(bytes.count == 4 || bytes.count == 16)
        let bits = bytes.reduce(UInt128(0)) { $0 << 8 | UInt128($1) }
        self.init(bits: bytes.count == 4 ? IPAddress.mapped | bits : bits)
    }

    /// Whether it is an IPv4 or IPv4-mapped address.
    public var isIPv4: Bool { bits >> 32 == 0xffff }

    /// The network that identifies the address's site.
    public var network: NetworkPrefix {
        isIPv4 ? .ipv4(UInt32(truncatingIfNeeded: bits)) : .ipv6(UInt64(bits >> 64))
    }

    /// Whether the address is in the loopback network.
    public var isLoopback: Bool { isIPv4 ? bits >> 24 & 0xff == 127 : bits == 1 }

    /// The address as text, without brackets.
    public var description: String {
        var buffer = [CChar](repeating: 0, count: Int(INET6_ADDRSTRLEN))
        if isIPv4 {
            var address = in_addr(s_addr: UInt32(truncatingIfNeeded: bits).bigEndian)
            inet_ntop(AF_INET, &address, &buffer, socklen_t(buffer.count))
        } else {
            var address = bits.bigEndian
            inet_ntop(AF_INET6, &address, &buffer, socklen_t(buffer.count))
        }
        return buffer.withUnsafeBufferPointer { String(cString: $0.baseAddress!) }
    }

    /// The address with a port, as in `192.0.2.7:80` and `[2001:db8::7]:80`.
    public func with(port: UInt16) -> String {
        isIPv4 ? "\(self):\(port)" : "[\(self)]:\(port)"
    }
}

/// A range of addresses in CIDR notation (RFC 4632), such as `10.0.0.0/8` or `2001:db8::/32`. No range of IPv6
/// addresses, not even `::/0`, contains IPv4 addresses.
public struct AddressRange: Hashable, Sendable {
    private let first: IPAddress
    private let mask: UInt128

    /// Parses an address, and after a slash the length of its prefix; without one, the range has one address.
    /// - Returns: nil if the text has another format, or the address has bits after the prefix.
    public init?(_ text: String) {
        let parts = text.split(separator: "/", omittingEmptySubsequences: false)
        guard parts.count <= 2, let address = IPAddress(String(parts[0])) else { return nil }
        let width = parts[0].contains(":") ? 128 : 32
        var length = width
        if parts.count == 2 {
            guard parts[1].utf8.allSatisfy({ (0x30...0x39).contains($0) }), let number = Int(parts[1]), number <= width
            else { return nil }
            length = number
        }
        // Shifting by 128 gives 0.
        mask = ~UInt128(0) << UInt128(width - length)
        guard address.bits & ~mask == 0 else { return nil }
        first = address
    }

    /// Whether the address is in the range.
    public func contains(_ address: IPAddress) -> Bool {
        address.bits & mask == first.bits && address.isIPv4 == first.isIPv4
    }
}
