import System
import Wire

/// An HTTP proxy that forwards TLS connections (RFC 9110, section 9.3.6, `CONNECT`).
public struct ProxyAddress: Sendable, Equatable, CustomStringConvertible {
    /// `http` or `https` (to the proxy), host and port.
    public let origin: Origin
    /// `user:password@`, percent-encoded, or empty. A secret.
    private let userInformation: String

    /// Whether the address has a user, and perhaps a password.
    public var hasUser: Bool { !userInformation.isEmpty }

    /// Parses `http://host:port` or `https://user:password@host:port/`. The default port is the scheme's.
    /// - Returns: nil if the text has another form.
    public init?(_ url: String) {
        guard let scheme = ["http://", "https://"].first(where: { url.hasPrefix($0) }) else {
            return nil
        }
        let rest = url.dropFirst(scheme.count)
        let at = rest.lastIndex(of: "@")
        let user = at.map { rest[...$0] } ?? ""
        let isUser = user.dropLast().utf8.allSatisfy { byte in
            ASCII.isLetter(byte) || ASCII.isDigit(byte) || "-._~!$&'()*+,;=:%".utf8.contains(byte)
        }
        guard isUser, let origin = Origin(scheme + rest.dropFirst(user.count)) else { return nil }
        self.origin = origin
        userInformation = String(user)
    }

    /// The address, with `<redacted>` as its user.
    public var description: String { text(userInformation.isEmpty ? "" : "<redacted>@") }

    /// The URL with the user name and password.
    var url: String { text(userInformation) }

    private func text(_ user: String) -> String {
        let host = origin.host.utf8.contains(UInt8(ascii: ":")) ? "[\(origin.host)]" : origin.host
        return "\(origin.scheme.rawValue)://\(user)\(host):\(origin.port)"
    }

    /// The variables that ``environment(for:_:)`` reads, each in upper or lower case.
    private static let names: (proxy: [BytewiseString], exceptions: [BytewiseString]) = (
        ["https_proxy", "HTTPS_PROXY"], ["no_proxy", "NO_PROXY"]
    )

    /// The proxy that the environment has for an origin. A loopback origin has none.
    /// - Parameter variables: `HTTPS_PROXY`, and `NO_PROXY` with hosts and domains separated by commas; `*` is all.
    /// - Returns: nil if requests go directly.
    /// - Throws: ``Malformed`` if the variable has no URL of an HTTP proxy.
    static func environment(
        for origin: Origin, _ variables: [BytewiseString: String] = Environment.variables()
    ) throws(Malformed) -> ProxyAddress? {
        func value(_ names: [BytewiseString]) -> String {
            names.lazy.compactMap { variables[$0] }.first { !$0.isEmpty } ?? ""
        }
        let url = value(names.proxy)
        guard origin.scheme == .https, !origin.isLoopback, !url.isEmpty else { return nil }
        let exceptions = value(names.exceptions).split { $0 == "," || $0 == " " }
        let isExcepted = exceptions.contains { entry in
            let name = String(entry).asciiLowercased()
            let domain = name.hasPrefix(".") ? name : "." + name
            return name == "*" || name == origin.host || origin.host.hasSuffix(domain)
        }
        if isExcepted { return nil }
        guard let proxy = ProxyAddress(url.contains("://") ? url : "http://" + url) else {
            throw Malformed()
        }
        return proxy
    }

    /// The environment's proxy can't be used. Its value may be a secret.
    struct Malformed: Error, CustomStringConvertible {
        let description =
            "HTTPS_PROXY is not the URL of an HTTP proxy, such as http://proxy.test:3128"
    }
}
