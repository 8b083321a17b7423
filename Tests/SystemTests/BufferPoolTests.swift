import Glibc
import Testing

@testable import System

/// Buffers that the users of a loop share.
@Suite struct BufferPoolTests {
    private static let page = Int(sysconf(Int32(_SC_PAGESIZE)))

    private func residentPages(_ buffers: [UnsafeMutableRawBufferPointer]) -> Int {
        buffers.reduce(0) { sum, buffer in
            var pages = [UInt8](repeating: 0, count: buffer.count / Self.page)
            #expect(mincore(buffer.baseAddress, buffer.count, &pages) == 0)
            return sum + pages.count { $0 & 1 == 1 }
        }
    }

    private func takeAll(_ pool: BufferPool) -> [UnsafeMutableRawBufferPointer] {
        var buffers: [UnsafeMutableRawBufferPointer] = []
        while buffers.count < 100, let buffer = pool.take() { buffers.append(buffer) }
        return buffers
    }

    @Test func lendsEachBufferOnce() {
        let pool = BufferPool(size: 4 * Self.page, maximum: 5)
        for _ in 0..<2 {
            let buffers = takeAll(pool)
            #expect(buffers.count == 5)
            #expect(pool.used == 5)
            for (number, buffer) in buffers.enumerated() {
                #expect(buffer.count == pool.size)
                _ = buffer.initializeMemory(as: UInt8.self, repeating: UInt8(number))
            }
            for (number, buffer) in buffers.enumerated() {
                #expect(buffer.allSatisfy { $0 == UInt8(number) })
                pool.giveBack(buffer)
            }
        }
    }

    /// Pages may be larger than what the size is a multiple of.
    @Test func buffersAreWholePages() {
        let pool = BufferPool(size: 3 * Self.page + 1, maximum: 3)
        let buffers = takeAll(pool)
        for buffer in buffers { _ = buffer.initializeMemory(as: UInt8.self, repeating: 1) }
        for buffer in buffers { pool.giveBack(buffer) }
        let pages = buffers.map {
            UnsafeMutableRawBufferPointer(start: $0.baseAddress, count: 4 * Self.page)
        }
        #expect(residentPages(pages) == 4)
    }

    @Test func keepsTheMemoryOfOneBuffer() throws {
        let pool = BufferPool(size: 4 * Self.page, maximum: 5)
        let buffers = takeAll(pool)
        #expect(residentPages(buffers) == 0)
        for buffer in buffers { _ = buffer.initializeMemory(as: UInt8.self, repeating: 1) }
        for buffer in buffers.dropLast() { pool.giveBack(buffer) }
        #expect(residentPages(buffers) == 20, "others are in use")
        pool.giveBack(buffers[4])
        #expect(residentPages(buffers) == 4)
        let kept = try #require(pool.take())
        #expect(residentPages([kept]) == 4, "the one with memory is taken first")
        pool.giveBack(kept)
    }
}
