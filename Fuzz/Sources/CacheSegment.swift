import Glibc
import OpenSSL
import System

@testable import Buckets

private let pool = BlockingPool(threads: 1)
private let name = Segment.name(1)

/// A cache's directory, and the hash of its salt.
private let (directory, salt): (String, UInt64) = {
    var template = Array("/dev/shm/sluice-fuzz-XXXXXX".utf8CString)
    guard mkdtemp(&template) != nil else { fatalError("mkdtemp") }
    let path = template.withUnsafeBufferPointer { String(cString: $0.baseAddress!) }
    atexit {
        for name in [name, "lock", "salt"] { unlink(directory + "/" + name) }
        rmdir(directory)
    }
    guard let salt = try? CacheDirectory(path).saltHash else { fatalError("no cache's directory") }
    return (path, salt)
}()

/// A segment that an earlier run of the read cache has left. Whatever it holds, each entry that is taken names bytes within
/// the file, the log finds it, and evicts it with its segment.
///
/// Input: a byte of flags, 40 bytes of a header, and what follows the header. Flag 1 gives the header the right fields,
/// flag 2 gives each entry its checksum.
func fuzzCacheSegment(_ bytes: [UInt8]) {
    guard bytes.count > 41 else { return }
    write(segment(bytes))
    var found: [SliceKey] = []
    do {
        let folder = open(directory, O_RDONLY | O_DIRECTORY)
        defer { close(folder) }
        let segment = Segment.open(folder, name, salt: salt, CacheDiskUse(), pool)
        segment?.loadEntries { key, entry in
            found.append(key)
            let record = CacheLayout.record(Int(entry.length))
            precondition(entry.length > 0 && entry.offset >= CacheLayout.header)
            precondition(entry.offset + record <= entry.segment.capacity)
            precondition(File.readAll(entry.segment.descriptor, Int(record), at: entry.offset) != nil)
        }
        precondition(segment.map { $0.entryCount == found.count } ?? true)
    }
    let log = SegmentLog(directory, size: 64 << 20, freeSpace: 0, SliceIndex(), pool, .system)
    guard (try? log.open()) != nil else { fatalError("the directory can't be opened") }
    log.load()
    precondition(found.allSatisfy { log.index.find($0) != nil })
    precondition(log.index.count == Set(found).count)
    log.evict()
    precondition(log.index.count == 0 && log.bytes == 0)
    precondition(access(directory + "/" + name, F_OK) != 0)
    _ = log.close()
}

/// The bytes of the file.
private func segment(_ input: [UInt8]) -> [UInt8] {
    func checksum(_ bytes: ArraySlice<UInt8>) -> [UInt8] {
        var crc32c = CRC32C()
        bytes.withUnsafeBytes { crc32c.update($0.bytes) }
        return UInt64(crc32c.value).littleEndianBytes
    }
    let flags = input[0]
    var file = [UInt8](repeating: 0, count: Int(CacheLayout.header)) + input[41...]
    var header = Array(input[1..<41])
    if flags & 1 != 0 {
        header = Array("SLcache2".utf8) + salt.littleEndianBytes + UInt64(1).littleEndianBytes
        header += UInt64(file.count).littleEndianBytes + UInt64(input[1] & 1).littleEndianBytes
    }
    file.replaceSubrange(0..<40, with: header)
    file.replaceSubrange(40..<48, with: checksum(file[0..<40]))
    if flags & 2 != 0 {
        var start = file.count - CacheLayout.entry
        while start >= Int(CacheLayout.header) {
            file.replaceSubrange((start + 32)..<(start + 40), with: checksum(file[start..<start + 32]))
            start -= CacheLayout.entry
        }
    }
    return file
}

private func write(_ bytes: [UInt8]) {
    let file = open(directory + "/" + name, O_WRONLY | O_CREAT | O_TRUNC, 0o600)
    precondition(file >= 0 && Glibc.write(file, bytes, bytes.count) == bytes.count)
    close(file)
}
