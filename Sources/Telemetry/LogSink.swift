import Glibc
import System
import Wire

/// The format of log lines.
public enum LogFormat: Sendable, Equatable {
    /// One line with aligned columns for people.
    case text(colour: Bool)
    /// One JSON object per line (RFC 8259).
    case json

    /// Chooses by descriptor: JSON, or text on a terminal, in colour unless `NO_COLOR` is set or `TERM` is `dumb`.
    public static func automatic(for descriptor: Int32) -> LogFormat {
        isatty(descriptor) == 1 ? .text(colour: mayColour(descriptor)) : .json
    }

    /// Text, in colour if the descriptor is a terminal and colours are not disabled.
    public static func text(for descriptor: Int32) -> LogFormat {
        .text(colour: isatty(descriptor) == 1 && mayColour(descriptor))
    }

    /// The format with a name from the configuration: `text`, `json`, or anything else for ``automatic(for:)``.
    public static func named(_ name: String, for descriptor: Int32) -> LogFormat {
        switch name {
        case "text": text(for: descriptor)
        case "json": .json
        default: automatic(for: descriptor)
        }
    }

    private static func mayColour(_ descriptor: Int32) -> Bool {
        if let value = getenv("NO_COLOR"), value.pointee != 0 { return false }
        guard let term = getenv("TERM") else { return false }
        return strcmp(term, "dumb") != 0
    }
}

/// Writes all log lines, of the access log and of all other loggers, to one descriptor.
///
/// A logger only copies its line into a buffer under a short lock. A separate thread writes the buffer when it contains
/// ``batchBytes`` or its first line is ``batchDelay`` old, so a slow pipe or disk never blocks an event loop. A line
/// that exceeds ``capacity`` is dropped as a whole and counted.
///
/// Safety: mutable state is accessed only with `mutex` held, except `isMidLine`, which only the writing thread uses.
public final class LogSink: @unchecked Sendable {
    /// The buffer size, in bytes, at which writing begins at once; half the capacity if that is less.
    public static let batchBytes = 16 * 1024
    /// The nanoseconds for which a line may wait for more lines.
    public static let batchDelay: UInt64 = 50_000_000

    /// The format of lines in this sink.
    public let format: LogFormat
    /// The maximum number of buffered bytes, not counting those being written.
    public let capacity: Int
    private let descriptor: Int32
    private let batch: Int
    private let mutex = UnsafeMutablePointer<pthread_mutex_t>.allocate(capacity: 1)
    private let filled = UnsafeMutablePointer<pthread_cond_t>.allocate(capacity: 1)
    private let drained = UnsafeMutablePointer<pthread_cond_t>.allocate(capacity: 1)
    private var pending: [UInt8] = []
    private var isWriting = false
    private var isHurried = false
    private var isClosed = false
    private var dropped = 0
    private var isMidLine = false

