import HTTPClient
import OpenSSL
import Synchronization
import System
import Wire

/// A cache of the metadata of some hundred objects.
///
/// A media response has the generation and metageneration of its object, but not its custom metadata and time. Cached
/// metadata of exactly that state saves a second request.
final class GCSMetadataCache: Sendable {
    private static let slotCount = 512
    /// Larger custom metadata is not cached: 1 KiB.
    private static let maximumCustomBytes = 1024
    private let slots = Lock<[ObjectMetadata?]>(Array(repeating: nil, count: slotCount))
    /// Whether media responses have the metageneration. Otherwise cached metadata can't be confirmed.
    private let confirmable = Atomic<Bool>(false)

    var isConfirmable: Bool { confirmable.load(ordering: .relaxed) }

    func find(_ name: String) -> ObjectMetadata? {
        guard isConfirmable else { return nil }
        let slot = BytewiseString.hash(of: name, below: Self.slotCount)
        let found = slots.withLock { $0[slot] }
        return found.flatMap { BytewiseString.areEqual($0.name, name) ? $0 : nil }
    }

    func keep(_ metadata: ObjectMetadata) {
        guard metadata.attributes.pairBytes <= Self.maximumCustomBytes else {
            return
        }
        let slot = BytewiseString.hash(of: metadata.name, below: Self.slotCount)
        slots.withLock { $0[slot] = metadata }
    }

    func noteMedia(withMetageneration: Bool) {
        if withMetageneration != isConfirmable {
            confirmable.store(withMetageneration, ordering: .relaxed)
        }
    }
}

extension GCSBucket {
    /// Begins a download.
    ///
    /// No response has both the bytes and all metadata. Both are requested concurrently, and belong together if their
    /// generations are equal. If the media response confirms cached metadata, one request suffices. Media responses of
    /// some emulators lack the metageneration. Those get the requests one after the other, because some respond to
    /// nothing else while they send an object that is not being read.
    public func open(_ name: String, _ plan: ReadPlan) async throws(BucketError)
        -> any ObjectReader
    {
        try checkOpen()
        let range = plan.range?.field
        for _ in 0..<GCSBucket.attempts {
            if plan.conditions.isEmpty, known.isConfirmable {
                if let reader = try await openOnce(name, range) { return reader }
                continue
            }
            // Read the metadata first: usually the conditions mean that the client already has the bytes.
            let metadata = try await stat(name)
            guard plan.conditions.evaluate(metadata, reading: true) == nil else {
                return GCSReader(self, metadata, nil)
            }
            if let reader = try await openOnce(name, range, metadata) { return reader }
        }
        throw BucketError(.overloaded, "the object is being replaced by others again and again")
    }

    /// Returns nil if the object was replaced between the two responses. `guess` is metadata from an earlier response.
    private func openOnce(_ name: String, _ range: String?, _ guess: ObjectMetadata? = nil)
        async throws(BucketError) -> GCSReader?
    {
        let media: GCSMedia
        var metadata: ObjectMetadata
        if let guess = guess ?? known.find(name) {
            media = try await self.media(name, range)
            metadata = guess
        } else {
            async let found = Result(of: { () async throws(BucketError) in try await self.stat(name)
            })
            media = try await self.media(name, range)
            do throws(BucketError) {
                metadata = try await found.get()
            } catch {
                media.close()
                if error.code == .objectNotFound { return nil }
                throw error
            }
        }
        known.noteMedia(withMetageneration: media.metageneration != nil)
        do throws(BucketError) {
            if !media.isOf(metadata) {
                metadata = try await stat(name, generation: media.generation)
            }
            guard media.isOf(metadata) else {
                media.close()
                return nil
            }
        } catch {
            media.close()
            if error.code == .objectNotFound { return nil }
            throw error
        }
        known.keep(metadata)
        return GCSReader(self, metadata, media)
    }

