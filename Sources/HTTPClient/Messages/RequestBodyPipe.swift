import System

/// A request's body that is written while it is sent. Confined to its loop.
///
/// It holds at most ``capacity`` bytes that were written but not sent; then the writer must wait. If the transport can
/// send at once, bytes go from the writer directly to the kernel, and at most ``batch`` of them are held until more
/// arrive, the body is complete, or 100 ms have passed. The body is complete after ``length`` bytes; a cancellation
/// before then closes the connection.
///
/// Safety: confined to its loop; a job for a later turn carries the reference back to it.
public final class RequestBodyPipe: ByteSink, @unchecked Sendable {
    /// Why the pipe accepts no more bytes.
    public enum Interruption: Error, Equatable {
        /// The request failed.
        case failed(ClientError)
        /// The upstream responded before it had the whole body. ``ClientExchange/response()`` returns the response.
        case responded(status: Int)
    }
    /// The capacity in bytes: 64 KiB.
    public static let capacity = 64 * 1024
    /// The number of bytes that do not justify a system call of their own: 32 KiB. Two frames of 16 KiB wait for a third, and a
    /// signed chunk of that size goes with its head. Saves 20 % of a large upload's CPU in clear text and 10 % over TLS.
    static let batch = 32 * 1024

    /// The length of the whole body in bytes.
    public let length: UInt64
    /// The number of bytes written so far.
    public private(set) var written: UInt64 = 0
    private(set) var sent: UInt64 = 0
    /// Why the pipe accepts no more bytes; nil if it does.
    public private(set) var interruption: Interruption?
    private var waiting: [UInt8] = []
    private var used = 0
    private var resume: (() -> Void)?
    /// Whether the transport could not send everything; nothing more is accepted until it can.
    private var isBlocked = false
    /// Called when there are new bytes to send.
    var onWritten: (() -> Void)?
    /// Called instead for few bytes, which can wait for more.
    var onHeld: (() -> Void)?
    /// Sends the held and the new bytes with one system call. Returns their number; nil if nothing can be sent now. Not
    /// called within the transport.
    var sendNow: ((_ waiting: UnsafeRawBufferPointer, _ bytes: UnsafeRawBufferPointer) -> Int?)?

    /// - Parameter length: The length of the whole body in bytes.
    public init(length: UInt64) { self.length = length }

    /// Accepts a prefix of `bytes`.
    /// - Throws: ``Interruption``.
    public func write(_ bytes: RawSpan) throws -> Int {
        if let interruption { throw interruption }
        guard !isBlocked else { return 0 }
        let offered = bytes.extracting(first: Int(clamping: length - written))
        if waitingCount + offered.byteCount > RequestBodyPipe.batch, let count = send(offered) {
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
        if let onHeld, waitingCount <= RequestBodyPipe.batch, written < length {
            onHeld()
        } else {
            onWritten?()
        }
        return count
    }

    /// Sends the held bytes and `bytes` without a copy. Returns how many of `bytes` were sent; nil if none can be.
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
        // With space already, the next send or interruption may be far away, so a later job wakes the writer.
        self.resume = resume
        if interruption != nil || hasRoom {
            EventLoop.current?.execute { [self] in wake() }
        }
    }

    private func wake() { resume.take()?() }

    // MARK: The transport's side

    /// Whether the whole body was sent.
    var isExhausted: Bool { sent == length }

    var waitingCount: Int { waiting.count - used }

    /// Lends the held bytes to `body`, which returns the number sent. ``wakeWriter(canSend:)`` must follow.
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

    private func took(_ count: Int) {
        used += count
        sent += UInt64(count)
        if used == waiting.count {
            // Releases memory that is rarely needed again if bytes are sent without waiting.
            let isWanted = sendNow == nil || waiting.capacity <= 2 * RequestBodyPipe.batch
            waiting.removeAll(keepingCapacity: sent < length && isWanted)
            used = 0
        }
    }

    private var hasRoom: Bool { !isBlocked && waitingCount < RequestBodyPipe.capacity }

    /// Wakes a waiting writer if there is capacity. Must not be called within a library's callback.
    /// - Parameter canSend: Whether the transport can accept bytes now.
    func wakeWriter(canSend: Bool = true) {
        if canSend { isBlocked = false }
        if resume != nil, hasRoom { wake() }
    }

    /// Stops accepting bytes.
    func interrupt(_ reason: Interruption) {
        guard interruption == nil else { return }
        interruption = reason
        onWritten = nil
        onHeld = nil
        sendNow = nil
        waiting = []
        used = 0
        wake()
    }
}
