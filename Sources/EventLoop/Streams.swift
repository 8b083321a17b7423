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
    /// Places the next bytes at the start of `buffer`.
    /// - Throws: where the bytes can't be had; the receiver is then told that the body broke off.
    func read(into buffer: inout MutableRawSpan) throws -> SourceRead
    /// Has `resume` called on the loop, once, as soon as there is something to read, but never from within this call.
    func whenReadable(_ resume: @escaping () -> Void)
    /// Releases what the source holds; called once, at the end or when the receiver is gone.
    func close()
}

/// Gives the bytes of an array.
public final class BytesSource: ByteSource {
    private let bytes: [UInt8]
    private var place = 0

    public init(_ bytes: [UInt8]) { self.bytes = bytes }

    public func read(into buffer: inout MutableRawSpan) -> SourceRead {
        let count = min(buffer.byteCount, bytes.count - place)
        guard count > 0 else { return .end }
        buffer.withUnsafeMutableBytes { target in
            bytes.withUnsafeBytes {
                target.copyMemory(from: .init(rebasing: $0[place..<place + count]))
            }
        }
        place += count
        return .bytes(count)
    }

    /// Never called: there is always something to read.
    public func whenReadable(_ resume: @escaping () -> Void) {}
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
