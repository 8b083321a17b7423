import System

/// The PROXY protocol header, version 1 or 2 (haproxy's `proxy-protocol.txt`): the address of the proxy's client.
enum ProxyHeader: Equatable {
    /// The bytes do not begin like a header.
    case absent
    /// More bytes are needed.
    case incomplete
    /// A header of `length` bytes. The client is nil if the proxy connects for itself or for an unknown client.
    case complete(length: Int, client: IPAddress?, port: UInt16)
    /// The bytes begin like a header, but violate its syntax or exceed ``limit``.
    case malformed

    /// The maximum length of a header in bytes, including the extensions of version 2.
    static let limit = 4096
    /// The maximum length of a version 1 header, including the line end.
    private static let lineLimit = 107
    private static let line = Array("PROXY ".utf8)
    static let signature: [UInt8] = [
        0x0d, 0x0a, 0x0d, 0x0a, 0x00, 0x0d, 0x0a, 0x51, 0x55, 0x49, 0x54, 0x0a,
    ]

    /// Parses the first bytes of a connection.
    init(_ bytes: UnsafeRawBufferPointer) {
        if ProxyHeader.begins(bytes, ProxyHeader.signature) {
            self = ProxyHeader.version2(bytes)
        } else if ProxyHeader.begins(bytes, ProxyHeader.line) {
            self = ProxyHeader.version1(bytes)
        } else {
            self = .absent
        }
    }

    private static func begins(_ bytes: UnsafeRawBufferPointer, _ prefix: [UInt8]) -> Bool {
        bytes.prefix(prefix.count).elementsEqual(prefix.prefix(bytes.count))
    }

    /// `PROXY TCP4 192.0.2.1 192.0.2.2 5000 80` CR LF; also with TCP6, or with UNKNOWN and any text.
    private static func version1(_ bytes: UnsafeRawBufferPointer) -> ProxyHeader {
        let head = bytes.prefix(lineLimit)
        guard let end = head.firstIndex(of: 0x0a) else {
            return bytes.count < lineLimit ? .incomplete : .malformed
        }
        guard end > 0, bytes[end - 1] == 0x0d else { return .malformed }
        let text = String(decoding: bytes[..<(end - 1)], as: UTF8.self)
        let words = text.split(separator: " ", omittingEmptySubsequences: false)
        if words.count >= 2, words[1] == "UNKNOWN" {
            return .complete(length: end + 1, client: nil, port: 0)
        }
        guard words.count == 6, words[1] == "TCP4" || words[1] == "TCP6",
            let client = IPAddress(String(words[2])), IPAddress(String(words[3])) != nil,
            words[2].contains(":") == (words[1] == "TCP6"),
            let port = UInt16(words[4]), UInt16(words[5]) != nil
        else { return .malformed }
        return .complete(length: end + 1, client: client, port: port)
    }

    /// The signature, version and command, family, length, addresses in network order, extensions.
    private static func version2(_ bytes: UnsafeRawBufferPointer) -> ProxyHeader {
        guard bytes.count >= 16 else { return .incomplete }
        let length = 16 + Int(bytes[14]) << 8 + Int(bytes[15])
        guard bytes[12] >> 4 == 2, bytes[12] & 0xf <= 1, length <= limit else { return .malformed }
        guard bytes.count >= length else { return .incomplete }
        // Family and transport: TCP over IPv4, TCP over IPv6. Others have no usable address.
        let size = bytes[13] == 0x11 ? 4 : bytes[13] == 0x21 ? 16 : 0
        guard bytes[12] & 0xf == 1, size > 0 else {
            return .complete(length: length, client: nil, port: 0)
        }
        guard length >= 16 + 2 * size + 4 else { return .malformed }
        let client = IPAddress(UnsafeRawBufferPointer(rebasing: bytes[16..<(16 + size)]))
        let port = bytes.loadUnaligned(fromByteOffset: 16 + 2 * size, as: UInt16.self).bigEndian
        return .complete(length: length, client: client, port: port)
    }
}
