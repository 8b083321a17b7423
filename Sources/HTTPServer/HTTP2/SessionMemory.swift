import CNghttp2
import Glibc
import System

/// The memory of one nghttp2 session: a block for what nghttp2 allocates while it creates the session, `malloc` for all
/// the rest.
///
/// nghttp2 begins with 26 KiB, of which 16 are a buffer for one outgoing frame. Most frames are short and bodies do not
/// pass through that buffer, so most of it is never touched. Blocks begin at a page and are used for nothing else, so the
/// kernel provides only the touched pages: 12 KiB for most sessions.
///
/// Safety: a block belongs to one session, which one thread uses at a time. The list of free blocks has a lock.
struct SessionMemory {
    /// nil if there is none: then everything comes from `malloc`.
    private let block: UnsafeMutableRawPointer?

    /// The size of a block: what nghttp2 1.52 allocates, rounded up to pages. What does not fit comes from `malloc`.
    private static let blockBytes = 28 * 1024
    private static let blocksPerMapping = 64
    /// Free blocks that keep their pages.
    private static let spareBlocks = 64
    private static let freeBlocks = Lock<[UInt]>([])

    /// Takes a block.
    init() {
        block = SessionMemory.freeBlocks.withLock { free in
            if free.isEmpty { free = SessionMemory.map() }
            return free.popLast().flatMap { UnsafeMutableRawPointer(bitPattern: $0) }
        }
    }

    /// Gives the block back, after nghttp2 has deleted the session.
    func release() {
        guard let block else { return }
        SessionMemory.freeBlocks.withLock { free in
            if free.count >= SessionMemory.spareBlocks {
                madvise(block, SessionMemory.blockBytes, MADV_DONTNEED)
            }
            free.append(UInt(bitPattern: block))
        }
    }

    /// New blocks; empty if the kernel has no memory.
    private static func map() -> [UInt] {
        let bytes = blockBytes * blocksPerMapping
        let mapping = mmap(
            nil, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
        guard let mapping, mapping != MAP_FAILED else { return [] }
        // A huge page would be provided as a whole.
        madvise(mapping, bytes, MADV_NOHUGEPAGE)
        return (0..<blocksPerMapping).reversed().map { UInt(bitPattern: mapping + $0 * blockBytes) }
    }

    /// Lends the allocator to `body`, which creates the session. nghttp2 copies it.
    func whileOpen<Result>(_ body: (UnsafeMutablePointer<nghttp2_mem>?) throws -> Result) rethrows
        -> Result
    {
        guard let block else { return try body(nil) }
        var functions = nghttp2_mem(
            mem_user_data: block, malloc: { Block($1).allocate($0) },
            free: { pointer, block in if !Block(block).contains(pointer) { Glibc.free(pointer) } },
            calloc: { Block($2).allocateZeroed($0, $1) },
            realloc: { Block($2).reallocate($0, $1) })
        Block(block).open()
        defer { Block(block).seal() }
        return try body(&functions)
    }

    /// A block while nghttp2 allocates. Its first bytes say how many are used.
    private struct Block {
        let start: UnsafeMutableRawPointer

        init(_ user: UnsafeMutableRawPointer?) { start = user.unsafelyUnwrapped }

        private var used: Int {
            get { start.load(as: Int.self) }
            nonmutating set { start.storeBytes(of: newValue, as: Int.self) }
        }

        /// Empties the block and allows allocations.
        func open() { used = SessionMemory.alignment }

        /// The session exists: its further memory comes from `malloc`.
        func seal() { used = SessionMemory.blockBytes }

        func contains(_ pointer: UnsafeMutableRawPointer?) -> Bool {
            UInt(bitPattern: pointer) &- UInt(bitPattern: start) < UInt(SessionMemory.blockBytes)
        }

        private func take(_ size: Int) -> UnsafeMutableRawPointer? {
            let offset = used
            guard size <= SessionMemory.blockBytes - offset else { return nil }
            let end = (offset + size + SessionMemory.alignment - 1) & ~(SessionMemory.alignment - 1)
            used = min(end, SessionMemory.blockBytes)
            return start + offset
        }

        func allocate(_ size: Int) -> UnsafeMutableRawPointer? { take(size) ?? malloc(size) }

        func allocateZeroed(_ count: Int, _ size: Int) -> UnsafeMutableRawPointer? {
            let (bytes, overflow) = count.multipliedReportingOverflow(by: size)
            guard !overflow, let memory = take(bytes) else { return calloc(count, size) }
            memset(memory, 0, bytes)
            return memory
        }

        /// Memory of the block is copied, not moved. The copy may contain bytes behind the old memory, which nothing reads.
        func reallocate(_ old: UnsafeMutableRawPointer?, _ size: Int) -> UnsafeMutableRawPointer? {
            guard let old else { return allocate(size) }
            guard contains(old) else { return realloc(old, size) }
            guard let new = malloc(size) else { return nil }
            memcpy(new, old, min(size, SessionMemory.blockBytes - (old - start)))
            return new
        }
    }

    private static let alignment = 16
}
