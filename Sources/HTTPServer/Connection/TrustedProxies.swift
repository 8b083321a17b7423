import System
import Wire

/// The proxies that may name their clients, by `X-Forwarded-For`, `Forwarded` (RFC 7239) or the PROXY protocol. The same
/// fields from other peers are ignored.
public struct TrustedProxies: Sendable, Equatable {
    /// The field in which the proxies name the client.
    public enum Field: String, Sendable, CaseIterable {
        /// Either. If both name different clients, `X-Forwarded-For`, which most proxies write, takes precedence.
        case auto
        /// `Forwarded`; `X-Forwarded-For` is ignored.
        case forwarded
        /// `X-Forwarded-For`; `Forwarded` is ignored.
        case xForwardedFor = "x-forwarded-for"
    }

    /// The field to use.
    public var field = Field.auto
    private var ranges: [AddressRange] = []
    /// Whether processes that connect to a Unix domain socket are trusted proxies.
    private(set) var includesProcesses = false

    /// The entry for processes that connect to a Unix domain socket.
    public static let processes = "unix"

    /// Trusts no proxy.
    public init() {}

    /// Parses addresses, ranges such as `10.0.0.0/8`, and ``processes``; nil if a text is something else.
    public init?(_ texts: [String]) {
        for text in texts {
            if text == TrustedProxies.processes {
                includesProcesses = true
            } else if let range = AddressRange(text) {
                ranges.append(range)
            } else {
                return nil
            }
        }
    }

    func contains(_ address: IPAddress) -> Bool {
        ranges.contains { $0.contains(address) }
    }
}

/// A request's client as a trusted proxy names it.
struct ForwardedClient: Equatable {
    /// `host:port`; port 0 if it is unknown. nil if the proxy names no client.
    var peer: String?
    /// Whether the client's connection to the first trusted proxy is encrypted; nil if unknown.
    var isSecure: Bool?
    /// The ignored field that names another client, with its value.
    var ignored: String?

    /// Reads the fields of a request that a trusted proxy sent.
    ///
    /// Each proxy appends the address of its peer, so the list is read from its end. The first address that is not a trusted
    /// proxy's is the client; those before it may be forged. A proxy may also pass on a field of the client unchanged.
    init(_ head: RequestHead, _ proxies: TrustedProxies) {
        let fields = head.fields
        let forwarded = fields.list("forwarded")
        let addresses = fields.list("x-forwarded-for")
        let first = forwarded.flatMap {
            ForwardedClient.client(ForwardedClient.hops(forwarded: $0), proxies)
        }
        let second = addresses.flatMap {
            ForwardedClient.client(ForwardedClient.hops(addresses: $0), proxies)
        }
        let isConflict = forwarded != nil && addresses != nil && first?.ip != second?.ip
        let readsForwarded: Bool =
            switch proxies.field {
            case .forwarded: true
            case .xForwardedFor: false
            case .auto: addresses == nil || forwarded != nil && !isConflict
            }
        let client = readsForwarded ? first : second
        if first?.ip != second?.ip {
            ignored =
                readsForwarded
                ? addresses.map { "X-Forwarded-For: \($0)" } : forwarded.map { "Forwarded: \($0)" }
        }
        peer = client.map { $0.ip.with(port: $0.port) }
        let scheme =
            client?.scheme
            ?? fields.list("x-forwarded-proto")?.split(separator: ",").last.map {
                String($0.drop { $0 == " " }).asciiLowercased()
            }
        switch scheme {
        case "https": isSecure = true
        case "http": isSecure = false
        default: break
        }
    }

    /// One entry of a proxy list; nil if it has no address.
    private typealias Hop = (ip: IPAddress, port: UInt16, scheme: String?)

    /// The client: the last address that is not a trusted proxy's. If an entry without an address is reached first, the
    /// client is the proxy that made that entry.
    private static func client(_ hops: [Hop?], _ proxies: TrustedProxies) -> Hop? {
        var nearest: Hop?
        for hop in hops.reversed() {
            guard let hop else { break }
            nearest = hop
            if !proxies.contains(hop.ip) { break }
        }
        return nearest
    }

