import Buckets
import OpenSSL
import Synchronization
import System
import Wire

/// A store in memory that can be told to fail.
///
/// Safety: all its state is behind one lock.
final class MemoryBucket: BucketDriver, @unchecked Sendable {
    struct State {
        var objects: [[UInt8]: (metadata: ObjectMetadata, bytes: [UInt8])] = [:]
        var nextGeneration: Int64 = 100
        /// What every call throws.
        var fault: BucketError?
        /// Whether commits claim other bytes than they were given.
        var isLying = false
        /// Whether readers end early.
        var breaksOff = false
        /// Runs once before the next change.
        var beforeChange: (@Sendable (MemoryBucket) -> Void)?
        /// Runs once before the next upload begins.
        var beforeUpload: (@Sendable (MemoryBucket) -> Void)?
        /// Whatever was called, in order.
        var calls: [String] = []
        /// Readers and sources that are open.
        var open = 0
        /// Whether a failed precondition ends an upload.
        var losesUploads = false
    }
    private let state = Lock(State())
    private let promised: Capabilities

    init(_ capabilities: Capabilities = .all) { promised = capabilities }

    func capabilities() -> Capabilities { promised }

    func with<T>(_ body: (inout State) -> T) -> T { state.withLock(body) }

    var calls: [String] { with { $0.calls } }
    var openReaders: Int { with { $0.open } }

    func bytes(of name: String) -> [UInt8]? { with { $0.objects[Array(name.utf8)]?.bytes } }

    /// Puts an object there without the surface.
    func seed(_ name: String, _ bytes: [UInt8] = [], _ attributes: ObjectAttributes = .init()) {
        _ = with { commit(&$0, name, bytes, attributes) }
    }

    /// The same, and returns its metadata.
    func seeded(_ name: String) -> ObjectMetadata {
        with { commit(&$0, name, [], ObjectAttributes()).metadata }
    }

    private func commit(
        _ state: inout State, _ name: String, _ bytes: [UInt8], _ attributes: ObjectAttributes
    ) -> CommitResult {
        let (md5, crc32c) = digests(bytes)
        let generation = state.nextGeneration
        state.nextGeneration += 1
        let object = ObjectMetadata(
            name: name, generation: generation, metageneration: 1, size: UInt64(bytes.count),
            created: 784_111_777_123, updated: 784_111_777_123,
            md5: state.isLying ? Array(repeating: 0, count: 16) : md5, crc32c: crc32c,
            etag: "e\(generation)", attributes: attributes)
        let old = state.objects.updateValue((object, bytes), forKey: Array(name.utf8))
        return CommitResult(metadata: object, replaced: old != nil)
    }

    private func beginChange() {
        let hook = with { state in
            let hook = state.beforeChange
            state.beforeChange = nil
            return hook
        }
        hook?(self)
    }

    private func called(_ call: String) throws(BucketError) {
        let fault = with { state in
            state.calls.append(call)
            return state.fault
        }
        if let fault { throw fault }
    }

    private func find(_ name: String) throws(BucketError) -> (
        metadata: ObjectMetadata, bytes: [UInt8]
    ) {
        guard let found = with({ $0.objects[Array(name.utf8)] }) else {
            throw BucketError(.objectNotFound)
        }
        return found
    }

    func stat(_ name: String) async throws(BucketError) -> ObjectMetadata {
        try called("stat \(name)")
        return try find(name).metadata
    }

    func open(_ name: String, _ plan: ReadPlan) async throws(BucketError) -> any ObjectReader {
        try called("open \(name)")
        let found = try find(name)
        with { $0.open += 1 }
        return MemoryReader(self, found.metadata, found.bytes)
    }

    func beginUpload(_ name: String, _ plan: UploadPlan) async throws(BucketError) -> any Upload {
        let hook = with { state in
            let hook = state.beforeUpload
            state.beforeUpload = nil
            return hook
        }
        hook?(self)
        try called("begin \(name)")
        return MemoryUpload(self, name, plan.attributes, plan.digests)
    }

    fileprivate func commit(_ upload: MemoryUpload, _ preconditions: Preconditions)
        throws(BucketError) -> CommitResult
    {
        beginChange()
        try called("commit \(upload.name)")
        let (name, bytes, attributes) = (upload.name, upload.bytes, upload.attributes)
        let result: CommitResult? = with { state in
            let old = state.objects[Array(name.utf8)]?.metadata
            if preconditions.evaluate(old, reading: false) != nil { return nil }
            return commit(&state, name, bytes, attributes)
        }
        guard let result else { throw BucketError(.preconditionFailed) }
        return result
    }

    func patch(_ name: String, _ patch: AttributePatch, _ preconditions: Preconditions)
        async throws(BucketError) -> ObjectMetadata
    {
        beginChange()
        try called("patch \(name)")
        var found = try find(name)
        if preconditions.evaluate(found.metadata, reading: false) != nil {
            throw BucketError(.preconditionFailed)
        }
        found.metadata = found.metadata.patched(patch, now: found.metadata.updated + 1000)
        let changed = found
        with { $0.objects[Array(name.utf8)] = changed }
        return found.metadata
    }

    func delete(_ name: String, _ preconditions: Preconditions) async throws(BucketError) {
        beginChange()
        try called("delete \(name)")
        let found = try find(name)
        if preconditions.evaluate(found.metadata, reading: false) != nil {
            throw BucketError(.preconditionFailed)
        }
        _ = with { $0.objects.removeValue(forKey: Array(name.utf8)) == nil }
    }

