import System

/// The body of a libcurl response.
final class CurlBody: ByteSource {
    private let transfer: CurlTransfer

    init(_ transfer: CurlTransfer) { self.transfer = transfer }

    deinit { transfer.dropped() }

    func read(into buffer: inout MutableRawSpan) throws -> SourceRead {
        try transfer.read(into: &buffer)
    }

    func whenReadable(_ resume: @escaping () -> Void) { transfer.whenReadable(resume) }

    func close() { transfer.closeBody() }
}
