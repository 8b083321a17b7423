import Wire

/// Where a list's page ended, bound to the list that it is of: valid on any replica, and on no other list.
///
/// The check is no secret. A token says only after which name to go on, which any caller may choose; every page
/// is decided anew.
enum PageToken {
    /// - Parameter end: The last name or prefix that the page covered.
    static func encode(after end: String, bucket: String, prefix: String, isDelimited: Bool)
        -> String
    {
        var bytes = check(end, bucket, prefix, isDelimited)
        bytes.append(contentsOf: end.utf8)
        return Base64.encodeForURL(bytes)
    }

    /// Where to go on; nil where the token is damaged, or of another list.
    static func decode(_ token: String, bucket: String, prefix: String, isDelimited: Bool)
        -> String?
    {
        guard let bytes = Base64.decodeForURL(Array(token.utf8)[...]), bytes.count > 8,
            let end = String(validating: bytes[8...], as: UTF8.self),
            check(end, bucket, prefix, isDelimited).elementsEqual(bytes[..<8])
        else { return nil }
        return end
    }

    /// FNV-1a over all that a token is bound to, each part with its length, and a last mixing.
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
