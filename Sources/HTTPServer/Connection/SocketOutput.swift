import Glibc

/// The total memory for queued bytes of a loop's connections. Confined to its loop.
final class QueuedBytes {
    fileprivate(set) var count = 0
}

/// The sending side of a connection's socket. Bytes that the kernel does not accept at once are queued.
struct SocketOutput {
    enum Result {
        /// The kernel has accepted everything.
        case sent
        /// Bytes are queued until the socket is writable.
        case blocked
        case failed
        /// The queue would exceed its limit.
        case overflow
    }
    private let descriptor: Int32
    private let loopsQueue: QueuedBytes
    private var unsent: [UInt8] = []
    private var unsentOffset = 0
    private var hasFailed = false
    /// The number of bytes accepted by the kernel.
    private var sentBytes: UInt64 = 0
    /// While bytes are queued: ``sentBytes`` at the start of the current interval, and that time.
    private var progressMark: (bytes: UInt64, time: UInt64)?
    /// Whether the kernel may accept bytes.
    var isWritable = true

    /// The maximum number of queued bytes: half for an output buffer's TLS records, half for TLS's own messages.
    private static let maximumUnsent = 256 * 1024

    init(_ descriptor: Int32, _ loopsQueue: QueuedBytes) {
        self.descriptor = descriptor
        self.loopsQueue = loopsQueue
    }

    var isBlocked: Bool { unsentOffset < unsent.count }

    /// Sends `bytes` after the queued ones.
    mutating func write(_ bytes: UnsafeRawBufferPointer) -> Result {
        let offset = isBlocked ? 0 : send(bytes, from: 0)
        if hasFailed { return .failed }
        if offset == bytes.count { return isBlocked ? .blocked : .sent }
        if unsent.count - unsentOffset + bytes.count - offset > SocketOutput.maximumUnsent {
            return .overflow
        }
        unsent.append(contentsOf: bytes[offset...])
        loopsQueue.count += bytes.count - offset
        return .blocked
    }

    mutating func flush() -> Result {
        guard isBlocked else { return .sent }
        guard isWritable else { return .blocked }
        let waiting = unsent
        unsentOffset = waiting.withUnsafeBytes { send($0, from: unsentOffset) }
        if hasFailed { return .failed }
        guard !isBlocked else { return .blocked }
        discard()
        return .sent
    }

    mutating func discard() {
        loopsQueue.count -= unsent.count
        unsent = []
        unsentOffset = 0
    }

    /// Sends the bytes from `start` until the kernel accepts no more; returns the offset reached.
    private mutating func send(_ bytes: UnsafeRawBufferPointer, from start: Int) -> Int {
        var offset = start
        while offset < bytes.count {
            let count = Glibc.send(descriptor, bytes.baseAddress! + offset, bytes.count - offset, Int32(MSG_NOSIGNAL))
            if count >= 0 {
                offset += count
                sentBytes &+= UInt64(count)
            } else if errno == EAGAIN {
                isWritable = false
                break
            } else if errno != EINTR {
                hasFailed = true
                break
            }
        }
        return offset
    }

    // MARK: Progress

    /// Starts or stops the progress timer.
    mutating func updateProgress(_ now: UInt64) {
        if !isBlocked {
            progressMark = nil
        } else if progressMark == nil {
            progressMark = (sentBytes, now)
        }
    }

    /// The time by which the peer must have read further bytes; `.max` if none are queued.
    func progressDeadline(_ limits: ServerLimits) -> UInt64 {
        progressMark.map { $0.time + limits.progressInterval } ?? .max
    }

    /// Whether the peer read less than ``ServerLimits/minimumProgress`` in the elapsed interval. The engine can't
    /// detect this, because a reset that can't be sent ends no stream.
    mutating func isStuck(_ now: UInt64, _ limits: ServerLimits) -> Bool {
        guard let mark = progressMark, mark.time + limits.progressInterval <= now else {
            return false
        }
        progressMark = isBlocked ? (sentBytes, now) : nil
        return isBlocked && sentBytes - mark.bytes < limits.minimumProgress
    }
}
