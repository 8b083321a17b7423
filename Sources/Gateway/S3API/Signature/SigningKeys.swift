import OpenSSL

/// A key that signs on one day, in one region, for one service, and who it identifies.
struct SigningKey {
    let key: HMAC
    let signer: S3Authentication.Signer
    /// The session token that made it, and its expiry; nil for an access key of the key file.
    var session: (token: [UInt8], expires: Int64)?

    /// Derives the key from a secret (AWS Signature Version 4).
    static func derive(_ secret: [UInt8], _ credential: S3Credential) -> HMAC {
        var key = Array("AWS4".utf8) + secret
        for part in [credential.day, credential.region, credential.service, Array("aws4_request".utf8)[...]] {
            key = HMAC.sha256(key: key, part.span.bytes)
        }
        return HMAC(key: key)
    }
}

/// A cache of signing keys by credential, of about ``limit`` bytes at most.
///
/// A full new table replaces the old one, and an entry found in the old table is copied to the new one. This
/// approximates eviction of the least recently used.
struct SigningKeys {
    /// The text of a ``S3Credential``.
    private struct Name: Hashable {
        let bytes: [UInt8]

        func hash(into hasher: inout Hasher) { bytes.withUnsafeBytes { hasher.combine(bytes: $0) } }
    }

    static let limit = 8 << 20
    private var newBytes = 0
    private var new: [Name: SigningKey] = [:]
    private var old: [Name: SigningKey] = [:]

    var count: Int { new.count + old.count }

    mutating func find(_ credential: S3Credential) -> SigningKey? {
        let name = Name(bytes: credential.text)
        if let key = new[name] { return key }
        guard let key = old[name] else { return nil }
        insert(key, credential)
        return key
    }

    mutating func insert(_ key: SigningKey, _ credential: S3Credential) {
        // A digest's states, tables and a principal; a session's claims take about twice the size of its token.
        let bytes = 800 + credential.text.count + 3 * (key.session?.token.count ?? 0)
        if newBytes + bytes > SigningKeys.limit / 2 {
            old = new
            new = [:]
            newBytes = 0
        }
        newBytes += bytes
        new[Name(bytes: credential.text)] = key
    }
}
