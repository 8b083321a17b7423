import CLinux
import Glibc
import Wire

/// The memory of this process.
public enum ProcessMemory {
    /// The maximum size of the list of mappings: 1 MiB, some thousand mappings. A longer list is ignored.
    private static let maximumListBytes = 1 << 20

    /// Releases the memory of code, including libraries, such as code used only at startup. The kernel loads code that
    /// runs again page by page from its file, so a debugger's breakpoints are lost.
    public static func releaseCode() {
        guard let maps = try? File.contents(of: "/proc/self/maps", limit: maximumListBytes) else {
            return
        }
        for line in maps.split(separator: UInt8(ascii: "\n")) {
            // 55d0a000-55e1b000 r-xp 0000a000 08:01 1234 /usr/bin/sluice
            let words = line.split(separator: UInt8(ascii: " "), maxSplits: 5)
            guard words.count == 6, words[1].elementsEqual("r-xp".utf8), !words[4].elementsEqual("0".utf8),
                words[5].contains(UInt8(ascii: "/")), !words[5].suffix(9).elementsEqual("(deleted)".utf8),
                case let bounds = words[0].split(separator: UInt8(ascii: "-")), bounds.count == 2,
                let start = address(bounds[0]), let end = address(bounds[1]), start < end
            else { continue }
            madvise(UnsafeMutableRawPointer(bitPattern: start), Int(end - start), MADV_DONTNEED)
        }
    }

    /// Seconds between checks of the heap.
    private static let heapInterval: UInt32 = 5
    /// Free heap memory that stays resident for later use: 4 MiB.
    private static let keptBytes = 4 << 20

    /// Starts a thread that releases the heap's unused memory after a burst. By itself glibc releases only the end of a
    /// heap, so memory freed below a living object stays resident.
    public static func releaseHeapAfterBursts() {
        _ = startThread {
            var floor = unusedBytes()
            while true {
                sleep(heapInterval)
                let unused = unusedBytes()
                floor = min(floor, unused)
                guard unused - floor >= keptBytes else { continue }
                malloc_trim(0)
                // Stacks, buffers and partly used pages remain.
                floor = unusedBytes()
            }
        }
    }

    /// Resident anonymous memory without living heap objects.
    private static func unusedBytes() -> Int {
        let text = (try? File.contents(of: "/proc/self/statm", limit: 4096)) ?? []
        let pages = text.split(separator: UInt8(ascii: " ")).map {
            Int(String(decoding: $0, as: UTF8.self)) ?? 0
        }
        guard pages.count > 2 else { return 0 }
        let heap = mallinfo2()
        return (pages[1] - pages[2]) * Int(sysconf(Int32(_SC_PAGESIZE))) - Int(heap.uordblks + heap.hblkhd)
    }

    private static func address(_ digits: ArraySlice<UInt8>) -> UInt? {
        UInt(String(decoding: digits, as: UTF8.self), radix: 16)
    }
}
