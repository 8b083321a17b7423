import Glibc
import Wire

/// The target of requests: scheme, host and port (RFC 6454, section 4).
public struct Origin: Sendable, Hashable, CustomStringConvertible {
    /// The protocol of the connection.
    public enum Scheme: String, Sendable {
        /// Clear text.
        case http
        /// TLS.
        case https
    }
    /// Determines the transport.
    public let scheme: Scheme
    /// A name or an address. An IPv6 address has no brackets.
    public let host: String
    /// The port, set even if it is the scheme's default.
    public let port: UInt16

    /// - Parameter host: An IPv6 address has no brackets.
    public init(_ scheme: Scheme, host: String, port: UInt16? = nil) {
        self.scheme = scheme
        self.host = host
        self.port = port ?? (scheme == .http ? 80 : 443)
    }

    /// Parses `http://host`, `https://host:port` or `http://[v6]:port`, with an optional final slash.
    /// - Returns: nil for another form, such as one with a path, a query or user information.
    public init?(_ url: String) {
        let scheme: Scheme
        var rest: Substring
        if url.hasPrefix("http://") {
            (scheme, rest) = (.http, url.dropFirst(7))
        } else if url.hasPrefix("https://") {
            (scheme, rest) = (.https, url.dropFirst(8))
        } else {
            return nil
        }
        if rest.hasSuffix("/") { rest = rest.dropLast() }
        var port: UInt16?
        if let colon = rest.lastIndex(of: ":"), !rest[colon...].contains("]") {
            let digits = rest[rest.index(after: colon)...]
            guard digits.utf8.allSatisfy({ (0x30...0x39).contains($0) }),
                let number = UInt16(digits), number > 0
            else { return nil }
            port = number
            rest = rest[..<colon]
        }
        let isBracketed = rest.hasPrefix("[") && rest.hasSuffix("]")
        let host = isBracketed ? rest.dropFirst().dropLast() : rest
        let isAllowed = host.utf8.allSatisfy { byte in
            switch byte {
            case 0x30...0x39, 0x41...0x5a, 0x61...0x7a: true
            case UInt8(ascii: "-"), UInt8(ascii: "."), UInt8(ascii: "_"): true
            case UInt8(ascii: ":"): isBracketed
            default: false
            }
        }
        guard !host.isEmpty, isAllowed else { return nil }
        self.init(scheme, host: String(host).asciiLowercased(), port: port)
    }

    /// `host` or `host:port`, as in the `Host` field, without the scheme's default port.
    public var authority: String {
        let name = host.utf8.contains(UInt8(ascii: ":")) ? "[\(host)]" : host
        return port == (scheme == .http ? 80 : 443) ? name : "\(name):\(port)"
    }

    /// Splits an `http` or `https` URL into the origin, and the path with the query.
    /// - Returns: nil if the URL has user information, a fragment, or characters other than visible ASCII.
    package static func cut(_ url: String) -> (origin: Origin, target: String)? {
        // The third slash ends the origin.
        let slashes = url.indices.filter { url[$0] == "/" }
        let slash = slashes.count > 2 ? slashes[2] : url.endIndex
        let target = slash == url.endIndex ? "/" : String(url[slash...])
        guard let origin = Origin(String(url[..<slash])),
            target.utf8.allSatisfy({ $0 > 0x20 && $0 < 0x7f && $0 != UInt8(ascii: "#") })
        else { return nil }
        return (origin, target)
    }

    /// Whether the host is a loopback address or `localhost`. A name such as `127.example.com` is not.
    public var isLoopback: Bool {
        // inet_pton accepts only four decimal parts. Resolvers differ on "127.1" and "127.0.0.01".
        var address = in_addr()
        let isAddress = inet_pton(AF_INET, host, &address) == 1
        return host == "localhost" || host == "::1" || isAddress && host.hasPrefix("127.")
    }

    public var description: String { "\(scheme.rawValue)://\(authority)" }
}