    func list(_ query: ListQuery, after: String?) async throws(BucketError) -> ListPage {
        try called("list \(query.prefix)")
        let names = with { $0.objects.keys.sorted { $0.lexicographicallyPrecedes($1) } }
        let prefix = Array(query.prefix.utf8)
        var page = ListPage()
        var last: [UInt8] = Array((after ?? "").utf8)
        for name in names where name.starts(with: prefix) {
            var entry = name
            var isFolded = false
            if query.delimited, let slash = name[prefix.count...].firstIndex(of: 0x2f) {
                entry = Array(name[...slash])
                isFolded = true
            }
            guard last.lexicographicallyPrecedes(entry) else { continue }
            let text = String(decoding: entry, as: UTF8.self)
            if !isFolded, text.contains("//") || text.hasSuffix("/") && !query.markers { continue }
            if entry.count > prefix.count, entry[prefix.count] == 0x2f { continue }
            if page.items.count + page.prefixes.count == query.limit {
                page.end = String(decoding: last, as: UTF8.self)
                return page
            }
            if isFolded {
                page.prefixes.append(text)
            } else {
                page.items.append(text)
                if query.withProperties { page.properties[BytewiseString(text)] = listed(name) }
            }
            last = entry
        }
        return page
    }

    private func listed(_ name: [UInt8]) -> ListedProperties? {
        guard let object = with({ $0.objects[name]?.metadata }) else { return nil }
        var listed = ListedProperties(
            size: object.size, updated: object.updated, etag: object.etag)
        listed.generation = object.generation
        listed.contentType = object.attributes.contentType
        listed.md5 = object.md5
        listed.crc32c = object.crc32c
        return listed
    }

    func checkHealth() async throws(BucketError) { try called("health") }

    func close() async {}

    fileprivate func aborted(_ name: String) { with { $0.calls.append("abort \(name)") } }

    fileprivate func readerClosed() { with { $0.open -= 1 } }

    fileprivate var breaksOff: Bool { with { $0.breaksOff } }
}

extension Capabilities {
    /// Of a store that can decide nothing together with a write.
    static let weak = Capabilities(
        atomicUploads: false, atomicPatches: false, atomicDeletions: false, lateConditions: true,
        durable: false)
}

private func digests(_ bytes: [UInt8]) -> (md5: [UInt8], crc32c: UInt32) {
    let md5 = Digest(.md5)
    md5.update(bytes.span.bytes)
    var crc = CRC32C()
    crc.update(bytes.span.bytes)
    return (md5.finish(), crc.value)
}

private final class MemoryUpload: Upload {
    let name: String
    let attributes: ObjectAttributes
    var bytes: [UInt8] = []
    private let bucket: MemoryBucket
    private let algorithms: Set<DigestAlgorithm>
    private(set) var isOpen = true

    init(
        _ bucket: MemoryBucket, _ name: String, _ attributes: ObjectAttributes,
        _ algorithms: Set<DigestAlgorithm>
    ) {
        self.bucket = bucket
        self.name = name
        self.attributes = attributes
        self.algorithms = algorithms
    }

    func write(_ span: RawSpan) throws -> Int {
        if let fault = bucket.with({ $0.fault }) { throw fault }
        span.withUnsafeBytes { bytes.append(contentsOf: $0) }
        return span.byteCount
    }

    func whenWritable(_ resume: @escaping () -> Void) { resume() }

    func finish() async throws(BucketError) -> ContentFacts {
        // A copy, because the release build of Swift 6.3.1 rejects a span of the property in the loop.
        let bytes = bytes
        let (md5, crc32c) = digests(bytes)
        var facts = ContentFacts(size: UInt64(bytes.count), md5: md5, crc32c: crc32c)
        for algorithm in algorithms {
            var digest = RunningDigest(algorithm)
            digest.update(bytes.span.bytes)
            facts.digests[algorithm] = digest.finish()
        }
        return facts
    }

    func commit(_ preconditions: Preconditions) async throws(BucketError) -> CommitResult {
        do throws(BucketError) {
            let result = try bucket.commit(self, preconditions)
            isOpen = false
            return result
        } catch {
            isOpen = error.code == .preconditionFailed && !bucket.with { $0.losesUploads }
            throw error
        }
    }

    func abort() {
        isOpen = false
        bucket.aborted(name)
    }
}

private final class MemoryReader: ObjectReader, ByteSource {
    let metadata: ObjectMetadata
    private let bucket: MemoryBucket
    private var rest: ArraySlice<UInt8>

    init(_ bucket: MemoryBucket, _ metadata: ObjectMetadata, _ bytes: [UInt8]) {
        self.bucket = bucket
        self.metadata = metadata
        rest = bytes[...]
    }

    // Waited for, so that tests cover this way too.
    func readyBytes(_ range: Range<UInt64>) -> (any ByteSource)? { nil }

    func bytes(_ range: Range<UInt64>) throws(BucketError) -> any ByteSource {
        rest = rest[Int(range.lowerBound)..<Int(range.upperBound)]
        return self
    }

    func read(into buffer: inout MutableRawSpan) throws -> SourceRead {
        if bucket.breaksOff { throw BucketError(.unavailable, "gone") }
        guard !rest.isEmpty else { return .end }
        let count = min(3, rest.count, buffer.byteCount)
        buffer.withUnsafeMutableBytes { $0.copyBytes(from: rest.prefix(count)) }
        rest = rest.dropFirst(count)
        return .bytes(count)
    }

    func whenReadable(_ resume: @escaping () -> Void) { resume() }

    func close() { bucket.readerClosed() }
}
