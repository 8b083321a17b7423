import Glibc

/// Buffers of one size that the users of one loop share. Confined to its loop.
///
/// They have a mapping of their own: freed to the heap, among small objects that live longer, they would leave holes that no
/// other buffer fits into.
public final class BufferPool {
    /// The size of a buffer in bytes: a multiple of a page.
    public let size: Int
    /// The maximum number of buffers in use at the same time.
    private let maximum: Int
    private let start: UnsafeMutableRawPointer?
    /// The buffers that have no memory yet, and those that have; each by its address.
    private var clean: [UnsafeMutableRawPointer] = []
    private var free: [UnsafeMutableRawPointer] = []
    /// The number of buffers in use.
    public private(set) var used = 0

    init(size: Int, maximum: Int) {
        self.size = size
        self.maximum = maximum
        let mapping = mmap(
            nil, size * maximum, PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
        guard let mapping, mapping != MAP_FAILED else {
            start = nil
            return
        }
        start = mapping
        // A huge page would be provided as a whole.
        madvise(mapping, size * maximum, MADV_NOHUGEPAGE)
        clean = (0..<maximum).reversed().map { mapping + $0 * size }
    }

    deinit {
        assert(used == 0, "buffers are given back before the loop ends")
        if let start { munmap(start, size * maximum) }
    }

    /// A buffer, which must be given back; nil if the maximum is in use.
    public func take() -> UnsafeMutableRawBufferPointer? {
        guard let buffer = free.popLast() ?? clean.popLast() else { return nil }
        used += 1
        return UnsafeMutableRawBufferPointer(start: buffer, count: size)
    }

    /// Takes a buffer back. Once none is in use, all memory but that of one buffer is released.
    public func giveBack(_ buffer: UnsafeMutableRawBufferPointer) {
        guard let start = buffer.baseAddress else { return }
        used -= 1
        free.append(start)
        guard used == 0 else { return }
        while free.count > 1, let buffer = free.popLast() {
            madvise(buffer, size, MADV_DONTNEED)
            clean.append(buffer)
        }
    }
}
