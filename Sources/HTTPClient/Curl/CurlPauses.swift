/// The directions in which libcurl has paused a transfer, so that no slow reader or writer fills the memory.
///
/// | event                                                  | receiving | sending |
/// |--------------------------------------------------------|-----------|---------|
/// | `receive`, below the limit                             | continues |         |
/// | `receive`, the limit is reached                        | pauses    |         |
/// | `sourceIsEmpty`                                        |           | pauses  |
/// | `resume`, paused and less than half the limit buffered | continues | continues |
/// | `resume`, paused and there are bytes to send           |           | continues |
struct CurlPauses: Equatable {
    /// The number of buffered body bytes at which receiving pauses: 64 KiB with another read of libcurl.
    static let bufferLimit = 48 * 1024

    private(set) var isReceivePaused = false
    private(set) var isSendPaused = false

    /// Handles body bytes of the response while `buffered` bytes wait for the reader.
    /// - Returns: Whether they are accepted. If not, libcurl offers them again after it continues.
    mutating func receive(buffered: Int) -> Bool {
        guard buffered >= CurlPauses.bufferLimit else { return true }
        isReceivePaused = true
        return false
    }

    /// The request's body has no bytes to send.
    mutating func sourceIsEmpty() { isSendPaused = true }

    /// Called when the reader or writer has continued. If libcurl then gets no bytes to send, it pauses again.
    /// - Returns: Whether libcurl must be informed.
    mutating func resume(buffered: Int, canSend: Bool) -> Bool {
        let resumesReceive = isReceivePaused && buffered < CurlPauses.bufferLimit / 2
        guard resumesReceive || isSendPaused && canSend else { return false }
        if resumesReceive { isReceivePaused = false }
        isSendPaused = false
        return true
    }
}
