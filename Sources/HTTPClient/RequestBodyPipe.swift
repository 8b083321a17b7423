import EventLoop

/// A request's body that is written while it is sent. Confined to its loop.
///
/// What was written and not yet sent waits in it, at most ``capacity`` bytes: back-pressure reaches the writer. The
/// upstream sees a complete body only after ``length`` bytes were written; giving the exchange up before cuts the
/// connection.
///
/// Safety: confined to its loop; a job for a later turn carries the reference back to it.
public final class RequestBodyPipe: ByteSink, @unchecked Sendable {
    /// Why no more bytes are taken.
    public enum Interruption: Error, Equatable {
        /// The request failed.
        case failed(ClientError)
        /// The upstream answered before it had the body: ``ClientExchange/response()`` has what it said.
        case answered(status: Int)
    }
    /// Bytes that wait at most: 64 KiB.
    public static let capacity = 64 * 1024

    /// Bytes of the whole body.
    public let length: UInt64
    /// Bytes that were written so far.
    public private(set) var written: UInt64 = 0
    /// Bytes that the transport took so far.
    private(set) var sent: UInt64 = 0
    /// Why no more bytes are taken; nil while they are.
    public private(set) var interruption: Interruption?
    private var waiting: [UInt8] = []
    private var used = 0
    private var resume: (() -> Void)?
    /// Told that there are bytes again.
    var onWritten: (() -> Void)?

    /// - Parameter length: Bytes of the whole body.
    public init(length: UInt64) { self.length = length }

    /// Takes a prefix of `bytes`.
    /// - Throws: ``Interruption``.
    public func write(_ bytes: RawSpan) throws -> Int {
        if let interruption { throw interruption }
        let room = RequestBodyPipe.capacity - (waiting.count - used)
        let count = min(room, bytes.byteCount, Int(clamping: length - written))
        guard count > 0 else { return 0 }
        if used > 0, waiting.count + count > RequestBodyPipe.capacity {
            waiting.removeSubrange(..<used)
            used = 0
        }
        bytes.extracting(first: count).withUnsafeBytes { waiting.append(contentsOf: $0) }
        written += UInt64(count)
        onWritten?()
        return count
    }

    public func whenWritable(_ resume: @escaping () -> Void) {
        // Where the pipe has room already, the next send or interruption is far: wake at once, but from elsewhere.
        self.resume = resume
        if interruption != nil || waiting.count - used < RequestBodyPipe.capacity {
            EventLoop.current?.execute { [self] in wake() }
        }
    }

    private func wake() {
        guard let resume else { return }
        self.resume = nil
        resume()
    }

    // MARK: The transport's side

    /// Whether all bytes were written and taken.
    var isExhausted: Bool { sent == length }

    /// Bytes that wait to be sent.
    var waitingCount: Int { waiting.count - used }

    /// Lends the bytes that wait; `body` returns how many of them it took. ``wakeWriter()`` is to follow.
    func take<Failure: Error>(
        _ body: (UnsafeRawBufferPointer) throws(Failure) -> Int
    ) throws(Failure) {
        guard waiting.count > used else { return }
        var failure: Failure?
        let count = waiting.withUnsafeBytes { bytes in
            do throws(Failure) {
                return try body(UnsafeRawBufferPointer(rebasing: bytes[used...]))
            } catch {
                failure = error
                return 0
            }
        }
        if let failure { throw failure }
        used += count
        sent += UInt64(count)
        if used == waiting.count {
            waiting.removeAll(keepingCapacity: sent < length)
            used = 0
        }
    }

    /// Lets the writer go on where it waits and there is room. Not from within a library's callback.
    func wakeWriter() {
        if resume != nil, waiting.count - used < RequestBodyPipe.capacity { wake() }
    }

    /// Takes no more bytes from here on.
    func interrupt(_ reason: Interruption) {
        guard interruption == nil else { return }
        interruption = reason
        onWritten = nil
        waiting = []
        used = 0
        wake()
    }
}
