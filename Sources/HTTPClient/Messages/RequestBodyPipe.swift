import System

/// A request's body that is written while it is sent. Confined to its loop.
///
/// What was written and not yet sent waits in it, at most ``capacity`` bytes: back-pressure reaches the writer. Where the
/// transport can send at once, bytes go from the writer to the kernel and only less than ``batch`` of them wait. The
/// upstream sees a complete body only after ``length`` bytes were written; giving the exchange up before cuts the
/// connection.
///
/// Safety: confined to its loop; a job for a later turn carries the reference back to it.
public final class RequestBodyPipe: ByteSink, @unchecked Sendable {
    /// Why no more bytes are taken.
    public enum Interruption: Error, Equatable {
        /// The request failed.
        case failed(ClientError)
        /// The upstream responded before it had the whole body. ``ClientExchange/response()`` returns its response.
        case responded(status: Int)
    }
    /// Bytes that wait at most: 64 KiB.
    public static let capacity = 64 * 1024
    /// Bytes that are worth a call into the kernel of their own: 24 KiB. Fewer wait for the end of the loop's turn.
    static let batch = 24 * 1024

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
    /// Whether the transport could not send all it was offered: nothing more is taken before it says so.
    private var isBlocked = false
    /// Told that there are bytes again.
    var onWritten: (() -> Void)?
    /// Sends what waits and what is written now, in one call; returns how many bytes were taken of both together, nil
    /// where nothing can be sent without its turn. Not called from within the transport.
    var sendNow: ((_ waiting: UnsafeRawBufferPointer, _ bytes: UnsafeRawBufferPointer) -> Int?)?

    /// - Parameter length: Bytes of the whole body.
    public init(length: UInt64) { self.length = length }

    /// Takes a prefix of `bytes`.
    /// - Throws: ``Interruption``.
    public func write(_ bytes: RawSpan) throws -> Int {
        if let interruption { throw interruption }
        guard !isBlocked else { return 0 }
        let offered = bytes.extracting(first: Int(clamping: length - written))
        if waitingCount + offered.byteCount >= RequestBodyPipe.batch, let count = send(offered) {
            return count
        }
        let count = min(RequestBodyPipe.capacity - waitingCount, offered.byteCount)
        guard count > 0 else { return 0 }
        if used > 0, waiting.count + count > RequestBodyPipe.capacity {
            waiting.removeSubrange(..<used)
            used = 0
        }
        offered.extracting(first: count).withUnsafeBytes { waiting.append(contentsOf: $0) }
        written += UInt64(count)
        onWritten?()
        return count
    }

    /// Sends what waits and `bytes` without a copy of them; returns how many of `bytes` were taken, nil where none can be
    /// sent now.
    private func send(_ bytes: RawSpan) -> Int? {
        guard let sendNow else { return nil }
        let before = waitingCount
        let count = waiting.withUnsafeBytes { waiting in
            bytes.withUnsafeBytes { sendNow(.init(rebasing: waiting[used...]), $0) }
        }
        guard let count else { return nil }
        took(min(count, before))
        let taken = max(0, count - before)
        written += UInt64(taken)
        sent += UInt64(taken)
        isBlocked = taken < bytes.byteCount
        if isExhausted { onWritten?() }
        return taken
    }

    public func whenWritable(_ resume: @escaping () -> Void) {
        // Where the pipe has room already, the next send or interruption is far: wake at once, but from elsewhere.
        self.resume = resume
        if interruption != nil || hasRoom {
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
        took(count)
    }

    /// So many of the bytes that waited are sent.
    private func took(_ count: Int) {
        used += count
        sent += UInt64(count)
        if used == waiting.count {
            // Memory for what is seldom needed again is not kept where bytes are sent without waiting.
            let isWanted = sendNow == nil || waiting.capacity <= 2 * RequestBodyPipe.batch
            waiting.removeAll(keepingCapacity: sent < length && isWanted)
            used = 0
        }
    }

    private var hasRoom: Bool { !isBlocked && waitingCount < RequestBodyPipe.capacity }

    /// Lets the writer go on where it waits and there is room. Not from within a library's callback.
    /// - Parameter canSend: Whether the transport can take bytes now.
    func wakeWriter(canSend: Bool = true) {
        if canSend { isBlocked = false }
        if resume != nil, hasRoom { wake() }
    }

    /// Takes no more bytes from here on.
    func interrupt(_ reason: Interruption) {
        guard interruption == nil else { return }
        interruption = reason
        onWritten = nil
        sendNow = nil
        waiting = []
        used = 0
        wake()
    }
}
