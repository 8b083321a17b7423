import Buckets
import Gateway
import SecurityRules
import System
import Wire

/// The read cache.
public struct CacheConfiguration: Sendable, Equatable {
    /// The absolute path of its directory; nil if it is switched off.
    public var directory: String?
    /// The maximum size on disk, in bytes.
    public var size = UInt64(10) << 30
    /// The free space that is left on the file system, in bytes.
    public var reserve = UInt64(1) << 30
    /// The memory for names and metadata of each bucket, in bytes.
    public var metadata = 16 << 20
    /// The maximum number of concurrent fills.
    public var fills = 16
    /// The read of a part of an object that puts it into the cache: 1 or 2.
    public var minimumUses = 1

    /// The settings for the cache; nil if it is switched off.
    public var settings: ReadCache.Settings? {
        directory.map {
            ReadCache.Settings(
                directory: $0, size: size, reserve: reserve, metadata: metadata, fills: fills, minimumUses: minimumUses)
        }
    }

    static let settings: [Setting<Configuration>] = [
        .path(
            "cache.directory", \.cache.directory,
            "Directory of the read cache, which only its owner may enter; created if it does not exist. null has none."),
        .bytes(
            "cache.size", UInt64(256) << 20...UInt64(64) << 40, \.cache.size,
            "Maximum size of the cache on disk. It is evicted in segments of up to a sixteenth of it, so a smaller one would "
                + "keep too little."),
        .bytes(
            "cache.reserve", 0...UInt64(64) << 40, \.cache.reserve,
            "Free space that the cache leaves to others on its file system."),
        .bytes(
            "cache.metadata", 1 << 20...4 << 30, \.cache.metadata,
            "Memory for the names and metadata of objects, and the bytes of small ones, for each cached bucket."),
        .integer(
            "cache.fills", 1...1000, \.cache.fills,
            "Concurrent reads from services that fill the cache, each with 512KiB of memory; others are not cached."),
        .integer(
            "cache.minimumUses", 1...2, \.cache.minimumUses,
            "The read of a part of an object that puts it into the cache: the first, or the second within a while."),
    ]
}

/// The read cache of one bucket.
public struct BucketCache: Sendable, Equatable {
    /// How old the knowledge may be which version of an object is current; nil if the bucket is not cached.
    public var freshness: ReadCache.Freshness?
    /// How old that may be while the service fails, in nanoseconds; 0 for never.
    public var staleIfError: UInt64 = 0

    /// In nanoseconds.
    static let times = UInt64(1_000_000_000)...720 * 3_600_000_000_000

    static let settings: [Setting<Configuration.Bucket>] = [
        .freshness(
            "cache.freshness", \.cache.freshness,
            "How long the gateway may serve an object from the cache without asking the service whether it has changed: "
                + "'validate' asks for each request. null does not cache the bucket."),
        .duration(
            "cache.staleIfError", 0...times.upperBound, \.cache.staleIfError,
            "How long after its last validation an object is served while the service is unavailable; 0 is never."),
    ]
}

extension Setting {
    /// `validate`, a duration, or `forever`.
    static func freshness(
        _ path: String, _ field: WritableKeyPath<Root, ReadCache.Freshness?> & Sendable, _ meaning: String
    ) -> Setting {
        let bounds = [BucketCache.times.lowerBound, BucketCache.times.upperBound].map(Units.durations.text)
        let type = "validate, a duration from \(bounds[0]) to \(bounds[1]), forever, or null"
        return Setting(path, type, field, meaning) { (input) throws(SettingError) in
            if input.isNull { return nil }
            let (text, _) = try input.scalar(type)
            switch text {
            case "validate": return .validate
            case "forever": return .forever
            default: break
            }
            guard let time = Units.durations.value(text), BucketCache.times.contains(time) else {
                var error = input.mismatch(type)
                error.suggestion = Spelling.nearest(to: text, among: ["validate", "forever"])
                throw error
            }
            return .limited(time)
        } print: {
            switch $0 {
            case nil: "null"
            case .validate: "validate"
            case .limited(let time): Units.durations.text(time)
            case .forever: "forever"
            }
        }
    }
}

extension ConfigurationReader {
    mutating func checkCache() {
        if let directory = result.cache.directory { checkPlace(of: directory) }
        for bucket in result.buckets {
            // The keys of a directory are errors of their own.
            if case .directory = bucket.store { continue }
            let path = "buckets.\(bucket.name).cache"
            if bucket.cache.freshness != nil, result.cache.directory == nil {
                guard broken.isDisjoint(with: ["", "cache", "cache.directory"]) else { continue }
                report(
                    SettingError(message: "'\(path).freshness' requires 'cache.directory'"), at: path + ".freshness")
            }
            if bucket.cache.staleIfError > 0, bucket.cache.freshness == nil,
                broken.isDisjoint(with: [path + ".freshness"])
            {
                report(
                    SettingError(message: "'\(path).staleIfError' requires '\(path).freshness'"),
                    at: path + ".staleIfError")
            }
        }
    }

    /// The cache removes what it does not know in its directory.
    private mutating func checkPlace(of directory: String) {
        let place = Self.resolved(directory)
        for bucket in result.buckets {
            guard let path = bucket.directory.map(Self.resolved),
                path == place || path.hasPrefix(place + "/") || place.hasPrefix(path + "/")
            else { continue }
            report(
                SettingError(
                    message:
                        "'cache.directory' and bucket '\(bucket.name)' have the same directory, or one inside the other"
                ),
                at: "cache.directory", "buckets.\(bucket.name).directory.path")
        }
    }
}

extension Configuration {
    /// The buckets that keep versions forever although callers may replace or delete objects, as `key: warning: …`.
    /// - Parameter rules: The rules of a bucket; nil if everything is allowed, or if they did not load.
    public func cacheWarnings(_ rules: (Bucket) -> Ruleset?) -> [String] {
        buckets.filter { $0.cache.freshness == .forever }.compactMap { bucket in
            let isOpen = self.rules(of: bucket) == Configuration.openToAll
            guard isOpen || rules(bucket)?.allowsChanges(bucket: bucket.name) == true else { return nil }
            return
                "buckets.\(bucket.name).cache.freshness: warning: the rules allow objects to be replaced or deleted, but "
                + "with 'forever' other gateways go on serving the version that they have"
        }
    }
}

extension Ruleset {
    /// Whether any statement can allow a change of an existing object in a bucket.
    fileprivate func allowsChanges(bucket: String) -> Bool {
        [Method.update, .delete].contains { method in
            statements(for: method, bucket: bucket).contains(where: \.canAllow)
        }
    }
}
