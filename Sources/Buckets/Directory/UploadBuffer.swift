import Glibc

/// At most ``limit`` bytes of an upload. It grows as bytes arrive, so a small body needs little memory.
///
/// Safety: one owner at a time: the loop that fills it, then the job or committer that it was handed to.
final class UploadBuffer: @unchecked Sendable {
    static let limit = 32 * 1024
    private var start: UnsafeMutableRawPointer?
    private(set) var capacity = 0
    private(set) var count = 0

    deinit { free(start) }

    /// Appends a prefix of `bytes` and returns its length. The first allocation depends on the `expected` whole length.
    func append(_ bytes: RawSpan, expected: UInt64?) -> Int {
        let taken = min(bytes.byteCount, UploadBuffer.limit - count)
        if taken == 0 { return 0 }
        if count + taken > capacity {
            let first = min(Int(clamping: expected ?? 1024), UploadBuffer.limit)
            capacity = min(max(count + taken, capacity * 4, first), UploadBuffer.limit)
            start = realloc(start, capacity)
            precondition(start != nil, "out of memory")
        }
        bytes.withUnsafeBytes { _ = memcpy(start! + count, $0.baseAddress!, taken) }
        count += taken
        return taken
    }

    func withBytes<Result, Failure: Error>(
        _ body: (UnsafeRawBufferPointer) throws(Failure) -> Result
    ) throws(Failure) -> Result {
        try body(UnsafeRawBufferPointer(start: start, count: count))
    }
}

/// Two buffers of an upload: the loop fills one while the pool works on the other. Confined to the loop.
struct UploadBuffers {
    private var filling = UploadBuffer()

    /// Appends a prefix of `bytes` and returns its length. A full buffer is passed to `send`, unless a job `isRunning`.
    /// `expected` is the length of the whole body, if known.
    mutating func append(
        _ bytes: RawSpan, expected: UInt64?, isRunning: Bool, send: (UploadBuffer) -> Void
    ) -> Int {
        var isRunning = isRunning
        var offset = 0
        while offset < bytes.byteCount {
            if filling.count == UploadBuffer.limit {
                if isRunning { break }
                isRunning = true
                send(filling)
                filling = UploadBuffer()
            }
            offset += filling.append(
                bytes.extracting(offset..<bytes.byteCount), expected: expected)
        }
        return offset
    }

    mutating func take() -> UploadBuffer {
        defer { self = UploadBuffers() }
        return filling
    }
}
