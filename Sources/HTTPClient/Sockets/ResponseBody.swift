import System

/// The exchange behind a ``ResponseBody``.
protocol ResponseReader: AnyObject, Sendable {
    var transport: SocketTransport { get }
    /// Resumes the reader that waits for bytes of the body.
    var waiter: (() -> Void)? { get set }
    /// Runs while the reader waits for the upstream.
    var readClock: ProgressClock { get set }
    /// The number of bytes to read if the rest of the body has arrived; nil if more may come.
    var arrivedRest: Int? { get }
    func read(into buffer: UnsafeMutableRawBufferPointer) throws(ClientError) -> SourceRead
    func whenReadable(_ resume: @escaping () -> Void)
    /// Called when no more of the body is wanted.
    func close()
}

extension ResponseReader {
    func wake() { waiter.take()?() }

    /// Received bytes wait for the reader, not the reader for the upstream.
    func bytesArrived() {
        readClock.stop(transport.loop.now)
        wake()
    }

    /// The reader has dropped the body, perhaps on another thread.
    func dropped() {
        let loop = transport.loop
        if loop.isCurrent { close() } else { loop.execute { self.close() } }
    }
}

/// The body of a response, for its reader. Closes itself when dropped.
final class ResponseBody: ByteSource {
    private let exchange: any ResponseReader

    init(_ exchange: any ResponseReader) { self.exchange = exchange }

    deinit { exchange.dropped() }

    var arrivedRest: Int? { exchange.arrivedRest }

    func arrived(_ bytes: [UInt8]) -> ArrivedBody { ArrivedBody(bytes) }

    func read(into buffer: inout MutableRawSpan) throws -> SourceRead {
        try buffer.withUnsafeMutableBytes { try exchange.read(into: $0) }
    }

    func whenReadable(_ resume: @escaping () -> Void) { exchange.whenReadable(resume) }

    func close() { exchange.close() }
}
