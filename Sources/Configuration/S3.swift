import Gateway
import Identity
import System
import Wire

/// The S3 API in front. Times are in nanoseconds.
public struct S3Configuration: Sendable, Equatable {
    /// `host:port` of the listeners; nil if they are switched off.
    public var http: String?
    public var https: String?
    /// The region that signatures must name; nil for any.
    public var region: String?
    /// Host names at the other listeners whose requests are S3's.
    public var domains: [String] = []
    /// A file of access keys; nil for none.
    public var keys: String?
    /// A file of keys for temporary credentials; nil for none.
    public var sessionKeys: String?
    public var maximumSession = UInt64(3600) * 1_000_000_000
    /// `readable` or `listed`.
    public var listing = "readable"
    /// The maximum number of open multipart uploads of each caller; 0 for no limit.
    public var uploads = 1000
    /// The caller groups of the access keys.
    var groups: Set<BytewiseString> = []

    /// Whether any request can be S3's.
    public var isOn: Bool { http != nil || https != nil || !domains.isEmpty }

    /// Whether lists have only readable objects.
    public var listsReadable: Bool { isOn && listing == "readable" }

    /// The settings for the gateway; nil if the S3 API is switched off.
    public var settings: S3Settings? {
        guard isOn else { return nil }
        return S3Settings(
            region: region, domains: domains.map { $0.asciiLowercased() },
            maximumSession: Int64(maximumSession / 1_000_000_000), listsAll: listing == "listed")
    }

    static let listeners: [Setting<Configuration>] = [
        .address(
            "listen.s3.http", \.s3.http,
            "Address of a listener without TLS for S3 clients; null has none."),
        .address(
            "listen.s3.https", \.s3.https,
            "Address of a TLS listener for S3 clients, with the certificate of listen.https; null has none."),
    ]

    static let settings: [Setting<Configuration>] = [
        .word(
            "s3.region", \.s3.region,
            "The region that signatures must name; null is any, and us-east-1 in responses."),
        .list(
            "s3.domains", "host names", \.s3.domains,
            "Host names at the other listeners whose requests are S3's, also with BUCKET. before them.",
            check: domainFault),
        .path(
            "s3.keys", \.s3.keys,
            "File with the access keys of S3 clients; null is none. Reloaded when it changes."),
        .path(
            "s3.sessionKeys", \.s3.sessionKeys,
            "File with the keys of temporary credentials, the newest first, the same at all replicas; null is a random "
                + "key at each start. Reloaded when it changes."),
        .duration(
            "s3.maximumSession", 900_000_000_000...43_200_000_000_000, \.s3.maximumSession,
            "Maximum lifetime of temporary credentials."),
        .choice(
            "s3.listing", ["readable", "listed"], \.s3.listing,
            "Which objects lists of S3 have: 'readable' those that the caller may also get, 'listed' all that it may list."
        ),
        .integer(
            "s3.uploads", 0...1_000_000, \.s3.uploads,
            "Open multipart uploads of each caller; over it SlowDown. 0 is no limit."),
    ]

    static func domainFault(_ text: String) -> String? {
        let labels = text.split(separator: ".", omittingEmptySubsequences: false)
        let isName = labels.allSatisfy { label in
            !label.isEmpty && label.utf8.allSatisfy { ASCII.isLetter($0) || ASCII.isDigit($0) || $0 == 0x2d }
        }
        return isName ? nil : "expected a host name without a port, found '\(text)'"
    }
}

extension ConfigurationReader {
    mutating func checkS3() {
        let s3 = result.s3
        if s3.isOn {
            if s3.keys == nil, result.issuers.isEmpty, result.tokens.isEmpty {
                report(
                    SettingError(message: "no S3 client can sign: 's3.keys' is missing, and there are no issuers"),
                    at: "listen.s3.http", "listen.s3.https", "s3.domains")
            }
        } else {
            for (key, isGiven) in [("keys", s3.keys != nil), ("sessionKeys", s3.sessionKeys != nil)] where isGiven {
                report(
                    SettingError(message: "'s3.\(key)' requires 'listen.s3.http', 'listen.s3.https' or 's3.domains'"),
                    at: "s3.\(key)")
            }
        }
        for (key, file) in [("s3.keys", s3.keys), ("s3.sessionKeys", s3.sessionKeys)] {
            guard let file, let reason = Self.whyUnreadable(file) else { continue }
            report(SettingError(message: "'\(key)': \(file) can't be read: \(reason)"), at: key)
        }
    }

    /// Reads the groups of the access keys. Errors of the file are reported when its keys are loaded.
    mutating func readS3Groups() {
        guard result.s3.isOn else { return }
        result.s3.groups = [BytewiseString(AccessKeys.source)]
        guard let file = result.s3.keys, let bytes = try? File.contents(of: file, limit: 16 << 20),
            let keys = try? AccessKeys(text: String(decoding: bytes, as: UTF8.self))
        else { return }
        result.s3.groups.formUnion(keys.groups)
    }
}
