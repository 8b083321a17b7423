import Gateway
import Wire

/// Uploads in several requests. Times are in nanoseconds.
public struct UploadConfiguration: Sendable, Equatable {
    /// A key file; nil for a random key at start.
    public var keys: String?
    /// The origin of session URLs; nil for the request's.
    public var publicURL: String?
    public var lifetime = 24 * UploadConfiguration.hour
    public var resultLifetime = UploadConfiguration.hour
    public var sweepInterval = 300 * UploadConfiguration.second
    /// The maximum number of open sessions of each caller; 0 for no limit.
    public var sessions = 64
    /// The maximum size of each caller's open sessions in bytes; 0 for no limit.
    public var stagedBytes = UInt64(256) << 30
    public var announcesAlways = false
    /// Whether the tus protocol is served.
    public var tus = true

    private static let second: UInt64 = 1_000_000_000
    private static let hour = 3600 * second

    /// The settings for the gateway.
    /// - Parameter s3Uploads: ``S3Configuration/uploads``.
    public func settings(s3Uploads: Int) -> UploadSettings {
        var settings = UploadSettings()
        settings.lifetime = Int64(lifetime / UploadConfiguration.second)
        settings.resultLifetime = Int64(resultLifetime / UploadConfiguration.second)
        settings.sessions = sessions
        settings.s3Uploads = s3Uploads
        settings.stagedBytes = stagedBytes
        settings.publicURL = publicURL.map { $0.hasSuffix("/") ? String($0.dropLast()) : $0 }
        settings.announcesAlways = announcesAlways
        settings.servesTus = tus
        return settings
    }

    static let settings: [Setting<Configuration>] = [
        .path(
            "uploads.keys", \.uploads.keys,
            "File with the keys that seal the URLs of upload sessions, the newest first, the same at "
                + "all replicas; null is a random key at each start. Reloaded when it changes."),
        .endpoint(
            "uploads.publicURL", \.uploads.publicURL,
            "Origin in the URLs of upload sessions that clients are given; null is the one that was asked."),
        .duration(
            "uploads.lifetime", second...168 * hour, \.uploads.lifetime,
            "How long an upload session can be continued, from its creation."),
        .duration(
            "uploads.resultLifetime", second...168 * hour, \.uploads.resultLifetime,
            "How long a finished session reports its result, at most until the session would have ended."),
        .duration(
            "uploads.sweepInterval", second...24 * hour, \.uploads.sweepInterval,
            "How often expired sessions are removed."),
        .integer(
            "uploads.sessions", 0...1_000_000, \.uploads.sessions,
            "Open upload sessions of each caller; over it status 429. 0 is no limit."),
        .bytes(
            "uploads.stagedBytes", 0...UInt64(1) << 50, \.uploads.stagedBytes,
            "Bytes of each caller's open upload sessions, in a bucket also half of its stagedBytes; over it status 429. 0 is no limit."
        ),
        .flag("uploads.tus", \.uploads.tus, "Whether the tus protocol is served, at /tus."),
        .flag(
            "uploads.announceAlways", \.uploads.announcesAlways,
            "Whether a 104 response is sent to every client that sends Upload-Complete, not only to "
                + "those that announce a draft."),
    ]
}

extension Configuration {
    /// The names of buckets whose ``Bucket/stagedBytes`` one caller can take for itself.
    public var bucketsForOneCaller: [String] {
        uploads.stagedBytes > 0 ? [] : buckets.filter { $0.stagedBytes > 0 }.map(\.name)
    }
}
