import HTTPClient
import System

/// An opened object whose bytes come from the cache, or through a fill. Confined to its loop.
final class CachedReader: ObjectReader {
    private let object: CachedObject
    private let cache: ReadCache
    private let loop: EventLoop
    /// Counts this as a reader.
    private var fill: SliceFill?
    /// The slices for which this read has made the service send them.
    private let own: Range<UInt32>

    init(_ object: CachedObject, _ fill: SliceFill?, isCollapsed: Bool, _ cache: ReadCache, _ loop: EventLoop) {
        self.object = object
        self.fill = fill
        own = isCollapsed ? 0..<0 : fill?.slices ?? 0..<0
        self.cache = cache
        self.loop = loop
    }

    deinit { close() }

    var metadata: ObjectMetadata { object.metadata }

    func readyBytes(_ range: Range<UInt64>) throws(BucketError) -> (any ByteSource)? {
        guard range.upperBound <= metadata.size else {
            throw BucketError(.internal, "bytes of \(range) of \(metadata.size)")
        }
        if range.isEmpty { return EmptySource.shared }
        if fill == nil, let bytes = smallObject() {
            object.bucket.statistics.fromCache(Int(range.upperBound - range.lowerBound))
            return BytesSource(bytes, Int(range.lowerBound)..<Int(range.upperBound))
        }
        // The reader is allowed to read now.
        let fill = self.fill.take()
        fill?.begin()
        return CachedSource(object, range, fill, own: own, cache, loop)
    }

    /// All bytes of an object of one unit, if they are in memory or in the page cache. Cheaper than a source of its own.
    private func smallObject() -> [UInt8]? {
        if let bytes = object.known.bytes { return bytes }
        guard metadata.size <= UInt64(CacheLayout.unit), metadata.crc32c == nil || object.bucket.isVerified(object),
            let entry = cache.index.hit(SliceKey(object: object.key, index: 0)), UInt64(entry.length) == metadata.size,
            case .bytes(let bytes) = File.readCached(entry.segment.descriptor, Int(entry.length), at: entry.offset),
            CacheLayout.agree(bytes.span.bytes, [entry.crc32c])
        else { return nil }
        if bytes.count <= CachedBucket.inMemory { object.bucket.keep(bytes, of: object) }
        return bytes
    }

    func bytes(_ range: Range<UInt64>) throws(BucketError) -> any ByteSource {
        guard let source = try readyBytes(range) else { throw BucketError(.internal, "no source") }
        return source
    }

    func close() { fill.take()?.leave() }
}

/// An opened object whose bytes come directly from the service, by a request that was sent already. Confined to its loop.
final class DirectReader: ObjectReader {
    let metadata: ObjectMetadata
    private let range: Range<UInt64>
    private var source: (any ByteSource)?

    init(_ metadata: ObjectMetadata, _ range: Range<UInt64>, _ source: any ByteSource) {
        self.metadata = metadata
        self.range = range
        self.source = source
    }

    deinit { close() }

    func readyBytes(_ range: Range<UInt64>) throws(BucketError) -> (any ByteSource)? {
        guard range == self.range, let source = source.take() else {
            throw BucketError(.internal, "bytes of \(range), not of \(self.range)")
        }
        return source
    }

    func bytes(_ range: Range<UInt64>) throws(BucketError) -> any ByteSource {
        guard let source = try readyBytes(range) else { throw BucketError(.internal, "no source") }
        return source
    }

    func close() {
        source?.close()
        source = nil
    }
}