    /// Requests the stored bytes. `range` is a `Range` field. If it is unsatisfiable, the response has no bytes.
    fileprivate func media(_ name: String, _ range: String?) async throws(BucketError) -> GCSMedia {
        do throws(ResumingSource.Fault) {
            return try await media(name, range, generation: nil, attempts: .max)
        } catch {
            throw error.cause
        }
    }

    fileprivate func media(_ name: String, _ range: String?, generation: Int64?, attempts: Int)
        async throws(ResumingSource.Fault) -> GCSMedia
    {
        var query = [("alt", "media")]
        if let generation { query.append(("generation", String(generation))) }
        let request = ClientRequest("GET", requests.object(name, query))
        // Otherwise the service decompresses gzip objects to other bytes of unknown length.
        request.fields.append("accept-encoding", "gzip")
        request.isBulk = true
        request.attempts = attempts
        if let range { request.fields.append("range", range) }
        let response: ClientResponse
        do throws(BucketError) {
            response = try await requests.send(request)
        } catch {
            throw ResumingSource.Fault(cause: error, isTemporary: true)
        }
        if [200, 206, 416].contains(response.status) { return GCSMedia(response) }
        var body: [UInt8] = []
        if let words = try? await response.collect(limit: GCSRequests.maximumResponse) {
            body = words
        }
        throw ResumingSource.Fault(
            cause: requests.failure(response.status, body),
            isTemporary: response.status >= 500 || [408, 429].contains(response.status))
    }
}

extension GCSBucket: PinnedReads {
    public func reader(of object: ObjectMetadata) -> (any ObjectReader)? { GCSReader(self, object, nil) }
}

/// A media response with an unread body. Confined to its loop.
struct GCSMedia {
    var response: ClientResponse
    /// nil if the server does not report it.
    let generation: Int64?
    let metageneration: Int64?

    init(_ response: ClientResponse) {
        self.response = response
        generation = response.fields["x-goog-generation"].flatMap { Int64($0) }
        metageneration = response.fields["x-goog-metageneration"].flatMap { Int64($0) }
    }

    func close() { response.body.close() }

    /// Whether the bytes belong to an object in this state, or in a later state with the same bytes.
    func isOf(_ metadata: ObjectMetadata) -> Bool {
        if let generation {
            return generation == metadata.generation
                && metageneration ?? 1 <= metadata.metageneration
        }
        // An emulator: compare the checksum, or else the length.
        if let crc32c = GCSObject.crc32c(hashField: response.fields["x-goog-hash"]) {
            return crc32c == metadata.crc32c
        }
        guard response.status == 200, let length = response.contentLength else { return true }
        return length == metadata.size
    }

    /// The body's range in an object of `size` bytes; nil if it is empty or contradicts the size.
    func range(size: UInt64) -> Range<UInt64>? {
        let range: Range<UInt64>
        switch response.status {
        case 200:
            // HTTP gives Content-Range no meaning here. A server that sends it with partial bytes means that part.
            guard let reported = response.fields["content-range"].flatMap({ ContentRange($0) }) else {
                range = 0..<size
                break
            }
            guard reported.size == size else { return nil }
            range = reported.range
        case 206:
            guard let field = response.fields["content-range"],
                let reported = ContentRange(field), reported.size == size
            else { return nil }
            range = reported.range
        default: return nil
        }
        if let length = response.contentLength, length != range.upperBound - range.lowerBound {
            return nil
        }
        return range
    }
}

extension ByteRange {
    var field: String {
        switch self {
        case .from(let first, let last): "bytes=\(first)-\(last.map { String($0) } ?? "")"
        case .suffix(let count): "bytes=-\(count)"
        }
    }
}

/// An opened object: the first media response, or a later one pinned to the same bytes.
final class GCSReader: ObjectReader {
    let metadata: ObjectMetadata
    private let bucket: GCSBucket
    private var media: GCSMedia?
    /// Whether the first response had a generation. Later ones must have it too.
    private let isNamed: Bool

