import Glibc
import OpenSSL
import System
import Wire

/// Sizes of what the cache keeps on disk, in bytes.
enum CacheLayout {
    /// Objects are kept in slices of this size; the last one may be shorter: 1 MiB.
    static let slice = 1 << 20
    /// What has a checksum of its own: 16 KiB, the payload of an HTTP/2 frame.
    static let unit = 16 * 1024
    /// Records begin at multiples of this.
    static let page: UInt64 = 4096
    /// An entry of a segment's table.
    static let entry = 40
    /// A segment's header.
    static let header: UInt64 = 4096

    /// The number of units of a slice.
    static func units(_ length: Int) -> Int { (length + unit - 1) / unit }

    /// The size of a record: a slice's bytes and the checksums of its units.
    static func record(_ length: Int) -> UInt64 { UInt64(length + 4 * units(length)) }

    /// The size of a segment: a sixteenth of the cache and at most 64 MiB, but so large that there are at most 1,024.
    static func segment(_ size: UInt64) -> UInt64 {
        let wanted = max(min(64 << 20, size / 16), size / 1024)
        return max(wanted, 2 << 20) / page * page
    }

    /// The slices of an object of this size.
    static func slices(_ size: UInt64) -> Range<UInt32> {
        0..<UInt32(clamping: (size + UInt64(slice) - 1) / UInt64(slice))
    }

    /// The slices that contain these bytes, of which there is at least one.
    static func slices(of range: Range<UInt64>) -> Range<UInt32> {
        index(of: range.lowerBound)..<index(of: range.upperBound - 1) + 1
    }

    /// Whether units have these checksums.
    static func agree(_ bytes: RawSpan, _ checksums: ArraySlice<UInt32>) -> Bool {
        var (offset, number) = (0, checksums.startIndex)
        while offset < bytes.byteCount {
            let count = min(unit, bytes.byteCount - offset)
            var crc32c = CRC32C()
            crc32c.update(bytes.extracting(offset..<offset + count))
            guard number < checksums.endIndex, crc32c.value == checksums[number] else { return false }
            offset += count
            number += 1
        }
        return true
    }

    static func index(of offset: UInt64) -> UInt32 { UInt32(clamping: offset / UInt64(slice)) }

    /// The bytes of a slice of an object of this size.
    static func bytes(of index: UInt32, size: UInt64) -> Range<UInt64> {
        let start = min(UInt64(index) * UInt64(slice), size)
        return start..<min(start + UInt64(slice), size)
    }
}

/// Why bytes could not be kept.
enum CacheFault: Error, Equatable {
    /// There is no space.
    case full(String)
    /// The disk or the directory can't be used.
    case broken(String)
    /// Readers hold segments that were evicted.
    case held

    init(_ error: SystemError) {
        self =
            [ENOSPC, EDQUOT, EFBIG].contains(error.code) ? .full(error.description) : .broken(error.description)
    }
}

/// The system calls that write, which a test can make fail.
package struct CacheDiskCalls: Sendable {
    /// pwrite(2).
    package var write: @Sendable (Int32, UnsafeRawPointer, Int, off_t) -> Int
    /// fallocate(2) of a whole file. Returns an `errno`, or 0.
    package var allocate: @Sendable (Int32, UInt64) -> Int32

    /// Those of the system.
    package static let system = CacheDiskCalls(
        write: { pwrite($0, $1, $2, $3) }, allocate: { posix_fallocate($0, 0, off_t($1)) })

    package init(
        write: @escaping @Sendable (Int32, UnsafeRawPointer, Int, off_t) -> Int,
        allocate: @escaping @Sendable (Int32, UInt64) -> Int32
    ) {
        self.write = write
        self.allocate = allocate
    }

    func writeAll(_ descriptor: Int32, _ bytes: UnsafeRawBufferPointer, at offset: UInt64) throws(CacheFault) {
        var rest = bytes[...]
        while !rest.isEmpty {
            let position = offset + UInt64(rest.startIndex)
            let count = write(descriptor, bytes.baseAddress! + rest.startIndex, rest.count, off_t(position))
            if count < 0 {
                if errno == EINTR { continue }
                throw CacheFault(SystemError("pwrite"))
            }
            if count == 0 { throw CacheFault.broken("pwrite: nothing was written") }
            rest = rest.dropFirst(count)
        }
    }
}

extension File {
    /// Reads exactly so many bytes. May wait for a disk.
    /// - Returns: Whether they were there.
    static func readAll(_ descriptor: Int32, _ buffer: UnsafeMutableRawBufferPointer, at offset: UInt64) -> Bool {
        var count = 0
        while count < buffer.count {
            let result = pread(
                descriptor, buffer.baseAddress! + count, buffer.count - count, off_t(offset + UInt64(count)))
            if result < 0, errno == EINTR { continue }
            if result <= 0 { return false }
            count += result
        }
        return true
    }

    static func readAll(_ descriptor: Int32, _ count: Int, at offset: UInt64) -> [UInt8]? {
        var isComplete = false
        let bytes = [UInt8](unsafeUninitializedCapacity: count) { buffer, initialized in
            isComplete = readAll(descriptor, UnsafeMutableRawBufferPointer(buffer), at: offset)
            initialized = isComplete ? count : 0
        }
        return isComplete ? bytes : nil
    }

    /// The result of ``readCached(_:_:at:)``.
    enum CachedBytes {
        case bytes([UInt8])
        /// Not all are in the page cache.
        case wouldWait
        case failed
    }

    /// Reads exactly so many bytes from the page cache.
    static func readCached(_ descriptor: Int32, _ count: Int, at offset: UInt64) -> CachedBytes {
        var found: ReadResult?
        let bytes = [UInt8](unsafeUninitializedCapacity: count) { buffer, initialized in
            var span = UnsafeMutableRawBufferPointer(buffer).mutableBytes
            found = try? read(descriptor, into: &span, count: count, at: offset)
            initialized = found == .bytes(count) ? count : 0
        }
        return found == nil ? .failed : bytes.count == count ? .bytes(bytes) : .wouldWait
    }
}
