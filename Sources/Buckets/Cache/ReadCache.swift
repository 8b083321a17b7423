import System
import Wire

/// The read cache: a stub of its API.
public final class ReadCache: Sendable {
    /// The settings of the cache.
    public struct Settings: Sendable, Equatable {
        /// The settings.
        public var directory: String
        public var size: UInt64
        public var reserve: UInt64
        public var metadata: Int
        public var fills: Int
        public var minimumUses: Int

        public init(
            directory: String, size: UInt64 = 10 << 30, reserve: UInt64 = 1 << 30, metadata: Int = 16 << 20,
            fills: Int = 16, minimumUses: Int = 1
        ) {
            self.directory = directory
            self.size = size
            self.reserve = reserve
            self.metadata = metadata
            self.fills = fills
            self.minimumUses = minimumUses
        }
    }

    /// How old the knowledge may be which version of an object is current.
    public enum Freshness: Sendable, Equatable {
        /// Validated for each request, kept for nanoseconds, or kept forever.
        case validate
        case limited(UInt64)
        case forever
    }

    /// The state of the cache's disk.
    public enum DiskState: String, Sendable, CaseIterable {
        /// The states.
        case opening, open, full, broken
    }

    /// What the cache has done and has.
    public struct Report: Sendable {
        /// The same for a bucket.
        public struct Bucket: Sendable {
            /// The values.
            public var name: String
            public var results: [(String, Int)]
            public var bytesFromCache: Int, bytesFromService: Int
            public var asks: Int, sharedAsks: Int
            public var savedRequests: Int
            public var knownObjects: Int
        }
        /// The values.
        public var state: DiskState
        public var cause: String?
        public var size: Int
        public var limit: UInt64
        public var slices: Int
        public var fills: Int
        public var joinedFills: Int
        public var writtenBytes: Int
        public var evicted: [(String, Int)]
        public var buckets: [Bucket]
    }

    private let settings: Settings
    private let buckets = Lock<[String]>([])

    public init(
        _ settings: Settings, pool: BlockingPool, onChange: @escaping @Sendable (DiskState, String?) -> Void
    ) {
        self.settings = settings
        onChange(.open, nil)
    }

    /// The cache of a bucket; nil if it has none.
    public func bucket(
        _ name: String, _ driver: any BucketDriver, _ freshness: Freshness?, staleIfError: UInt64
    ) -> CachedBucket? {
        if freshness != nil { buckets.withLock { $0 = [name] } }
        return freshness.map { _ in CachedBucket() }
    }

    /// Why the cache's disk is not in use.
    public var note: String? { nil }

    /// Forgets names.
    public func forget(bucket: String, name: String?) -> Bool {
        buckets.withLock { $0.first?.utf8.elementsEqual(bucket.utf8) } ?? false
    }

    /// Removes all.
    public func purge() async {}

    /// What the cache has done and has.
    public var report: Report {
        let results = ["hit", "validated", "miss", "partial", "stale", "bypass", "replaced"].map { ($0, 0) }
        let buckets = buckets.withLock { $0 }.map {
            Report.Bucket(
                name: $0, results: results, bytesFromCache: 0, bytesFromService: 0, asks: 0, sharedAsks: 0,
                savedRequests: 0, knownObjects: 0)
        }
        return Report(
            state: .open, cause: nil, size: 0, limit: settings.size, slices: 0, fills: 0, joinedFills: 0,
            writtenBytes: 0, evicted: ["size", "damaged", "replaced", "purged"].map { ($0, 0) }, buckets: buckets)
    }

    /// Ends fills.
    public func close() async {}
}

/// The cache of a bucket.
public final class CachedBucket: Sendable {}