    /// Starts the writing thread, which runs until ``close(within:)``. The caller keeps ownership of the descriptor.
    public init(descriptor: Int32, format: LogFormat, capacity: Int = 1 << 20) {
        self.descriptor = descriptor
        self.format = format
        self.capacity = capacity
        batch = min(LogSink.batchBytes, capacity / 2)
        pthread_mutex_init(mutex, nil)
        var attributes = pthread_condattr_t()
        pthread_condattr_init(&attributes)
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC)
        pthread_cond_init(filled, &attributes)
        pthread_cond_init(drained, &attributes)
        pthread_condattr_destroy(&attributes)
        pthread_detach(startThread { [self] in work() })
    }

    deinit {
        pthread_cond_destroy(filled)
        pthread_cond_destroy(drained)
        pthread_mutex_destroy(mutex)
        filled.deallocate()
        drained.deallocate()
        mutex.deallocate()
    }

    /// The number of lines lost since the start because the buffer was full or a write failed.
    public var droppedLines: Int {
        pthread_mutex_lock(mutex)
        defer { pthread_mutex_unlock(mutex) }
        return dropped
    }

    /// Appends one line and a newline. Never waits for the descriptor.
    package func append(_ line: borrowing LogLine) { line.withBytes(append) }

    /// Appends one line, given without its newline.
    func append(_ line: UnsafeBufferPointer<UInt8>) {
        pthread_mutex_lock(mutex)
        let before = pending.count
        guard !isClosed, before + line.count < capacity else {
            dropped += 1
            pthread_mutex_unlock(mutex)
            return
        }
        pending.append(contentsOf: line)
        pending.append(UInt8(ascii: "\n"))
        let isFull = before < batch && pending.count >= batch
        pthread_mutex_unlock(mutex)
        if before == 0 || isFull { pthread_cond_signal(filled) }
    }

    /// Waits until everything is written, for at most `nanoseconds`.
    /// - Returns: Whether everything was written.
    @discardableResult
    public func flush(within nanoseconds: UInt64 = 1_000_000_000) -> Bool {
        var deadline = LogSink.deadline(after: nanoseconds)
        pthread_mutex_lock(mutex)
        defer { pthread_mutex_unlock(mutex) }
        isHurried = true
        pthread_cond_signal(filled)
        while isWriting || !pending.isEmpty {
            if pthread_cond_timedwait(drained, mutex, &deadline) == ETIMEDOUT {
                return !isWriting && pending.isEmpty
            }
        }
        return true
    }

    /// Flushes for at most `nanoseconds` and ends the thread. Later lines are dropped.
    public func close(within nanoseconds: UInt64 = 1_000_000_000) {
        flush(within: nanoseconds)
        pthread_mutex_lock(mutex)
        isClosed = true
        pthread_cond_signal(filled)
        pthread_mutex_unlock(mutex)
    }

    // MARK: The writing thread

    private func work() {
        var chunk: [UInt8] = []
        pthread_mutex_lock(mutex)
        while true {
            while pending.isEmpty && !isClosed {
                isHurried = false
                pthread_cond_wait(filled, mutex)
            }
            if pending.isEmpty { break }
            waitForCompany()
            swap(&chunk, &pending)
            isWriting = true
            pthread_mutex_unlock(mutex)
            let lost = write(chunk)
            chunk.removeAll(keepingCapacity: chunk.capacity <= 4 * LogSink.batchBytes)
            pthread_mutex_lock(mutex)
            dropped += lost
            isWriting = false
            if pending.isEmpty { pthread_cond_broadcast(drained) }
        }
        pthread_mutex_unlock(mutex)
    }

    private func waitForCompany() {
        var deadline = LogSink.deadline(after: LogSink.batchDelay)
        while pending.count < batch && !isHurried && !isClosed {
            if pthread_cond_timedwait(filled, mutex, &deadline) == ETIMEDOUT { return }
        }
    }

    /// Writes all bytes. Returns the number of lines lost to a failed write.
    private func write(_ chunk: [UInt8]) -> Int {
        // After a failed write in the middle of a line, begin a new line.
        if isMidLine { isMidLine = Glibc.write(descriptor, "\n", 1) != 1 }
        var offset = 0
        while offset < chunk.count {
            let count = chunk.withUnsafeBytes {
                Glibc.write(descriptor, $0.baseAddress! + offset, $0.count - offset)
            }
            if count >= 0 {
                offset += count
            } else if errno == EAGAIN {
                var wanted = pollfd(fd: descriptor, events: Int16(POLLOUT), revents: 0)
                poll(&wanted, 1, -1)
            } else if errno != EINTR {
                isMidLine = offset > 0 && chunk[offset - 1] != UInt8(ascii: "\n")
                return chunk[offset...].count { $0 == UInt8(ascii: "\n") }
            }
        }
        return 0
    }

    private static func deadline(after nanoseconds: UInt64) -> timespec {
        let end = EventLoop.monotonicNow() &+ nanoseconds
        return timespec(tv_sec: Int(end / 1_000_000_000), tv_nsec: Int(end % 1_000_000_000))
    }
}
