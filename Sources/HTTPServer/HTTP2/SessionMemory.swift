import CNghttp2
import Glibc
import System

/// The memory of one nghttp2 session. What nghttp2 allocates while it creates the session comes from a block of pages, the
/// rest from `malloc`. This saves 21 KiB of the 41 KiB of an idle connection over TLS, and 17 of 43 after its first request.
/// Only ``HTTP2Connection`` uses it.
///
/// nghttp2 allocates 26 KiB at the start: 16 are a buffer for one outgoing frame, 6 are tables. Most of the buffer is never
/// touched, and the tables are not touched before the first request. A block owns its pages of 4 KiB, so the kernel provides
/// only those that are touched: one at first, three after a request.
///
/// Safety: a block belongs to one session, which one thread uses at a time. The list of free blocks has a lock.
struct SessionMemory {
    /// nil if the kernel had no memory: then everything comes from `malloc`.
    private let block: UnsafeMutableRawPointer?
    /// Whether a session has used the block before, so that it is not all zero.
    private let isUsed: Bool

    /// The size of a block: what nghttp2 1.52 allocates, rounded up to pages. What does not fit comes from `malloc`.
    private static let blockBytes = 28 * 1024
    private static let blocksPerMapping = 64
    /// Free blocks that keep their pages.
    private static let spareBlocks = 64
    /// Whether no page is part of two blocks. False where pages are larger than 4 KiB.
    private static let ownsPages = blockBytes % sysconf(Int32(_SC_PAGESIZE)) == 0
    /// Free blocks: used before, and all zero.
    private static let freeBlocks = Lock<(used: [UInt], clean: [UInt])>(([], []))

    /// Takes a block.
    init() {
        let (address, isUsed) = SessionMemory.freeBlocks.withLock { free in
            if let used = free.used.popLast() { return (used, true) }
            if free.clean.isEmpty { free.clean = SessionMemory.map() }
            return (free.clean.popLast() ?? 0, false)
        }
        block = UnsafeMutableRawPointer(bitPattern: address)
        self.isUsed = isUsed
    }

    /// Gives the block back, after nghttp2 has deleted the session.
    func release() {
        guard let block else { return }
        SessionMemory.freeBlocks.withLock { free in
            if free.used.count >= SessionMemory.spareBlocks, SessionMemory.ownsPages,
                madvise(block, SessionMemory.blockBytes, MADV_DONTNEED) == 0
            {
                free.clean.append(UInt(bitPattern: block))
            } else {
                free.used.append(UInt(bitPattern: block))
            }
        }
    }

    /// New blocks; empty if the kernel has no memory.
    private static func map() -> [UInt] {
        guard let start = MappedMemory(blockBytes * blocksPerMapping)?.start else { return [] }
        return (0..<blocksPerMapping).reversed().map { UInt(bitPattern: start + $0 * blockBytes) }
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
        Block(block).open(isUsed: isUsed)
        defer { Block(block).seal() }
        return try body(&functions)
    }

    /// A block while nghttp2 allocates. It begins with its state.
    private struct Block {
        /// The bytes from `free` to `end` are free.
        private struct State {
            var free: Int
            var end = SessionMemory.blockBytes
            var isUsed: Bool
        }
        let start: UnsafeMutableRawPointer
        private static let stateBytes = 32
        /// The sizes of tables.
        private static let tableBytes = 1_000...8_192

        init(_ user: UnsafeMutableRawPointer?) { start = user.unsafelyUnwrapped }

        private var state: State {
            get { start.load(as: State.self) }
            nonmutating set { start.storeBytes(of: newValue, as: State.self) }
        }

        /// Empties the block and allows allocations.
        func open(isUsed: Bool) { state = State(free: Block.stateBytes, isUsed: isUsed) }

        /// The session exists: its further memory comes from `malloc`.
        func seal() { state.end = state.free }

        func contains(_ pointer: UnsafeMutableRawPointer?) -> Bool {
            UInt(bitPattern: pointer) &- UInt(bitPattern: start) < UInt(SessionMemory.blockBytes)
        }

        /// Tables are placed at the end, everything else at the beginning. The session comes first.
        private func take(_ size: Int) -> UnsafeMutableRawPointer? {
            var state = state
            guard size <= state.end - state.free else { return nil }
            // The bounds are multiples of the alignment, so the rounded size fits, too.
            let rounded = (size + SessionMemory.alignment - 1) & ~(SessionMemory.alignment - 1)
            defer { self.state = state }
            if state.free > Block.stateBytes, Block.tableBytes.contains(size) {
                state.end -= rounded
                return start + state.end
            }
            state.free += rounded
            return start + state.free - rounded
        }

        func allocate(_ size: Int) -> UnsafeMutableRawPointer? { take(size) ?? malloc(size) }

        func allocateZeroed(_ count: Int, _ size: Int) -> UnsafeMutableRawPointer? {
            let (bytes, overflow) = count.multipliedReportingOverflow(by: size)
            guard !overflow, let memory = take(bytes) else { return calloc(count, size) }
            if state.isUsed { memset(memory, 0, bytes) }
            return memory
        }

        /// Copies memory of the block into new memory. The copy may include bytes behind the old memory, which nothing reads.
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
