import Wire

/// The identifier of an upload session in its store: its expiry and 128 random bits. Stores can keep sessions ordered
/// by expiry. Only one textual form is accepted, so that no path depends on the client's spelling.
public struct UploadSessionID: Sendable, Hashable {
    /// The expiry in seconds since 1970.
    public let expires: Int64
    private let high: UInt64
    private let low: UInt64

    /// Makes a new identifier.
    public init(expires: Int64) {
        self.expires = max(0, expires)
        high = UInt64.random(in: 0 ... .max)
        low = UInt64.random(in: 0 ... .max)
    }

    /// 24 bytes: the expiry (big-endian), then the random bytes. They sort by expiry.
    public var bytes: [UInt8] {
        [UInt64(expires), high, low].flatMap { word in
            withUnsafeBytes(of: word.bigEndian) { Array($0) }
        }
    }

    /// Parses ``bytes``; nil if they are malformed.
    public init?(_ bytes: [UInt8]) {
        guard bytes.count == 24 else { return nil }
        func word(_ index: Int) -> UInt64 {
            bytes[index * 8..<index * 8 + 8].reduce(0) { $0 << 8 | UInt64($1) }
        }
        guard let expires = Int64(exactly: word(0)) else { return nil }
        self.expires = expires
        high = word(1)
        low = word(2)
    }

    /// 48 lower-case hexadecimal digits. They grant access to the session, so they must not be logged.
    public var text: String { Hexadecimal.encode(bytes) }

    /// Parses ``text``; nil for any other form, including upper case.
    public init?(text: some StringProtocol) {
        let digits = Array(text.utf8)
        let isCanonical = digits.allSatisfy {
            (0x30...0x39).contains($0) || (0x61...0x66).contains($0)
        }
        guard isCanonical, let bytes = Hexadecimal.decode(digits) else { return nil }
        self.init(bytes)
    }
}
