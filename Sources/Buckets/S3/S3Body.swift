import Credentials
import HTTPClient
import System

/// A streamed request body, either plain or in signed chunks.
///
/// Safety: confined to its loop; tasks that use it run there.
final class S3Body: @unchecked Sendable {
    /// The bytes of a signed chunk: 32 KiB. A chunk is buffered until it is full.
    static let chunk = 32 * 1024

    private let exchange: ClientExchange
    private let pipe: RequestBodyPipe
    /// The bytes of the whole body, without the framing of signed chunks.
    let length: UInt64
    private var rest: UInt64
    private var signer: ChunkSigner?
    /// The chunk that is being filled; empty if chunks are not signed.
    private var filling: [UInt8] = []
    /// Signed bytes waiting for the pipe, and the number of them that the pipe has taken.
    private var framed: [UInt8] = []
    private var sent = 0

    /// Whether the service rejected the credentials and new ones may be available, so that another attempt may succeed.
    private(set) var isSignedAnew = false
    private let renews: (CollectedResponse) -> Bool

    /// - Parameter renews: Called with the response. Returns whether the credentials were renewed because of it.
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

    /// The number of bytes still to be written.
    var remaining: UInt64 { rest }

    /// Accepts a prefix of `bytes`, at most ``remaining``.
    /// - Throws: `RequestBodyPipe.Interruption`. ``response()`` has the cause.
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

    /// - Returns: Whether the pipe has taken all signed bytes.
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

    /// Writes all of `bytes`, waiting for the pipe when it is full.
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

    /// Returns the response. It arrives after the last byte, or earlier if the service does not want the rest.
    func response(limit: Int = 1 << 20) async throws(BucketError) -> CollectedResponse {
        do {
            while try !flush() { await untilWritable() }
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

    /// Cancels the request. The service never sees a complete body.
    func cancel() { exchange.cancel() }
}
