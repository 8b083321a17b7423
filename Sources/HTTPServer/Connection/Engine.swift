import System

/// A protocol on a connection: takes received bytes, produces bytes to send. No socket I/O but ``transfer(to:)``.
protocol Engine: StreamOwner {
    /// Receives bytes from the peer. May change them.
    func receive(_ bytes: UnsafeMutableRawBufferPointer)
    /// The peer has stopped sending.
    func receiveEnd()
    /// Whether more bytes may be read now.
    var wantsRead: Bool { get }
    /// The bytes that the peer sends next without waiting for us, if all are of one body whose sink waits; otherwise 0.
    /// nil without a request.
    var expectedBytes: Int? { get }
    /// The number of body bytes that wait for their sinks.
    var waitingBytes: Int { get }
    /// Shrinks receive windows whose streams have more than `most` bytes beyond the initial ones, or have stalled.
    /// Returns the number of streams that have such bytes and have not stalled.
    func limitWindows(to most: Int, _ now: UInt64) -> Int
    /// Appends the next bytes to send, if any, to `output`.
    func produce(_ output: OutputBuffer)
    /// Moves the next bytes of a body directly to the socket in clear text. Called if nothing was produced.
    func transfer(to socket: Int32) -> DirectTransfer
    /// The kernel has accepted everything that was produced.
    func flushed()
    /// Whether input is ignored: queued output is sent, then the connection closes.
    var isEnding: Bool { get }
    /// Whether the connection ends once everything is flushed.
    var isFinished: Bool { get }
    /// The time at which ``expire(_:)`` is due.
    func deadline(_ limits: ServerLimits) -> UInt64
    /// Handles the deadline.
    func expire(_ now: UInt64)
    /// Finishes open requests and accepts no new ones.
    func beginDrain()
    /// The connection is closed.
    func connectionLost()
}
