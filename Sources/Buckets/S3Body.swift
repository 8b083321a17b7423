import EventLoop
import HTTPClient

/// A request's body that is streamed: as it is, or in signed chunks.
///
/// Safety: confined to its loop; tasks that carry it run there.
final class S3Body: @unchecked Sendable {
    /// Bytes of a signed chunk: 32 KiB. So many wait until the chunk is full.
    static let chunk = 32 * 1024

    private let exchange: ClientExchange
    private let pipe: RequestBodyPipe
    /// Bytes of the whole body, as they were before they are signed.
    let length: UInt64
    private var rest: UInt64
    private var signer: ChunkSigner?
    /// A chunk that grows; nothing where bytes are not signed.
    private var filling: [UInt8] = []
    /// Signed bytes that the pipe has not taken yet, and how many of them it has.
    private var framed: [UInt8] = []
    private var sent = 0

    /// Whether the answer was a refusal of the credentials, and others may be had: another attempt may go well.
    private(set) var isSignedAnew = false
    private let renews: (CollectedResponse) -> Bool

    /// - Parameter renews: Told of the answer; says whether credentials were renewed because of it.
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
        if length == 0, signer != nil { frame() }
    }

    /// Bytes that are still to be written.
    var remaining: UInt64 { rest }

    /// Takes a prefix of `bytes`, at most ``remaining``.
    /// - Throws: `RequestBodyPipe.Interruption`; ``response()`` tells why.
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
            let count = min(S3Body.chunk - filling.count, offered.byteCount - taken)
            offered.extracting(taken..<taken + count).withUnsafeBytes { filling += $0 }
            taken += count
            rest -= UInt64(count)
            if filling.count == S3Body.chunk || rest == 0 { frame() }
        }
        _ = try flush()
        return taken
    }

    func whenWritable(_ resume: @escaping () -> Void) { pipe.whenWritable(resume) }

    private func frame() {
        while signer != nil {
            let chunk = filling
            framed += signer!.head(of: chunk.span.bytes).utf8
            framed += chunk
            framed += [0x0d, 0x0a]
            let wasLast = filling.isEmpty
            filling.removeAll(keepingCapacity: rest > 0)
            if wasLast { signer = nil }
            if rest > 0 { return }
        }
    }

    /// - Returns: Whether the pipe has taken all there is.
    private func flush() throws -> Bool {
        let bytes = framed
        while sent < bytes.count {
            let count = try pipe.write(bytes.span.bytes.extracting(sent..<bytes.count))
            if count == 0 { return false }
            sent += count
        }
        framed.removeAll(keepingCapacity: rest > 0)
        sent = 0
        return true
    }

    /// Writes all of `bytes`, waiting for the pipe.
    func writeAll(_ bytes: [UInt8]) async throws {
        var offset = 0
        while offset < bytes.count {
            let taken = try write(bytes.span.bytes.extracting(offset..<bytes.count))
            offset += taken
            if taken == 0 { await untilWritable() }
        }
    }

    private func untilWritable() async {
        await withCheckedContinuation { waiter in pipe.whenWritable { waiter.resume() } }
    }

    /// The answer, once all was written, or before where the service does not want the rest.
    func response(limit: Int = 1 << 20) async throws(BucketError) -> CollectedResponse {
        do {
            while try !flush() { await untilWritable() }
        } catch {
            // The response says why.
        }
        do throws(ClientError) {
            let response = try await exchange.response()
            let body = try await response.collect(limit: limit)
            let answer = CollectedResponse(
                status: response.status, fields: response.fields, body: body)
            isSignedAnew = renews(answer)
            return answer
        } catch {
            throw BucketError(error)
        }
    }

    /// Gives the request up: the service never sees a complete body.
    func cancel() { exchange.cancel() }
}
