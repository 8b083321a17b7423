/// Takes a body's bytes without waiting, with back-pressure. Confined to one loop.
public protocol ByteSink: AnyObject {
    /// Takes a prefix of `bytes` and returns its length. Fewer than offered means: not now; the sink calls what it
    /// was given by ``whenWritable(_:)`` once it can take more.
    /// - Throws: where the bytes can't be stored; nothing more is offered then.
    func write(_ bytes: RawSpan) throws -> Int
    /// Has `resume` called on the loop, once, as soon as the sink can take bytes again, but never from within this call.
    func whenWritable(_ resume: @escaping () -> Void)
}

/// What a source had to give.
public enum SourceRead: Equatable, Sendable {
    /// So many bytes were placed at the buffer's start (at least one).
    case bytes(Int)
    /// Nothing now; what was given by ``ByteSource/whenReadable(_:)`` is called when there is.
    case wait
    /// The body is complete.
    case end
}

/// Gives a body's bytes when it is asked: back-pressure is pull. Confined to one loop.
public protocol ByteSource: AnyObject {
    /// Writes the next bytes to the start of `buffer`.
    /// - Throws: where the bytes can't be had; the receiver is then told that the body broke off.
    func read(into buffer: inout MutableRawSpan) throws -> SourceRead
    /// Has `resume` called on the loop, once, as soon as there is something to read, but never from within this call.
    func whenReadable(_ resume: @escaping () -> Void)
    /// Releases what the source holds; called once, at the end or when the receiver is gone.
    func close()
}

/// Gives bytes that are in memory already.
public final class BytesSource: ByteSource {
    private let bytes: [UInt8]
    private var range: Range<Int>

    /// - Parameter range: Which of them; all where nothing is said.
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

/// What became of a direct transfer.
public enum DirectTransfer: Equatable, Sendable {
    /// So many bytes went to the socket (at least one).
    case bytes(Int)
    /// The source has nothing now; what was given by ``ByteSource/whenReadable(_:)`` is called when it has.
    case sourceWaits
    /// The socket takes no more now.
    case socketWaits
    /// The bytes can't go directly: read them.
    case unsupported
}

/// A source whose bytes the kernel can move to a socket by itself (sendfile(2)).
public protocol DirectSource: ByteSource {
    /// Moves at most `count` bytes to a connected, non-blocking socket in clear text.
    /// - Throws: where the bytes can't be had, or the socket has failed.
    func transfer(to socket: Int32, count: Int) throws -> DirectTransfer
}
