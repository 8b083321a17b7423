import Glibc

/// Anonymous memory that begins at a page (mmap(2)). The kernel provides each page, all zero, when it is first touched. For
/// ``BufferPool`` and `SessionMemory`, whose figures are in their files.
public struct MappedMemory {
    /// The first byte, at the beginning of a page.
    public let start: UnsafeMutableRawPointer
    private let count: Int

    /// - Parameter count: The size in bytes.
    /// - Returns: nil if the kernel has no memory.
    public init?(_ count: Int) {
        let mapping = mmap(nil, count, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
        guard let mapping, mapping != MAP_FAILED else { return nil }
        // A huge page would be provided as a whole.
        madvise(mapping, count, MADV_NOHUGEPAGE)
        start = mapping
        self.count = count
    }

    /// Returns the memory to the kernel. It must not be used afterwards.
    public func unmap() { munmap(start, count) }
}
