import Credentials
import HTTPClient
import System

/// A streamed request body, either plain or in signed chunks.
///
/// Safety: confined to its loop; tasks that use it run there.
final class S3Body: ByteSink, @unchecked Sendable {
    /// The size of a signed chunk: 32 KiB. A chunk is buffered until it is full.
    static let chunk = 32 * 1024

    private let exchange: ClientExchange
    private let pipe: RequestBodyPipe
    /// The length of the body without the framing of signed chunks.
    let length: UInt64
    private var rest: UInt64
    private var signer: ChunkSigner?
    /// A signed chunk: space for its header, which is known last, and its bytes. Empty if chunks are not signed.
    private var buffer: [UInt8] = []
    /// The offset of the next byte for the pipe; nil while the chunk is being filled.
    private var next: Int?
    /// The maximum size of a chunk's header: 4 digits, `;chunk-signature=`, 64 digits, CR LF.
    private static let headSize = 4 + 17 + 64 + 2

    /// Whether the service rejected the credentials and new ones may be available, so that a retry may succeed.
    private(set) var isSignedAnew = false
    private let renews: (CollectedResponse) -> Bool

    /// - Parameter renews: Returns whether the credentials were renewed because of the response.
    init(
        _ exchange: ClientExchange, _ pipe: RequestBodyPipe, length: UInt64, _ signer: ChunkSigner?,
        renews: @escaping (CollectedResponse) -> Bool
    ) {
        self.renews = renews
        self.exchange = exchange
        self.pipe = pipe
        self.signer = signer
        self.length = length
        rest = length
        if length == 0, signer != nil { seal() }
    }

    var remaining: UInt64 { rest }

    /// Accepts a prefix of `bytes`, at most ``remaining``. If it throws, ``response()`` has the cause.
    func write(_ bytes: RawSpan) throws -> Int {
        let offered = bytes.extracting(first: Int(clamping: min(rest, UInt64(bytes.byteCount))))
        guard signer != nil else {
            let taken = try pipe.write(offered)
            rest -= UInt64(taken)
            return taken
        }
        var taken = 0
        while taken < offered.byteCount {
            guard try flush() else { break }
            if buffer.isEmpty { reserve() }
            let full = S3Body.headSize + S3Body.chunk
            let count = min(full - buffer.count, offered.byteCount - taken)
            offered.extracting(taken..<taken + count).withUnsafeBytes { buffer += $0 }
            taken += count
            rest -= UInt64(count)
            if buffer.count == full || rest == 0 { seal() }
        }
        _ = try flush()
        return taken
    }

    func whenWritable(_ resume: @escaping () -> Void) { pipe.whenWritable(resume) }

    /// Begins a chunk. The buffer never grows.
    private func reserve() {
        let size = Int(min(rest, UInt64(S3Body.chunk)))
        // Space for the empty chunk at the end and two line ends.
        buffer.reserveCapacity(2 * S3Body.headSize + size + 4)
        buffer.append(contentsOf: repeatElement(0, count: S3Body.headSize))
    }

    /// Completes the chunk with its header. An empty chunk follows the last one.
    private func seal() {
        if buffer.isEmpty { reserve() }
        guard var signer else { return }
        let isEmpty = buffer.count == S3Body.headSize
        let head = buffer.withUnsafeBytes {
            signer.head(of: $0.bytes.extracting(droppingFirst: S3Body.headSize))
        }
        let start = S3Body.headSize - head.utf8.count
        buffer.replaceSubrange(start..<S3Body.headSize, with: head.utf8)
        buffer += [0x0d, 0x0a]
        if rest == 0, !isEmpty {
            buffer += signer.head(of: [UInt8]().span.bytes).utf8
            buffer += [0x0d, 0x0a]
        }
        next = start
        self.signer = rest > 0 ? signer : nil
    }

    /// - Returns: Whether the pipe has taken all signed bytes.
    private func flush() throws -> Bool {
        while let start = next, start < buffer.count {
            // The buffer is shared only during this call.
            let bytes = buffer
            let count = try pipe.write(bytes.span.bytes.extracting(droppingFirst: start))
            if count == 0 { return false }
            next = start + count
        }
        if next != nil { buffer.removeAll(keepingCapacity: rest > 0) }
        next = nil
        return true
    }

    /// Waits until the pipe has taken all complete chunks.
    func drain() async throws {
        while try !flush() { await untilWritable() }
    }

    private func untilWritable() async {
        await withCheckedContinuation { waiter in pipe.whenWritable { waiter.resume() } }
    }

    /// The response, which arrives after the last byte, or earlier if the service rejects the rest.
    func response(limit: Int = 1 << 20) async throws(BucketError) -> CollectedResponse {
        do {
            try await drain()
        } catch {
            // The response has the cause.
        }
        do throws(ClientError) {
            let head = try await exchange.response()
            let body = try await head.collect(limit: limit)
            let response = CollectedResponse(
                status: head.status, fields: head.fields, body: body)
            isSignedAnew = renews(response)
            return response
        } catch {
            throw BucketError(error)
        }
    }

    func cancel() { exchange.cancel() }
}
