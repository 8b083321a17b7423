import Glibc
import System

/// The bytes of an object when it was opened: a file descriptor, or the bytes from the index.
final class DirectoryReader: ObjectReader {
    enum Content {
        case memory([UInt8])
        case file(Int32)
    }

    let metadata: ObjectMetadata
    private let pool: BlockingPool
    private var content: Content?

    init(_ metadata: ObjectMetadata, _ content: Content, _ pool: BlockingPool) {
        self.metadata = metadata
        self.content = content
        self.pool = pool
    }

    deinit { close() }

    func readyBytes(_ range: Range<UInt64>) throws(BucketError) -> (any ByteSource)? {
        try bytes(range)
    }

    func bytes(_ range: Range<UInt64>) throws(BucketError) -> any ByteSource {
        guard let content, range.upperBound <= metadata.size else {
            throw BucketError(.internal, "bytes of \(range) of \(metadata.size)")
        }
        switch content {
        case .memory(let bytes):
            guard range.upperBound <= bytes.count else {
                throw BucketError(.internal, "the index holds fewer bytes than the object's size")
            }
            self.content = nil
            return BytesSource(bytes, Int(range.lowerBound)..<Int(range.upperBound))
        case .file(let descriptor):
            guard let loop = EventLoop.current else {
                throw BucketError(.internal, "a reader belongs on a loop")
            }
            self.content = nil
            return FileSource(descriptor, range, size: metadata.size, loop, pool)
        }
    }

    func close() {
        if case .file(let descriptor) = content {
            FileSource.close(descriptor, size: metadata.size, pool)
        }
        content = nil
    }
}

/// The bytes of a file, read on the loop from the page cache and otherwise on the pool.
///
/// Safety: confined to its loop; a job on the pool uses only the descriptor and its own buffer, and carries the
/// reference back to the loop.
private final class FileSource: DirectSource, @unchecked Sendable {
    private static let chunk = 64 * 1024
    /// Larger files are closed on the pool, because the last close of a removed file frees its blocks.
    private static let closedElsewhere: UInt64 = 1 << 20

    private let descriptor: Int32
    private let size: UInt64
    private let loop: EventLoop
    private let pool: BlockingPool
    private var position: UInt64
    private let end: UInt64
    private var ready: ArraySlice<UInt8> = []
    private var failure: (any Error)?
    private var isRunning = false
    private var isClosed = false
    private var resume: (() -> Void)?

    init(
        _ descriptor: Int32, _ range: Range<UInt64>, size: UInt64, _ loop: EventLoop,
        _ pool: BlockingPool
    ) {
        self.descriptor = descriptor
        self.size = size
        self.loop = loop
        self.pool = pool
        position = range.lowerBound
        end = range.upperBound
    }

    deinit { close() }

    static func close(_ descriptor: Int32, size: UInt64, _ pool: BlockingPool) {
        if size < closedElsewhere {
            Glibc.close(descriptor)
        } else {
            pool.submit { Glibc.close(descriptor) }
        }
    }

    func read(into buffer: inout MutableRawSpan) throws -> SourceRead {
        if let failure { throw failure }
        if position == end || isClosed { return .end }
        if isRunning || buffer.byteCount == 0 { return .wait }
        if !ready.isEmpty { return takeReady(&buffer) }
        let count = Int(clamping: end - position)
        switch try File.read(descriptor, into: &buffer, count: count, at: position) {
        case .bytes(0): throw BucketError(.internal, "a blob is shorter than its object's size")
        case .bytes(let count):
            position += UInt64(count)
            return .bytes(count)
        case .wouldWait:
            readElsewhere(min(count, FileSource.chunk))
            return .wait
        }
    }

    func transfer(to socket: Int32, count: Int) throws -> DirectTransfer {
        if let failure { throw failure }
        if isClosed || !ready.isEmpty { return .unsupported }
        if isRunning { return .sourceWaits }
        let count = min(count, Int(clamping: end - position))
        switch try File.send(descriptor, to: socket, count: count, at: position) {
        case .bytes(0): throw BucketError(.internal, "a blob is shorter than its object's size")
        case .bytes(let count):
            position += UInt64(count)
            return .bytes(count)
        case .socketFull: return .socketWaits
        case .wouldWait:
            readElsewhere(min(count, FileSource.chunk))
            return .sourceWaits
        }
    }

    private func takeReady(_ buffer: inout MutableRawSpan) -> SourceRead {
        let count = min(ready.count, buffer.byteCount)
        buffer.withUnsafeMutableBytes { target in
            ready.withUnsafeBytes {
                target.baseAddress!.copyMemory(from: $0.baseAddress!, byteCount: count)
            }
        }
        // Release a used-up buffer, so that a slow receiver does not keep it.
        ready = count == ready.count ? [] : ready.dropFirst(count)
        position += UInt64(count)
        return .bytes(count)
    }

    private func readElsewhere(_ count: Int) {
        isRunning = true
        let (descriptor, position) = (descriptor, position)
        pool.submit { [self] in
            let outcome = Result { () throws(SystemError) in try FileSource.readWaiting(descriptor, count, at: position)
            }
            loop.execute { self.jobDone(outcome) }
        }
    }

    private static func readWaiting(_ descriptor: Int32, _ count: Int, at position: UInt64)
        throws(SystemError) -> [UInt8]
    {
        var code: Int32 = 0
        let bytes = [UInt8](unsafeUninitializedCapacity: count) { buffer, initialized in
            while true {
                let result = pread(descriptor, buffer.baseAddress, count, off_t(position))
                if result >= 0 {
                    initialized = result
                    return
                }
                code = errno
                if code != EINTR { return }
                code = 0
            }
        }
        if code != 0 { throw SystemError("pread", code) }
        return bytes
    }

    private func jobDone(_ outcome: Result<[UInt8], SystemError>) {
        isRunning = false
        switch outcome {
        case .success(let bytes):
            ready = bytes[...]
            if bytes.isEmpty {
                failure = BucketError(.internal, "a blob is shorter than its object's size")
            }
        case .failure(let error):
            failure = BucketError(.unavailable, error.description)
        }
        if isClosed {
            ready = []
            FileSource.close(descriptor, size: size, pool)
        } else {
            wake()
        }
    }

    func whenReadable(_ resume: @escaping () -> Void) {
        self.resume = resume
        if !isRunning { loop.execute { self.wake() } }
    }

    private func wake() { resume.take()?() }

    func close() {
        if isClosed { return }
        isClosed = true
        resume = nil
        if !isRunning {
            ready = []
            FileSource.close(descriptor, size: size, pool)
        }
    }
}
