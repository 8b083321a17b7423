/// Buffers of one size that the users of one loop share. Confined to its loop.
public final class BufferPool {
    /// The size of a buffer in bytes.
    public let size: Int
    /// The maximum number of buffers in use at the same time.
    private let maximum: Int
    private var free: [UnsafeMutableRawBufferPointer] = []
    /// The number of buffers in use.
    public private(set) var used = 0

    init(size: Int, maximum: Int) {
        self.size = size
        self.maximum = maximum
    }

    deinit {
        assert(used == 0, "buffers are given back before the loop ends")
        for buffer in free { buffer.deallocate() }
    }

    /// A buffer, which must be given back; nil if the maximum is in use.
    public func take() -> UnsafeMutableRawBufferPointer? {
        guard used < maximum else { return nil }
        used += 1
        return free.popLast() ?? .allocate(byteCount: size, alignment: 64)
    }

    /// Takes a buffer back. Once none is in use, all memory but that of one buffer is released.
    public func giveBack(_ buffer: UnsafeMutableRawBufferPointer) {
        used -= 1
        free.append(buffer)
        guard used == 0 else { return }
        while free.count > 1, let buffer = free.popLast() { buffer.deallocate() }
    }
}
