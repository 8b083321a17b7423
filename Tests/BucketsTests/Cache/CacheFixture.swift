import BucketConformance
import Glibc
import Synchronization
import System
import TestSupport
import Testing
import Wire

@testable import Buckets

/// A clock that tests move. It begins at 1,000 s, and ticks a little when the cache looks at it, as time does.
final class CacheClock: Sendable {
    private let time = Atomic<UInt64>(1_000_000_000_000)

    var now: UInt64 { time.load(ordering: .relaxed) }

    func tick() -> UInt64 { time.add(1, ordering: .relaxed).newValue }

    func pass(seconds: UInt64) { time.add(seconds * 1_000_000_000, ordering: .relaxed) }
}

/// The faults of a disk.
final class CacheDiskFaults: Sendable {
    /// What writes and allocations fail with; 0 for nothing.
    let write = Atomic<Int32>(0), allocate = Atomic<Int32>(0)
    /// Writes that succeed before the fault, and the most bytes of one.
    let remaining = Atomic<Int>(0), most = Atomic<Int>(.max)

    var calls: CacheDiskCalls {
        CacheDiskCalls(
            write: { [self] descriptor, bytes, count, offset in
                let fault = write.load(ordering: .relaxed)
                if fault != 0, remaining.subtract(1, ordering: .relaxed).newValue < 0 {
                    errno = fault
                    return -1
                }
                return CacheDiskCalls.system.write(
                    descriptor, bytes, min(count, most.load(ordering: .relaxed)), offset)
            },
            allocate: { [self] descriptor, size in
                let fault = allocate.load(ordering: .relaxed)
                return fault != 0 ? fault : CacheDiskCalls.system.allocate(descriptor, size)
            })
    }

    var isOff: Bool { write.load(ordering: .relaxed) == 0 && allocate.load(ordering: .relaxed) == 0 }

    func stop() {
        write.store(0, ordering: .relaxed)
        allocate.store(0, ordering: .relaxed)
        most.store(.max, ordering: .relaxed)
    }
}

/// A cache in a directory of its own.
final class CacheFixture: Sendable {
    struct Options: Sendable {
        var size: UInt64 = 64 << 20
        var freshness = ReadCache.Freshness.forever
        /// In seconds.
        var staleIfError: UInt64 = 0
        var fills = 16
        var minimumUses = 1
        var metadata = 16 << 20
    }

    let directory: TemporaryDirectory
    let clock: CacheClock
    let service: CachedService
    let faults = CacheDiskFaults()
    let options: Options
    private let live = Lock<(cache: ReadCache, bucket: CachedBucket)?>(nil)

    /// - Parameter other: Its service and clock are used.
    init(_ options: Options = Options(), beside other: CacheFixture? = nil) async {
        self.options = options
        directory = TemporaryDirectory(below: "/dev/shm")
        let clock = other?.clock ?? CacheClock()
        self.clock = clock
        service = other?.service ?? CachedService { clock.now }
        await start()
    }

    var cache: ReadCache { live.withLock { $0!.cache } }
    var bucket: CachedBucket { live.withLock { $0!.bucket } }
    var path: String { directory.path + "/cache" }

    private func start() async {
        let clock = clock
        let cache = ReadCache(
            .init(
                directory: path, size: options.size, reserve: 0, metadata: options.metadata, fills: options.fills,
                minimumUses: options.minimumUses), pool: sharedPool, disk: faults.calls, clock: { clock.tick() },
            onChange: { _, _ in })
        let bucket = cache.bucket("b", service, options.freshness, staleIfError: options.staleIfError * 1_000_000_000)!
        live.withLock { $0 = (cache, bucket) }
        await eventually { cache.report.state != .opening }
    }

    /// Releases the cache, and waits until it is gone.
    func stop(sourceLocation: SourceLocation = #_sourceLocation) async {
        weak let gone = cache
        _ = live.withLock { $0.take() }
        await eventually(sourceLocation: sourceLocation) { gone == nil && openFiles == 0 }
    }

    /// Begins another cache on the same directory.
    func restart() async {
        await stop()
        await start()
    }

    /// The descriptors of the directory that are open.
    var openFiles: Int {
        entries("/proc/self/fd").filter { name in
            var target = [UInt8](repeating: 0, count: 512)
            let count = target.withUnsafeMutableBytes { bytes in
                readlink("/proc/self/fd/" + name, bytes.baseAddress!.assumingMemoryBound(to: CChar.self), 512)
            }
            return count > 0 && String(decoding: target[..<count], as: UTF8.self).hasPrefix(path)
        }.count
    }

    /// The paths of the segments, oldest first.
    var segments: [String] {
        entries(path).filter { $0.utf8.count == 16 }.map { path + "/" + $0 }
    }

    /// Changes bytes of all segments between two offsets, one in each 16 KiB.
    func damage(_ range: Range<Int> = 4096..<(1 << 20)) {
        for path in segments {
            let file = open(path, O_RDWR)
            defer { close(file) }
            for offset in stride(from: range.lowerBound, to: range.upperBound, by: 16_384) {
                var byte: UInt8 = 0
                pread(file, &byte, 1, off_t(offset))
                byte ^= 0x10
                pwrite(file, &byte, 1, off_t(offset))
            }
        }
    }

