/// Receives a body's bytes without blocking, with back-pressure. Confined to one loop.
public protocol ByteSink: AnyObject {
    /// Accepts a prefix of `bytes` and returns its length. If the prefix is shorter, the sink calls the function from
    /// ``whenWritable(_:)`` once it can accept more.
    /// - Throws: If the bytes can't be stored; no further bytes are offered.
    func write(_ bytes: RawSpan) throws -> Int
    /// Calls `resume` once, on the loop, when the sink can accept bytes again, but never within this call.
    func whenWritable(_ resume: @escaping () -> Void)
}

/// The result of a read from a source.
public enum SourceRead: Equatable, Sendable {
    /// This many bytes, at least one, were written to the start of the buffer.
    case bytes(Int)
    /// No bytes are available yet; wait with ``ByteSource/whenReadable(_:)``.
    case wait
    /// The body is complete.
    case end
}

/// Provides a body's bytes on demand, which gives back-pressure. Confined to one loop.
public protocol ByteSource: AnyObject {
    /// Writes the next bytes to the start of `buffer`.
    /// - Throws: If the bytes can't be read; the receiver then sees an incomplete body.
    func read(into buffer: inout MutableRawSpan) throws -> SourceRead
    /// Calls `resume` once, on the loop, when bytes are available, never within this call. Called after `.wait`.
    func whenReadable(_ resume: @escaping () -> Void)
    /// Releases the source's resources. Called once, at the end or when the receiver is gone.
    func close()
}

/// A source of bytes in memory.
public final class BytesSource: ByteSource {
    private let bytes: [UInt8]
    private var range: Range<Int>

    /// - Parameter range: The bytes to read; by default all.
    public init(_ bytes: [UInt8], _ range: Range<Int>? = nil) {
        self.bytes = bytes
        self.range = range ?? bytes.indices
    }

    public func read(into buffer: inout MutableRawSpan) -> SourceRead {
        if range.isEmpty { return .end }
        let part = range.prefix(buffer.byteCount)
        if part.isEmpty { return .wait }
        buffer.withUnsafeMutableBytes { target in
            bytes.withUnsafeBytes { target.copyMemory(from: .init(rebasing: $0[part])) }
        }
        range = part.upperBound..<range.upperBound
        return .bytes(part.count)
    }

    public func whenReadable(_ resume: @escaping () -> Void) { resume() }
    public func close() {}
}

/// The result of a direct transfer.
public enum DirectTransfer: Equatable, Sendable {
    /// This many bytes, at least one, were written to the socket.
    case bytes(Int)
    /// The source has no bytes yet; wait with ``ByteSource/whenReadable(_:)``.
    case sourceWaits
    /// The socket's buffer is full.
    case socketWaits
    /// The bytes can't be transferred directly; read them.
    case unsupported
}

/// A source whose bytes the kernel can move to a socket (sendfile(2)).
public protocol DirectSource: ByteSource {
    /// Moves at most `count` bytes to a connected, non-blocking socket in clear text.
    /// - Throws: If the bytes can't be read or the socket has failed.
    func transfer(to socket: Int32, count: Int) throws -> DirectTransfer
}
