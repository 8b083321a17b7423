import OpenSSL
import System

/// Moves bytes from a source to slices on disk: it reads into one buffer on the loop, while the pool writes the other.
/// Confined to its loop.
struct SliceWriter {
    private let fill: SliceFill
    private let cache: ReadCache
    private let source: any ByteSource
    private let memory: MappedMemory
    private let timer: LoopTimer
    private let alarm: Alarm
    private var usesSecond = false

    /// Ends the current wait.
    private final class Alarm {
        var pause: Pause?
    }

    init(_ fill: SliceFill, _ cache: ReadCache, _ source: any ByteSource, _ memory: MappedMemory) {
        self.fill = fill
        self.cache = cache
        self.source = source
        self.memory = memory
        let alarm = Alarm()
        self.alarm = alarm
        timer = LoopTimer { alarm.pause?.end() }
    }

    private var buffer: UnsafeMutableRawPointer { memory.start + (usesSecond ? SliceFill.batching.buffer : 0) }

    /// Fills one slice.
    /// - Parameter isKept: Whether it is written; otherwise it is there already, and its bytes are only read.
    /// - Returns: Why it is not complete; nil if it is.
    mutating func fill(_ slice: UInt32, isKept: Bool) async -> SliceFill.End? {
        let length = CacheLayout.bytes(of: slice, size: fill.object.metadata.size).count
        var (read, buffered) = (0, 0)
        var writing: SliceWrite?
        var progress = SliceFill.Progress()
        while true {
            let isEnd = read == length
            if isEnd || buffered == SliceFill.batching.buffer {
                if isKept {
                    if let fault = await finish(&writing, &progress) { return fault }
                    writing = write(slice, buffered, of: length, progress)
                    usesSecond.toggle()
                }
                buffered = 0
                if isEnd { break }
            }
            guard fill.isWanted(read, of: length) else {
                _ = await finish(&writing, &progress)
                progress.reservation?.segment.cancel()
                return .abandoned
            }
            let room = min(SliceFill.batching.buffer - buffered, length - read)
            switch readOnce(at: buffered, room) {
            case .success(.bytes(let count)):
                read += count
                buffered += count
                fill.object.bucket.statistics.fromService(count)
            case .success(.wait) where writing != nil:
                // Readers get what is written before the service sends more.
                if let fault = await finish(&writing, &progress) { return fault }
            case .success(.wait):
                if !isKept { buffered = 0 }
                if await waits(buffered, read, of: length), buffered > 0 {
                    writing = write(slice, buffered, of: length, progress)
                    usesSecond.toggle()
                    buffered = 0
                }
            case .success(.end):
                return await failed(BucketError(.unavailable, "the object ends early"), &writing, &progress)
            case .failure(let error): return await failed(error, &writing, &progress)
            }
        }
        if isKept, let fault = await finish(&writing, &progress) { return fault }
        fill.completed(slice)
        return nil
    }

    private func failed(_ error: BucketError, _ writing: inout SliceWrite?, _ progress: inout SliceFill.Progress)
        async -> SliceFill.End
    {
        _ = await finish(&writing, &progress)
        progress.reservation?.segment.cancel()
        return .failed(error)
    }

    private func readOnce(at offset: Int, _ room: Int) -> Result<SourceRead, BucketError> {
        var span = UnsafeMutableRawBufferPointer(start: buffer + offset, count: room).mutableBytes
        do {
            return .success(try source.read(into: &span))
        } catch {
            return .failure(error as? BucketError ?? BucketError(.unavailable, "read: \(error)"))
        }
    }

    /// Waits for bytes.
    /// - Returns: Whether those that are buffered should be written now.
    private func waits(_ buffered: Int, _ read: Int, of length: Int) async -> Bool {
        if buffered >= SliceFill.batching.enough { return true }
        let pause = Pause()
        alarm.pause = pause
        fill.waits(on: pause)
        // The last reader may have left just before.
        if !fill.isWanted(read, of: length) { pause.end() }
        let loop = EventLoop.current
        if buffered > 0 { loop?.arm(timer, after: SliceFill.batching.delay) }
        await pause.wait { resume in source.whenReadable(resume) }
        alarm.pause = nil
        fill.waits(on: nil)
        guard timer.isArmed else { return buffered > 0 }
        loop?.disarm(timer)
        return false
    }

    /// Waits for the last write, and shows its bytes.
    private func finish(_ writing: inout SliceWrite?, _ progress: inout SliceFill.Progress) async -> SliceFill.End? {
        guard let write = writing.take() else { return nil }
        switch await write.result() {
        case .success(let written):
            progress = written
            fill.publish(written)
            return nil
        case .failure(let fault):
            progress.reservation = nil
            return .disk(fault)
        }
    }

    /// Begins to write what is buffered.
    private func write(_ slice: UInt32, _ count: Int, of length: Int, _ progress: SliceFill.Progress) -> SliceWrite {
        let key = SliceKey(object: fill.object.key, index: slice)
        let write = SliceWrite()
        // Safety: the buffer is not used again until the write has ended.
        nonisolated(unsafe) let bytes = UnsafeRawBufferPointer(start: buffer, count: count)
        cache.pool.submit { [log = cache.log] in
            var progress = progress
            let result = Result { () throws(CacheFault) -> SliceFill.Progress in
                try progress.append(bytes, key, length, log)
                return progress
            }
            write.end(result)
        }
        return write
    }
}

/// A write on the pool.
///
/// Safety: confined to the loop it was made on, to which the pool's thread passes the result.
private final class SliceWrite: @unchecked Sendable {
    private let loop: EventLoop
    private var ended: Result<SliceFill.Progress, CacheFault>?
    private var waiter: UnsafeContinuation<Void, Never>?

    init() {
        guard let loop = EventLoop.current else { preconditionFailure("a fill is on a loop") }
        self.loop = loop
    }

    func end(_ result: Result<SliceFill.Progress, CacheFault>) {
        loop.execute { [self] in
            ended = result
            waiter.take()?.resume()
        }
    }

    func result() async -> Result<SliceFill.Progress, CacheFault> {
        if ended == nil { await suspend { waiter = $0 } }
        return ended!
    }
}

extension SliceFill.Progress {
    /// Writes bytes behind those that are there, on the pool. The last ones complete the slice.
    fileprivate mutating func append(
        _ bytes: UnsafeRawBufferPointer, _ key: SliceKey, _ length: Int, _ log: SegmentLog
    ) throws(CacheFault) {
        let place: SegmentLog.Reservation
        if let reservation {
            place = reservation
        } else {
            place = try log.reserve(length, for: key)
            reservation = place
        }
        do throws(CacheFault) {
            try log.write(bytes, place, at: filled)
        } catch {
            place.segment.cancel()
            throw error
        }
        add(bytes)
        if filled == length {
            if filled % CacheLayout.unit != 0 { units.append(partial.value) }
            try log.commit(key, place, units: units, crc32c: total.value)
        }
    }

    /// Adds bytes to the checksums.
    private mutating func add(_ bytes: UnsafeRawBufferPointer) {
        total.update(bytes.bytes)
        var rest = bytes[...]
        while !rest.isEmpty {
            let part = rest.prefix(CacheLayout.unit - filled % CacheLayout.unit)
            partial.update(UnsafeRawBufferPointer(rebasing: part).bytes)
            filled += part.count
            rest = rest.dropFirst(part.count)
            if filled % CacheLayout.unit == 0 {
                units.append(partial.value)
                partial = CRC32C()
            }
        }
    }
}