    /// Runs `body` on a loop, until nothing is left of its reads.
    func run(
        sourceLocation: SourceLocation = #_sourceLocation, _ body: @escaping @Sendable () async throws -> Void
    ) async throws {
        try await onLoop {
            try await body()
            await self.settled(sourceLocation: sourceLocation)
        }
    }

    /// Waits until nothing runs any more. The loops of the reads must still run.
    func settled(sourceLocation: SourceLocation = #_sourceLocation) async {
        await eventually(sourceLocation: sourceLocation) {
            cache.liveSources.load(ordering: .relaxed) == 0 && cache.report.fills == 0 && service.with { $0.open } == 0
        }
    }
}

/// A connection within the process.
final class SocketPair {
    private var ends: [Int32] = [-1, -1]

    init() {
        let type = Int32(SOCK_STREAM.rawValue | SOCK_NONBLOCK.rawValue | SOCK_CLOEXEC.rawValue)
        precondition(socketpair(AF_UNIX, type, 0, &ends) == 0)
    }

    deinit { for end in ends { close(end) } }

    /// Has the kernel move bytes of a source into the connection, and receives them.
    /// - Returns: nil if they have to be read.
    func move(from source: any DirectSource, _ buffer: inout [UInt8]) throws -> Int? {
        guard case .bytes(let count) = try source.transfer(to: ends[0], count: min(buffer.count, 65_536)) else {
            return nil
        }
        var received = 0
        while received < count {
            let result = buffer.withUnsafeMutableBytes {
                recv(ends[1], $0.baseAddress! + received, count - received, 0)
            }
            precondition(result > 0)
            received += result
        }
        return count
    }
}

/// What a reader got.
struct CacheAnswer: Sendable {
    var metadata: ObjectMetadata
    var outcome: CacheOutcome
    /// The range that was selected.
    var range: Range<UInt64>
    var body: [UInt8]

    /// Whether the body is that of the version.
    func isRight(_ service: CachedService) -> Bool {
        guard let version = service.version(metadata), version.metadata == metadata else { return false }
        let start = version.bytes.startIndex
        return version.bytes[(start + Int(range.lowerBound))..<(start + Int(range.upperBound))]
            .isEqual(to: body)
    }
}

extension ArraySlice<UInt8> {
    /// Compares without the generic loop, which takes long in debug builds.
    func isEqual(to other: [UInt8]) -> Bool {
        guard count == other.count else { return false }
        if other.isEmpty { return true }
        return withUnsafeBytes { left in other.withUnsafeBytes { memcmp(left.baseAddress!, $0.baseAddress!, $0.count) }
        }
            == 0
    }
}

extension CachedBucket {
    /// Opens an object and reads it, as a request does. On a loop.
    /// - Parameter isClear: Whether the kernel may move bytes to the socket, as for a client in clear text.
    func read(
        _ name: String, _ range: ByteRange? = nil, if conditions: Preconditions = Preconditions(),
        mustAsk: Bool = false,
        piece: Int = 65_536, limit: Int = .max, isClear: Bool = false, pause: (@Sendable (Int) async -> Void)? = nil
    ) async throws -> CacheAnswer {
        let read = try await open(name, ReadPlan(range: range, conditions: conditions), mustAsk: mustAsk)
        let metadata = read.reader.metadata
        if conditions.evaluate(metadata, reading: true) != nil {
            read.reader.close()
            return CacheAnswer(metadata: metadata, outcome: read.outcome, range: 0..<0, body: [])
        }
        let selected: Range<UInt64>
        switch range?.select(size: metadata.size) ?? .whole {
        case .whole: selected = 0..<metadata.size
        case .part(let part): selected = part
        case .unsatisfiable: selected = 0..<0
        }
        var answer = CacheAnswer(metadata: metadata, outcome: read.outcome, range: selected, body: [])
        if selected.isEmpty {
            read.reader.close()
            return answer
        }
        let source: any ByteSource
        if let ready = try read.reader.readyBytes(selected) {
            source = ready
        } else {
            source = try await read.reader.bytes(selected)
        }
        defer { source.close() }
        answer.body.reserveCapacity(min(limit, selected.count))
        var buffer = [UInt8](repeating: 0, count: piece)
        let socket = isClear ? (source as? any DirectSource).map { _ in SocketPair() } : nil
        while answer.body.count < limit {
            if let pause { await pause(answer.body.count) }
            if let socket, let moved = try socket.move(from: source as! any DirectSource, &buffer) {
                answer.body += buffer[..<moved]
                continue
            }
            let found = try buffer.withUnsafeMutableBytes { bytes in
                var span = bytes.mutableBytes
                return try source.read(into: &span)
            }
            switch found {
            case .bytes(let count): answer.body += buffer[..<count]
            case .wait:
                await Pause().wait { source.whenReadable($0) }
                try Task.checkCancellation()
            case .end: return answer
            }
        }
        return answer
    }
}
