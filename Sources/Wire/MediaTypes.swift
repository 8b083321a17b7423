/// Media types by file extension.
package enum MediaTypes {
    /// The type of unknown content (RFC 2046, section 4.5.1).
    package static let unknown = "application/octet-stream"

    /// Parsed at the first use.
    private static let byExtension: [BytewiseString: String] = {
        var types: [BytewiseString: String] = [:]
        types.reserveCapacity(2048)
        mediaTypeTable.withUTF8Buffer { table in
            let words = table.split { $0 == 0x20 || $0 == 0x0a }
            for word in words {
                let parts = word.split(separator: UInt8(ascii: ":"), maxSplits: 1)
                let type = String(decoding: parts[0], as: UTF8.self)
                for name in parts[1].split(separator: UInt8(ascii: ",")) {
                    types[String(decoding: name, as: UTF8.self)] = type
                }
            }
        }
        return types
    }()

    /// The media type of a file name's extension, case-insensitively; nil if unknown.
    package static func type(of name: Substring) -> String? {
        let bytes = name.utf8
        guard let dot = bytes.lastIndex(of: UInt8(ascii: ".")) else { return nil }
        let suffix = bytes[bytes.index(after: dot)...].map(ASCII.lowercased)
        guard (1...32).contains(suffix.count) else { return nil }
        return byExtension[String(decoding: suffix, as: UTF8.self)]
    }
}
