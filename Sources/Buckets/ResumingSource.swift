import EventLoop
import HTTPClient
import OpenSSL

/// Bytes of an object as its reader gets them: exactly so many, and where the whole object is read with its checksum, or
/// an error. What completes damaged bytes is not handed out.
///
/// An answer that breaks off is gone on with by another one, from the first byte that is missing: after pauses, within the
/// upstream's budget of retries, at most ``UpstreamSettings/attempts`` times without progress, and none is begun
/// ``UpstreamSettings/progressTimeout`` after the last progress.
///
/// Safety: confined to its loop; the task that asks for the rest runs there.
final class ResumingSource: ByteSource, @unchecked Sendable {
    /// Why the rest was not to be had.
    struct Fault: Error {
        let cause: BucketError
        /// Whether another attempt may help.
        let isTemporary: Bool
    }

    /// Asks once for bytes of the very object that the first ones are of.
    typealias Reopening = (_ range: Range<UInt64>) async throws(Fault) -> any ByteSource

    private let upstream: Upstream
    private let reopen: Reopening
    private var body: (any ByteSource)?
    /// What is still to come.
    private var range: Range<UInt64>
    private let expected: UInt32?
    private var crc32c = CRC32C()
    /// Answers in a row that came to nothing, and the bytes since then.
    private var failures = 0
    private var progress: UInt64 = 0
    /// Until when the next one is asked for.
    private var deadline: UInt64 = 0
    private var failure: BucketError?
    private var opening: Task<Void, Never>?
    private var waiter: (() -> Void)?
    private var isClosed = false

    /// - Parameters:
    ///   - body: The answer with the bytes of `range`.
    ///   - crc32c: What they must have; nil where that is not known.
    ///   - reopen: Called on the loop.
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

    /// How many bytes are still to come: a range's own count is a signed number.
    private var missing: UInt64 { range.upperBound - range.lowerBound }

    func read(into buffer: inout MutableRawSpan) throws -> SourceRead {
        if let failure { throw failure }
        guard let body else { return opening == nil ? .end : .wait }
        let read: SourceRead
        do {
            read = try body.read(into: &buffer)
        } catch {
            // Behind the last byte there is nothing to miss.
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
        if range.isEmpty, crc32c.value != expected {
            throw BucketError(.unavailable, "the bytes of the object are damaged: crc32c")
        }
    }

    // MARK: Going on

    private func resume(after cause: BucketError?) {
        body?.close()
        body = nil
        if progress >= upstream.settings.progressBytes { failures = 0 }
        if failures == 0 {
            deadline = EventLoop.monotonicNow() &+ upstream.settings.progressTimeout
        }
        progress = 0
        let cause = cause ?? BucketError(.unavailable, "the object broke off")
        opening = Task(executorPreference: EventLoop.current) { await self.open(cause) }
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

    private func wake() {
        let waiter = waiter
        self.waiter = nil
        waiter?()
    }

    func close() {
        isClosed = true
        waiter = nil
        opening?.cancel()
        body?.close()
        body = nil
    }
}
