import Wire

/// The end of a list's page. It is bound to the list, and valid on every replica.
///
/// The hash is not a secret. A token only contains the name after which to continue, which any caller may choose, and
/// every page is authorized again.
enum PageToken {
    /// - Parameter end: The last name or prefix that the page covered.
    static func encode(after end: String, bucket: String, prefix: String, isDelimited: Bool)
        -> String
    {
        var bytes = check(end, bucket, prefix, isDelimited)
        bytes.append(contentsOf: end.utf8)
        return Base64.encodeForURL(bytes)
    }

    /// The name after which to continue; nil if the token is damaged or belongs to another list.
    static func decode(_ token: String, bucket: String, prefix: String, isDelimited: Bool)
        -> String?
    {
        guard let bytes = Base64.decodeForURL(Array(token.utf8)[...]), bytes.count > 8,
            let end = String(validating: bytes[8...], as: UTF8.self),
            check(end, bucket, prefix, isDelimited).elementsEqual(bytes[..<8])
        else { return nil }
        return end
    }

    /// FNV-1a over everything that a token is bound to. Each part is preceded by its length, and the result is mixed.
    private static func check(
        _ end: String, _ bucket: String, _ prefix: String, _ isDelimited: Bool
    ) -> [UInt8] {
        var hash: UInt64 = 0xcbf2_9ce4_8422_2325
        func add(_ byte: UInt8) { hash = (hash ^ UInt64(byte)) &* 0x100_0000_01b3 }
        for part in ["sluice page 1", bucket, prefix, isDelimited ? "/" : "", end] {
            for byte in part.utf8 { add(byte) }
            for shift in [0, 8, 16] { add(UInt8(truncatingIfNeeded: part.utf8.count >> shift)) }
        }
        hash = mixed(hash)
        return (0..<8).map { UInt8(truncatingIfNeeded: hash >> (56 - 8 * $0)) }
    }
}
