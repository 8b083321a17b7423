import System

/// The body of a response for its reader. It closes itself when it is dropped.
final class HTTP1Body: ByteSource {
    private let exchange: HTTP1Exchange

    init(_ exchange: HTTP1Exchange) { self.exchange = exchange }

    deinit { exchange.dropped() }

    func read(into buffer: inout MutableRawSpan) throws -> SourceRead {
        try buffer.withUnsafeMutableBytes { try exchange.read(into: $0) }
    }

    func whenReadable(_ resume: @escaping () -> Void) { exchange.whenReadable(resume) }

    func close() { exchange.close() }
}