    private static func hops(addresses list: String) -> [Hop?] {
        list.split(separator: ",", omittingEmptySubsequences: false).map { entry in
            node(String(entry.drop { $0 == " " || $0 == "\t" }.prefix { $0 != " " && $0 != "\t" }))
        }
    }

    /// The entries of `Forwarded` (RFC 7239, section 4). Malformed entries have no address.
    private static func hops(forwarded list: String) -> [Hop?] {
        var hops: [Hop?] = []
        var reader = ForwardedReader(list)
        while let pairs = reader.nextElement() {
            var hop = pairs.first { $0.name == "for" }.flatMap { node($0.value) }
            hop?.scheme = pairs.first { $0.name == "proto" }?.value.asciiLowercased()
            hops.append(hop)
        }
        return hops
    }

    /// An address with an optional port; an IPv6 address with a port has brackets (RFC 7239, section 6).
    private static func node(_ text: String) -> Hop? {
        if let ip = IPAddress(text) { return (ip, 0, nil) }
        var host = text[...]
        var port: UInt16 = 0
        if let colon = text.lastIndex(of: ":"), !text.hasSuffix("]") {
            // A port may be obfuscated, like `_a`.
            port = UInt16(text[text.index(after: colon)...]) ?? 0
            host = text[..<colon]
        }
        if host.hasPrefix("["), host.hasSuffix("]") { host = host.dropFirst().dropLast() }
        return IPAddress(String(host)).map { ($0, port, nil) }
    }
}

/// Parses `Forwarded`: elements of `name=value` pairs, where a value may be quoted.
private struct ForwardedReader {
    private let bytes: [UInt8]
    private var index = 0
    private var hasMore = true

    init(_ text: String) { bytes = Array(text.utf8) }

    /// The pairs of the next element, with names in lower case; empty if malformed, nil at the end.
    mutating func nextElement() -> [(name: String, value: String)]? {
        guard hasMore else { return nil }
        var pairs: [(name: String, value: String)] = []
        var isMalformed = false
        while true {
            let name = token().asciiLowercased()
            if take("=") {
                let value = take("\"") ? quoted() : token()
                if let value { pairs.append((name, value)) } else { isMalformed = true }
            } else if !name.isEmpty {
                isMalformed = true
            }
            if take(";") { continue }
            if index == bytes.count {
                hasMore = false
                break
            }
            if take(",") { break }
            isMalformed = true
            index += 1
        }
        return isMalformed ? [] : pairs
    }

    private mutating func token() -> String {
        while index < bytes.count, bytes[index] == 0x20 || bytes[index] == 0x09 { index += 1 }
        let start = index
        while index < bytes.count, !"=;,\" \t".utf8.contains(bytes[index]) { index += 1 }
        let end = index
        while index < bytes.count, bytes[index] == 0x20 || bytes[index] == 0x09 { index += 1 }
        return String(decoding: bytes[start..<end], as: UTF8.self)
    }

    /// The rest of a quoted string (RFC 9110, section 5.6.4); nil if it is not terminated.
    private mutating func quoted() -> String? {
        var value: [UInt8] = []
        while index < bytes.count {
            let byte = bytes[index]
            index += 1
            if byte == UInt8(ascii: "\"") {
                while index < bytes.count, bytes[index] == 0x20 || bytes[index] == 0x09 {
                    index += 1
                }
                return String(decoding: value, as: UTF8.self)
            }
            if byte == UInt8(ascii: "\\"), index < bytes.count {
                value.append(bytes[index])
                index += 1
            } else {
                value.append(byte)
            }
        }
        return nil
    }

    private mutating func take(_ character: Unicode.Scalar) -> Bool {
        guard index < bytes.count, bytes[index] == UInt8(ascii: character) else { return false }
        index += 1
        return true
    }
}
