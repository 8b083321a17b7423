import Glibc

/// The input of a TLS session from its non-blocking socket. It doesn't ask the kernel again after a read that has emptied
/// the socket, until the loop reports more (epoll(7), with edge-triggered events).
struct SocketInput {
    private let descriptor: Int32
    /// Whether the socket may have bytes.
    private(set) var isReadable: Bool
    /// Whether the peer has stopped sending. Kept, because it is reported only once.
    private var hasHangup = false
    /// Whether everything up to the end of the stream was received.
    private(set) var hasEnded = false
    /// The error of the socket; 0 for none.
    private(set) var error: Int32 = 0

    init(_ descriptor: Int32, isReadable: Bool) {
        self.descriptor = descriptor
        self.isReadable = isReadable
    }

    /// Handles a report of the loop.
    mutating func isReady(hangup: Bool) {
        isReadable = true
        if hangup { hasHangup = true }
    }

    /// Stops receiving.
    mutating func fail(_ code: Int32) { error = code }

    /// Receives into a buffer. Returns like `recv(2)`; nil if nothing has arrived yet.
    mutating func receive(_ buffer: UnsafeMutableRawPointer, _ size: Int) -> Int? {
        while isReadable && error == 0 {
            let count = recv(descriptor, buffer, size, 0)
            if count > 0 {
                if count < size && !hasHangup { isReadable = false }
                return count
            }
            if count == 0 {
                hasEnded = true
                return 0
            }
            switch errno {
            case EINTR: continue
            case EAGAIN: isReadable = false
            default: error = errno
            }
        }
        return error == 0 ? nil : -1
    }
}
