import Wire

/// Names an upload session in its store: when it expires, and 128 random bits.
///
/// The expiry is part of it so that a store can keep sessions in its order. No path is ever made of what a client sent:
/// text is accepted in one form only.
public struct UploadSessionID: Sendable, Hashable {
    /// Seconds since 1970.
    public let expires: Int64
    private let high: UInt64
    private let low: UInt64

    /// A new one.
    public init(expires: Int64) {
        self.expires = max(0, expires)
        high = UInt64.random(in: 0 ... .max)
        low = UInt64.random(in: 0 ... .max)
    }

    /// 24 bytes: the expiry with its highest byte first, then the random ones. Their order is that of the expiry.
    public var bytes: [UInt8] {
        [UInt64(expires), high, low].flatMap { word in
            withUnsafeBytes(of: word.bigEndian) { Array($0) }
        }
    }

    /// Takes what ``bytes`` returned; nil for anything else.
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

    /// 48 hexadecimal digits in lower case. Who knows them can name the session: they don't belong in a log.
    public var text: String { Hexadecimal.encode(bytes) }

    /// Takes what ``text`` returned; nil for anything else, also for digits in upper case.
    public init?(text: some StringProtocol) {
        let digits = Array(text.utf8)
        let isCanonical = digits.allSatisfy {
            (0x30...0x39).contains($0) || (0x61...0x66).contains($0)
        }
        guard isCanonical, let bytes = Hexadecimal.decode(digits) else { return nil }
        self.init(bytes)
    }
}