    init(_ bucket: GCSBucket, _ metadata: ObjectMetadata, _ media: GCSMedia?) {
        self.bucket = bucket
        self.metadata = metadata
        self.media = media
        isNamed = media?.generation != nil
    }

    deinit { close() }

    func close() {
        media?.close()
        media = nil
    }

    func readyBytes(_ range: Range<UInt64>) throws(BucketError) -> (any ByteSource)? {
        guard var media, media.range(size: metadata.size) == range else { return nil }
        if range.upperBound - range.lowerBound > ResumingSource.verifiedAhead {
            self.media = nil
            return source(media, range)
        }
        guard let body = try arrived(range, of: &media) else { return nil }
        self.media = nil
        return body
    }

    func bytes(_ range: Range<UInt64>) async throws(BucketError) -> any ByteSource {
        guard range.upperBound <= metadata.size else {
            throw BucketError(.internal, "bytes of \(range) of \(metadata.size)")
        }
        if let ready = try readyBytes(range) { return ready }
        var media: GCSMedia
        if let first = self.media, first.range(size: metadata.size) == range {
            self.media = nil
            media = first
        } else {
            close()
            if range.isEmpty, metadata.size > 0 { return EmptySource.shared }
            do throws(ResumingSource.Fault) {
                media = try await open(range, attempts: .max)
            } catch {
                throw error.cause
            }
        }
        let count = range.upperBound - range.lowerBound
        guard count <= ResumingSource.verifiedAhead else { return source(media, range) }
        if let body = try arrived(range, of: &media) { return body }
        return BytesSource(try await source(media, range).collect(Int(count)))
    }

    /// The verified bytes of a small body that has arrived.
    private func arrived(_ range: Range<UInt64>, of media: inout GCSMedia) throws(BucketError)
        -> ArrivedBody?
    {
        try ResumingSource.arrived(
            range.upperBound - range.lowerBound, of: &media.response, crc32c: checksum(of: range))
    }

    /// nil if not known.
    private func checksum(of range: Range<UInt64>) -> UInt32? {
        range == 0..<metadata.size ? metadata.crc32c : nil
    }

    /// Requests bytes of this object, never of a replacement.
    private func open(_ range: Range<UInt64>, attempts: Int) async throws(ResumingSource.Fault)
        -> GCSMedia
    {
        let field =
            range == 0..<metadata.size ? nil : "bytes=\(range.lowerBound)-\(range.upperBound - 1)"
        let media: GCSMedia
        func fault(_ cause: String) -> ResumingSource.Fault {
            ResumingSource.Fault(cause: BucketError(.unavailable, cause), isTemporary: false)
        }
        do throws(ResumingSource.Fault) {
            media = try await bucket.media(metadata.name, field, generation: metadata.generation, attempts: attempts)
        } catch {
            guard error.cause.code == .objectNotFound else { throw error }
            throw ResumingSource.Fault(
                cause: BucketError(.replaced, "the object was replaced while it was being read"), isTemporary: false)
        }
        // A patch meanwhile changes no bytes.
        let isSame = media.generation.map { $0 == metadata.generation } ?? (!isNamed && media.isOf(metadata))
        guard isSame, media.range(size: metadata.size) == range else {
            media.close()
            throw fault("the service responded with a wrong range of \(metadata.name)")
        }
        return media
    }

    private func source(_ media: GCSMedia, _ range: Range<UInt64>) -> ResumingSource {
        ResumingSource(
            media.response.body, range, crc32c: checksum(of: range), bucket.upstream
        ) { (rest) throws(ResumingSource.Fault) in
            try await self.open(rest, attempts: 1).response.body
        }
    }
}

extension Result {
    init(of body: () async throws(Failure) -> Success) async {
        do throws(Failure) {
            self = .success(try await body())
        } catch {
            self = .failure(error)
        }
    }
}
