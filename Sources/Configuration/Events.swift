import Gateway
import Wire

/// Recorded changes of directory buckets.
public struct EventConfiguration: Sendable, Equatable {
    /// How long changes are kept, in nanoseconds.
    public var retention = 24 * EventConfiguration.hour
    /// The maximum number of changes of a bucket that are kept.
    public var maximumPending = 1_000_000
    /// Whether clients can watch directory buckets.
    public var isWatched = false

    private static let hour: UInt64 = 3600 * 1_000_000_000

    static let settings: [Setting<Configuration>] = [
        .duration(
            "eventOptions.retention", 60 * 1_000_000_000...720 * hour, \.eventOptions.retention,
            "How long the changes of a directory bucket are kept for clients that watch it, and after their delivery."),
        .integer(
            "eventOptions.maximumPending", 1...1_000_000_000, \.eventOptions.maximumPending,
            "Changes of each bucket that are kept; over it the oldest are given up."),
        .flag(
            "eventOptions.watch", \.eventOptions.isWatched,
            "Whether clients can wait for changes of directory buckets, which records each of them."),
    ]
}

extension Configuration {
    /// Whether a bucket's changes can be watched.
    public func isWatched(_ bucket: Bucket) -> Bool {
        if case .directory = bucket.store { return eventOptions.isWatched }
        return false
    }

    /// Why a bucket's changes can't be watched, and what to use instead.
    public func whyUnwatched(_ bucket: Bucket) -> String {
        switch bucket.store {
        case .gcs:
            "Other writers of the Google Cloud Storage bucket would be missed: use its Pub/Sub notifications."
        case .s3:
            "Other writers of the S3 bucket would be missed: use its event notifications (SQS, SNS or EventBridge on AWS)."
        case .directory, nil: "Buckets are not watched here: eventOptions.watch is off."
        }
    }
}
