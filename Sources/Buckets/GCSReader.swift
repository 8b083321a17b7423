import EventLoop
import HTTPClient
import OpenSSL
import Synchronization
import Wire

/// The metadata of objects as they were last seen, some hundreds of them.
///
/// A media answer names the generation and metageneration of its object, but neither its custom metadata nor its time.
/// What is known of exactly that state needs no second call.
final class GCSMetadataCache: Sendable {
    private static let places = 512
    /// Custom metadata beyond this is not kept: 1 KiB.
    private static let maximumCustomBytes = 1024
    private let slots = Lock<[ObjectMetadata?]>(Array(repeating: nil, count: places))
    /// Whether media answers name the metageneration: otherwise nothing known can be confirmed.
    private let confirmable = Atomic<Bool>(false)

    var isConfirmable: Bool { confirmable.load(ordering: .relaxed) }

    func find(_ name: String) -> ObjectMetadata? {
        guard isConfirmable else { return nil }
        let place = BytewiseString.place(of: name, among: Self.places)
        let found = slots.withLock { $0[place] }
        return found.flatMap { BytewiseString.areEqual($0.name, name) ? $0 : nil }
    }

    func keep(_ metadata: ObjectMetadata) {
        guard metadata.attributes.customMetadata.byteCount <= Self.maximumCustomBytes else {
            return
        }
        let place = BytewiseString.place(of: metadata.name, among: Self.places)
        slots.withLock { $0[place] = metadata }
    }

    func mediaAnswered(withMetageneration: Bool) {
        if withMetageneration != isConfirmable {
            confirmable.store(withMetageneration, ordering: .relaxed)
        }
    }
}

extension GCSBucket {
    /// Begins a download.
    ///
    /// The API has no answer with both the bytes and all metadata, so both are asked for at the same time, and belong
    /// together where their generations agree. Where the object's metadata is known from before and the media answer
    /// confirms its state, it is one call. (An emulator whose media answers do not name the metageneration is asked one
    /// after the other: there are some that answer nothing while they send an object that nobody reads.)
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
            // Most often the conditions say that the client has the bytes.
            let metadata = try await stat(name)
            guard plan.conditions.evaluate(metadata, reading: true) == nil else {
                return GCSReader(self, metadata, nil)
            }
            if let reader = try await openOnce(name, range, metadata) { return reader }
        }
        throw BucketError(.overloaded, "the object is being replaced by others again and again")
    }

    /// - Parameter guess: The metadata as they were last seen.
    /// - Returns: nil where the object was replaced between two answers.
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
        known.mediaAnswered(withMetageneration: media.metageneration != nil)
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

    /// Asks for bytes as they are stored.
    /// - Parameter range: As in the `Range` field.
    /// - Throws: ``BucketError``; a range that can't be satisfied is no error but a media without bytes.
    fileprivate func media(_ name: String, _ range: String?) async throws(BucketError) -> GCSMedia {
        do throws(ResumingSource.Fault) {
            return try await media(name, range, generation: nil, attempts: .max)
        } catch {
            throw error.cause
        }
    }

    /// - Parameter attempts: How often it is asked for at most.
    fileprivate func media(_ name: String, _ range: String?, generation: Int64?, attempts: Int)
        async throws(ResumingSource.Fault) -> GCSMedia
    {
        var query = [("alt", "media")]
        if let generation { query.append(("generation", String(generation))) }
        var request = ClientRequest("GET", requests.object(name, query))
        // Otherwise what is stored compressed would be decompressed on the way: other bytes, of unknown length.
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
        if let words = try? await response.collect(limit: GCSRequests.maximumAnswer) {
            body = words
        }
        throw ResumingSource.Fault(
            cause: requests.failure(response.status, body),
            isTemporary: response.status >= 500 || [408, 429].contains(response.status))
    }
}

/// A media answer whose body has not been read yet. Confined to its loop.
struct GCSMedia {
    let response: ClientResponse
    /// nil where the server does not tell.
    let generation: Int64?
    let metageneration: Int64?

    init(_ response: ClientResponse) {
        self.response = response
        generation = response.fields["x-goog-generation"].flatMap { Int64($0) }
        metageneration = response.fields["x-goog-metageneration"].flatMap { Int64($0) }
    }

    func close() { response.body.close() }

