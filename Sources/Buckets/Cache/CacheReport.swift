import Synchronization

/// Counts a bucket's reads. Any thread may use it.
final class CacheStatistics: Sendable {
    private let hit = Atomic<Int>(0)
    private let validated = Atomic<Int>(0)
    private let miss = Atomic<Int>(0)
    private let partial = Atomic<Int>(0)
    private let stale = Atomic<Int>(0)
    private let bypass = Atomic<Int>(0)
    private let replaced = Atomic<Int>(0)
    private let cacheBytes = Atomic<Int>(0)
    private let serviceBytes = Atomic<Int>(0)
    private let asks = Atomic<Int>(0)
    private let sharedAsks = Atomic<Int>(0)
    private let savedRequests = Atomic<Int>(0)

    func count(_ result: CacheOutcome.Result) {
        switch result {
        case .hit: hit.add(1, ordering: .relaxed)
        case .validated: validated.add(1, ordering: .relaxed)
        case .miss: miss.add(1, ordering: .relaxed)
        case .partial: partial.add(1, ordering: .relaxed)
        case .stale: stale.add(1, ordering: .relaxed)
        case .bypass: bypass.add(1, ordering: .relaxed)
        case .replaced: replaced.add(1, ordering: .relaxed)
        }
        if result == .hit || result == .stale { savedRequests.add(1, ordering: .relaxed) }
    }

    func fromCache(_ count: Int) { cacheBytes.add(count, ordering: .relaxed) }

    func fromService(_ count: Int) { serviceBytes.add(count, ordering: .relaxed) }

    func countAsk(isShared: Bool) {
        if isShared { sharedAsks.add(1, ordering: .relaxed) } else { asks.add(1, ordering: .relaxed) }
    }

    func report(_ name: String, knownObjects: Int) -> ReadCache.Report.Bucket {
        func value(_ counter: borrowing Atomic<Int>) -> Int { counter.load(ordering: .relaxed) }
        return ReadCache.Report.Bucket(
            name: name,
            results: [
                ("hit", value(hit)), ("validated", value(validated)), ("miss", value(miss)),
                ("partial", value(partial)), ("stale", value(stale)), ("bypass", value(bypass)),
                ("replaced", value(replaced)),
            ], bytesFromCache: value(cacheBytes), bytesFromService: value(serviceBytes), asks: value(asks),
            sharedAsks: value(sharedAsks), savedRequests: value(savedRequests), knownObjects: knownObjects)
    }
}

extension ReadCache {
    /// What the cache has done since it was created.
    public struct Report: Sendable {
        /// Of one bucket.
        public struct Bucket: Sendable {
            public var name: String
            /// Reads by their result: hit, validated, miss, partial, stale, bypass, replaced.
            public var results: [(String, Int)]
            /// Bytes for which the service sent nothing, and bytes that it sent.
            public var bytesFromCache: Int, bytesFromService: Int
            /// Requests for metadata, and reads that shared the answer to another's.
            public var asks: Int, sharedAsks: Int
            /// Reads without any request to the service.
            public var savedRequests: Int
            /// Objects whose metadata is in memory.
            public var knownObjects: Int
        }
        public var state: DiskState
        /// Why the state is not `open`.
        public var cause: String?
        /// Bytes on disk.
        public var size: Int
        /// The most bytes on disk.
        public var limit: UInt64
        public var slices: Int
        /// Fills that run now, and reads that shared one that ran.
        public var fills: Int, joinedFills: Int
        /// Bytes written to the disk.
        public var writtenBytes: Int
        /// Slices by the cause of their eviction: size, damaged, purged.
        public var evicted: [(String, Int)]
        /// Sorted by name.
        public var buckets: [Bucket]
    }

    /// The numbers for operators.
    public var report: Report {
        let (state, cause) = diskState
        func value(_ counter: borrowing Atomic<Int>) -> Int { counter.load(ordering: .relaxed) }
        return Report(
            state: state, cause: cause, size: log.allocatedBytes, limit: settings.size, slices: index.count,
            fills: fillCount, joinedFills: value(joinedFills), writtenBytes: value(log.written),
            evicted: [
                ("size", value(log.evicted)), ("damaged", value(damaged)), ("purged", value(purged)),
            ],
            buckets: bucketStates.map { $1.statistics.report($0.text, knownObjects: $1.known.count) })
    }
}
