import Wire

/// The limits of each caller in a group; 0 is no limit.
public struct CallerGroup: Sendable, Equatable {
    /// The group's name, or ``otherwise``.
    public let name: String
    /// Requests per second.
    public var requests = 0
    /// Bytes per second.
    public var bytesIn: UInt64 = 0
    public var bytesOut: UInt64 = 0
    /// Concurrent requests.
    public var transfers = 0

    public init(name: String) { self.name = name }

    /// The name of the limits for all groups without their own limits.
    public static let otherwise = "default"

    /// Why a text can't name a group, an issuer, a token or a key of links; nil if it can. Names are limited to characters
    /// that are safe in logs and metrics.
    public static func fault(ofName name: String) -> String? {
        let isWord = name.utf8.allSatisfy {
            ASCII.isLetter($0) || ASCII.isDigit($0) || "-_.".utf8.contains($0)
        }
        if isWord, (1...64).contains(name.utf8.count) { return nil }
        return "'\(name)' can't be a name here: it has 1 to 64 of a-z, A-Z, 0-9, '-', '_' and '.'"
    }
}
