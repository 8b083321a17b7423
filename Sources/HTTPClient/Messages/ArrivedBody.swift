import System

/// A small body that has arrived completely, in the buffer that received it. Confined to its loop.
package final class ArrivedBody: ByteSource {
    package private(set) var bytes: [UInt8]
    private var offset = 0

    init(_ bytes: consuming [UInt8]) { self.bytes = bytes }

    package func read(into buffer: inout MutableRawSpan) -> SourceRead {
        if offset == bytes.count { return .end }
        let end = min(bytes.count, offset + buffer.byteCount)
        if end == offset { return .wait }
        buffer.withUnsafeMutableBytes { target in
            bytes.withUnsafeBytes { target.copyMemory(from: .init(rebasing: $0[offset..<end])) }
        }
        defer { offset = end }
        return .bytes(end - offset)
    }

    package func whenReadable(_ resume: @escaping () -> Void) { resume() }

    package func close() {
        bytes = []
        offset = 0
    }
}
