import HTTPClient
import OpenSSL
import System

/// The bytes of an object as a reader gets them: exactly the expected number, with a matching checksum if the whole
/// object is read, or an error. The last bytes are withheld if the checksum does not match.
///
/// If a response breaks off, another request continues at the first missing byte. Retries are paced and use the
/// upstream's retry budget. There are at most ``UpstreamSettings/attempts`` attempts without progress, and none starts
/// later than ``UpstreamSettings/progressTimeout`` after the last progress.
///
/// Safety: confined to its loop; the task that reopens the body runs there too.
final class ResumingSource: ByteSource, @unchecked Sendable {
    /// Why the remaining bytes could not be requested.
    struct Fault: Error {
        let cause: BucketError
        /// Whether a later attempt may succeed.
        let isTemporary: Bool
    }

    /// Requests a range of the same object, in the same state, as the first response.
    typealias Reopening = (_ range: Range<UInt64>) async throws(Fault) -> any ByteSource

    private let upstream: Upstream
    private let reopen: Reopening
    /// The trace of the reading request. A callback has no task from which a new task could inherit the trace.
    private let trace = RequestTrace.current
    private var body: (any ByteSource)?
    private var range: Range<UInt64>
    private let expected: UInt32?
    private var crc32c = CRC32C()
    /// Consecutive failed responses, and the bytes received since the last one.
    private var failures = 0
    private var progress: UInt64 = 0
    /// When new attempts end, in nanoseconds of the monotonic clock.
    private var deadline: UInt64 = 0
    private var failure: BucketError?
    private var opening: Task<Void, Never>?
    private var waiter: (() -> Void)?
    private var isClosed = false

    /// - Parameters:
    ///   - body: The response body with the bytes of `range`.
    ///   - crc32c: The expected checksum; nil if it is not known.
    ///   - reopen: Sends the next request. Called on the loop.
    init(
        _ body: any ByteSource, _ range: Range<UInt64>, crc32c: UInt32?, _ upstream: Upstream,
        reopen: @escaping Reopening
    ) {
        self.body = body
        self.range = range
        self.upstream = upstream
        self.reopen = reopen
        expected = crc32c
    }

    /// `Range.count` is not used because it is signed.
    private var missing: UInt64 { range.upperBound - range.lowerBound }

    func read(into buffer: inout MutableRawSpan) throws -> SourceRead {
        if let failure { throw failure }
        guard let body else { return opening == nil ? .end : .wait }
        let read: SourceRead
        do {
            read = try body.read(into: &buffer)
        } catch {
            // All bytes have been received, so ignore the error.
            if range.isEmpty { return .end }
            resume(after: (error as? ClientError).map { BucketError($0) } ?? error as? BucketError)
            return .wait
        }
        switch read {
        case .wait: return .wait
        case .end:
            if range.isEmpty { return .end }
            resume(after: BucketError(.unavailable, "the object ends \(missing) bytes early"))
            return .wait
        case .bytes(let count):
            try take(buffer.bytes.extracting(first: count))
            return read
        }
    }

    private func take(_ bytes: RawSpan) throws(BucketError) {
        guard UInt64(bytes.byteCount) <= missing else {
            throw BucketError(.unavailable, "the object has more bytes than its size")
        }
        range = range.lowerBound + UInt64(bytes.byteCount)..<range.upperBound
        progress += UInt64(bytes.byteCount)
        guard let expected else { return }
        crc32c.update(bytes)
        if range.isEmpty { try ResumingSource.check(crc32c, expected) }
    }

    /// The maximum number of bytes that drivers verify before passing them on: 64 KiB. A failure can still set the
    /// status. Longer bodies are verified while they are passed on.
    static let verifiedAhead: UInt64 = 64 * 1024

    /// The bytes of a response if all `count` of them have arrived; otherwise nil, and the response is unchanged.
    /// - Parameter expected: The crc32c; nil if not known.
    /// - Throws: ``BucketError`` if the checksum does not match.
    static func arrived(
        _ count: UInt64, of response: inout ClientResponse, crc32c expected: UInt32?
    ) throws(BucketError) -> ArrivedBody? {
        guard let body = response.takeArrived(Int(count)) else { return nil }
        if let expected {
            var crc32c = CRC32C()
            body.bytes.withUnsafeBytes { crc32c.update($0.bytes) }
            try check(crc32c, expected)
        }
        return body
    }

    private static func check(_ crc32c: CRC32C, _ expected: UInt32) throws(BucketError) {
        if crc32c.value != expected {
            throw BucketError(otherBytes: "the bytes of the object are damaged: crc32c")
        }
    }

    // MARK: Resuming

    private func resume(after cause: BucketError?) {
        body?.close()
        body = nil
        if progress >= upstream.settings.progressBytes { failures = 0 }
        if failures == 0 {
            deadline = EventLoop.monotonicNow() &+ upstream.settings.progressTimeout
        }
        progress = 0
        let cause = cause ?? BucketError(.unavailable, "the object broke off")
        opening = Task(executorPreference: EventLoop.current) { [self] in
            await RequestTrace.$current.withValue(trace) { await open(cause) }
        }
    }

    private func open(_ cause: BucketError) async {
        var cause = cause
        while body == nil, failure == nil {
            failures += 1
            guard cause.isRetryable, EventLoop.monotonicNow() < deadline,
                await upstream.mayTryAgain(after: failures), !isClosed
            else {
                failure = cause
                break
            }
            do throws(Fault) {
                let body = try await reopen(range)
                guard !isClosed else { return body.close() }
                self.body = body
            } catch {
                cause = error.cause
                if !error.isTemporary { failure = cause }
            }
        }
        opening = nil
        wake()
    }

    func whenReadable(_ resume: @escaping () -> Void) {
        if let body {
            body.whenReadable(resume)
        } else {
            waiter = resume
            if opening == nil { EventLoop.current?.execute { self.wake() } }
        }
    }

    private func wake() { waiter.take()?() }

    func close() {
        isClosed = true
        waiter = nil
        opening?.cancel()
        body?.close()
        body = nil
    }
}