    /// Whether the bytes are those of an object in this state, or in a later one with the same bytes.
    func isOf(_ metadata: ObjectMetadata) -> Bool {
        if let generation {
            return generation == metadata.generation
                && metageneration ?? 1 <= metadata.metageneration
        }
        // An emulator: its checksum tells, or its length.
        if let crc32c = GCSObject.crc32c(hashField: response.fields["x-goog-hash"]) {
            return crc32c == metadata.crc32c
        }
        guard response.status == 200, let length = response.contentLength else { return true }
        return length == metadata.size
    }

    /// Where the bytes of the body lie in an object of `size` bytes; nil where there are none, or the answer contradicts
    /// the size.
    func range(size: UInt64) -> Range<UInt64>? {
        let range: Range<UInt64>
        switch response.status {
        case 200:
            // It tells nothing here by the letter of HTTP; a server that has it with a part of the bytes means that part.
            guard let told = response.fields["content-range"].flatMap({ ContentRange($0) }) else {
                range = 0..<size
                break
            }
            guard told.size == size else { return nil }
            range = told.range
        case 206:
            guard let field = response.fields["content-range"],
                let told = ContentRange(field), told.size == size
            else { return nil }
            range = told.range
        default: return nil
        }
        if let length = response.contentLength, length != range.upperBound - range.lowerBound {
            return nil
        }
        return range
    }
}

/// A `Content-Range` of bytes whose size is known (RFC 9110, section 14.4).
struct ContentRange: Equatable {
    var range: Range<UInt64>
    var size: UInt64

    /// nil where it is another, or contradicts itself.
    init?(_ field: String) {
        guard field.hasPrefix("bytes "), let slash = field.utf8.firstIndex(of: UInt8(ascii: "/")),
            let dash = field.utf8[..<slash].firstIndex(of: UInt8(ascii: "-"))
        else { return nil }
        let start = field.index(field.startIndex, offsetBy: 6)
        guard start <= dash, let first = UInt64(digits: field[start..<dash]),
            let last = UInt64(digits: field[field.index(after: dash)..<slash]),
            let size = UInt64(digits: field[field.index(after: slash)...]), first <= last,
            last < size, size <= UInt64(Int64.max)
        else { return nil }
        range = first..<last + 1
        self.size = size
    }
}

extension UInt64 {
    /// A number of digits alone; nil where there is anything else, as a sign, or it is too large.
    init?(digits text: Substring) {
        guard text.utf8.allSatisfy(ASCII.isDigit) else { return nil }
        self.init(text)
    }
}

extension ByteRange {
    /// As the `Range` field asks for it.
    var field: String {
        switch self {
        case .from(let first, let last): "bytes=\(first)-\(last.map { String($0) } ?? "")"
        case .suffix(let count): "bytes=-\(count)"
        }
    }
}

/// An object opened at Google's: the answer that came with the opening, or another one that is pinned to the same bytes.
final class GCSReader: ObjectReader {
    let metadata: ObjectMetadata
    private let bucket: GCSBucket
    private var media: GCSMedia?
    /// Whether the first answer named its generation: each later one must then.
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

    func bytes(_ range: Range<UInt64>) async throws(BucketError) -> any ByteSource {
        guard range.upperBound <= metadata.size else {
            throw BucketError(.internal, "bytes of \(range) of \(metadata.size)")
        }
        if let media, media.range(size: metadata.size) == range {
            self.media = nil
            return source(media, range)
        }
        close()
        if range.isEmpty, metadata.size > 0 {
            return EmptySource()
        }
        do throws(ResumingSource.Fault) {
            return source(try await open(range, attempts: .max), range)
        } catch {
            throw error.cause
        }
    }

    /// Asks for bytes of this object, and of no other that has come in its place.
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
            media = try await bucket.media(
                metadata.name, field, generation: metadata.generation, attempts: attempts)
        } catch {
            guard error.cause.code == .objectNotFound else { throw error }
            throw fault("the object was replaced while it was being read")
        }
        guard media.isOf(metadata), media.generation != nil || !isNamed,
            media.range(size: metadata.size) == range
        else {
            media.close()
            throw fault("the service answers a range of \(metadata.name) with another")
        }
        return media
    }

    private func source(_ media: GCSMedia, _ range: Range<UInt64>) -> ResumingSource {
        let isWhole = range == 0..<metadata.size
        return ResumingSource(
            media.response.body, range, crc32c: isWhole ? metadata.crc32c : nil, bucket.upstream
        ) { (rest) throws(ResumingSource.Fault) in
            try await self.open(rest, attempts: 1).response.body
        }
    }
}

extension Result {
    /// The outcome of what may fail.
    init(of body: () async throws(Failure) -> Success) async {
        do throws(Failure) {
            self = .success(try await body())
        } catch {
            self = .failure(error)
        }
    }
}
