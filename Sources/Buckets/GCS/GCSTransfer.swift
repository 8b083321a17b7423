import HTTPClient
import System
import Wire

/// Sends an append's bytes to the resumable session. Used by one call at a time.
///
/// The service gets multiples of 256 KiB, in chunks. A spool keeps the bytes of a chunk until the service confirms it,
/// so that missing ones can be sent again. The bytes after the last multiple become the state's tail. If an append fits
/// into the tail, the service gets no request. Chunks are streamed if the append's size is known; otherwise they are
/// spooled completely and then sent, because their size must be known first.
///
/// Safety: confined to the append's loop.
final class GCSTransfer: CloudTransfer, @unchecked Sendable {
    /// The maximum size of a streamed chunk: 16 MiB.
    private static let streamedChunk: UInt64 = 16 << 20
    /// The maximum size of a chunk that is only spooled: 8 MiB.
    private static let spooledChunk: UInt64 = 8 << 20
    /// The maximum number of bytes that a killed process can lose of a long append: 64 MiB.
    static let checkpointStep: UInt64 = 64 << 20

    private struct Position {
        /// The number of bytes confirmed by the service, a multiple of 256 KiB.
        var sent: UInt64
        var tail: [UInt8]
        var digests: SessionDigests
        var offset: UInt64 { sent + UInt64(tail.count) }
    }

    /// A chunk being filled, from the position's ``Position/sent``.
    private struct Chunk {
        let limit: UInt64
        let spool: Spool
        /// nil if the chunk is only spooled.
        let stream: GCSSession.Stream?
        /// A response before all bytes were sent.
        var early: GCSSession.Outcome?
    }

    private let file: CloudSessionFile
    private let bucket: GCSBucket
    private var state: CloudSessionState
    private var length: UInt64?
    /// The offset of the append's end, if known.
    private var end: UInt64?
    private var position: Position
    /// The position that can be saved: the start of the last chunk, or the end of the bytes.
    private var complete: Position
    private var spool: Spool?
    private var chunk: Chunk?
    /// Set once bytes may be sent.
    private var upload: GCSSession?
    /// The bytes of an all-or-nothing append, which are sent once complete.
    private let whole: Spool?
    private var hasFailed = false

    init(
        _ file: CloudSessionFile, _ bucket: GCSBucket, _ state: CloudSessionState,
        _ plan: AppendPlan
    ) async throws(BucketError) {
        guard let digests = SessionDigests(saved: state.digests) else {
            throw BucketError(.internal, "the digests of an upload session can't be read")
        }
        self.file = file
        self.bucket = bucket
        self.state = state
        length = state.length == nil ? plan.length : nil
        end = plan.size.map { state.offset + $0 }
        position = Position(
            sent: state.gcsTransfer.sent, tail: state.tail, digests: digests)
        complete = position
        whole = plan.isAllOrNothing ? try await GCSTransfer.makeSpool(bucket) : nil
    }

    private static func makeSpool(_ bucket: GCSBucket) async throws(BucketError) -> Spool {
        let (pool, directory) = (bucket.pool, bucket.settings.spoolDirectory)
        return try await pool.run { () throws(BucketError) in try Spool(in: directory, pool) }
    }

    // MARK: Bytes

    func take(_ bytes: [UInt8]) async throws(SessionError) {
        do throws(SessionError) {
            // The object may exist without these bytes.
            if state.intent != nil { throw .finished }
            if let whole {
                try await inStore { () throws(BucketError) in
                    try await self.bucket.pool.run { () throws(BucketError) in
                        try bytes.span.bytes.withUnsafeBytes { (bytes) throws(BucketError) in
                            try whole.append(bytes)
                        }
                    }
                }
            } else {
                try await pass(bytes)
            }
        } catch {
            hasFailed = true
            throw error
        }
    }

    private func pass(_ bytes: [UInt8]) async throws(SessionError) {
        if chunk == nil, isChunkDue(bytes.count) {
            if whole == nil { complete = position }
            try await beginChunk()
        }
        var count = 0
        if let chunk { count = min(bytes.count, Int(chunk.limit - chunk.spool.count)) }
        let part = count == bytes.count ? bytes : Array(bytes[..<count])
        try await inStore { () throws(BucketError) in
            try await self.hash(bytes, spooling: count)
        }
        try await send(part)
        position.tail += bytes[count...]
    }

    func forward() async throws(SessionError) {
        do throws(SessionError) { try await advance() } catch {
            hasFailed = true
            throw error
        }
    }

    /// Ends the chunk if it is full, and writes the state after every ``checkpointStep``.
    private func advance() async throws(SessionError) {
        if let chunk, chunk.spool.count == chunk.limit { try await endChunk() }
        let isStep = position.sent - state.gcsTransfer.sent >= GCSTransfer.checkpointStep
        if isStep, chunk == nil, whole == nil {
            complete = position
            try await save(isOpen: true, isAhead: true)
        }
    }

    private func hash(_ bytes: [UInt8], spooling count: Int) async throws(BucketError) {
        let (before, spool) = (position.digests, chunk?.spool)
        position.digests = try await bucket.pool.run { () throws(BucketError) in
            var digests = before
            try bytes.span.bytes.withUnsafeBytes { (bytes) throws(BucketError) in
                try spool?.append(UnsafeRawBufferPointer(rebasing: bytes[..<count]))
            }
            digests.update(bytes.span.bytes)
            return digests
        }
    }

    /// The last multiple of 256 KiB.
    private func rounded(_ offset: UInt64) -> UInt64 { offset - offset % GCSSession.quantum }

    private func isChunkDue(_ count: Int) -> Bool {
        if let end { return rounded(end) > position.sent }
        return position.tail.count + count >= Int(GCSSession.quantum)
    }

    // MARK: Chunks

    private func beginChunk() async throws(SessionError) {
        let upload = try await begun()
        let (pool, tail) = (bucket.pool, position.tail)
        position.tail = []
        let spool = try await inStore { () throws(BucketError) in
            let spool: Spool
            if let known = self.spool {
                spool = known
            } else {
                spool = try await GCSTransfer.makeSpool(self.bucket)
            }
            try await pool.run { () throws(BucketError) in
                try tail.span.bytes.withUnsafeBytes { (bytes) throws(BucketError) in
                    try spool.append(bytes)
                }
            }
            return spool
        }
        self.spool = spool
        // If the service already has later bytes, only the missing ones are sent.
        if let end, upload.persisted == position.sent {
            let limit = min(rounded(end) - position.sent, GCSTransfer.streamedChunk)
            chunk = Chunk(limit: limit, spool: spool, stream: upload.beginStream(limit))
            try await send(tail)
        } else {
            chunk = Chunk(limit: GCSTransfer.spooledChunk, spool: spool, stream: nil)
        }
    }

    /// Sends spooled bytes, if the chunk is streamed and the service still accepts them.
    private func send(_ bytes: [UInt8]) async throws(SessionError) {
        guard let upload, let stream = chunk?.stream, chunk?.early == nil else { return }
        let isTaken = await stream.pipe.writeAll(bytes.count) {
            try stream.pipe.write(bytes.span.bytes.extracting(droppingFirst: $0))
        }
        if isTaken { return }
        chunk?.early = try await inStore { () throws(BucketError) in
            try await upload.response(to: stream)
        }
    }

    private func endChunk() async throws(SessionError) {
        guard let chunk, let upload else { return }
        let start = position.sent
        try await inStore { () throws(BucketError) in
            if let stream = chunk.stream {
                let outcome: GCSSession.Outcome
                if let early = chunk.early {
                    outcome = early
                } else {
                    outcome = try await upload.response(to: stream)
                }
                try await upload.settle(outcome, .spool(chunk.spool))
            } else {
                try await upload.send(.spool(chunk.spool), at: start)
            }
        }
        position.sent += chunk.spool.count
        await clear()
    }

    /// Ends a chunk that is not full: its last bytes become the tail.
    private func endShortChunk() async throws(SessionError) {
        guard let chunk, let upload else { return }
        let (spool, pool, start) = (chunk.spool, bucket.pool, position.sent)
        let sent = rounded(spool.count)
        let tail = try await inStore { () throws(BucketError) in
            let tail = try await pool.run { () throws(BucketError) in
                let tail = try spool.read(at: sent, limit: Int(GCSSession.quantum))
                spool.truncate(to: sent)
                return tail
            }
            if let stream = chunk.stream {
                // The service may keep part of the received bytes.
                stream.exchange.cancel()
                guard try await upload.update() == nil else { throw GCSSession.endedEarly }
            }
            try await upload.send(.spool(spool), at: start)
            return tail
        }
        position.sent += sent
        position.tail = tail
        await clear()
    }

    private func clear() async {
        guard let spool = chunk?.spool else { return }
        chunk = nil
        await bucket.pool.run { spool.truncate(to: 0) }
    }

    // MARK: The state

    func open() async throws(SessionError) { _ = try await begun() }

    /// The resumable session, begun if there is none. The state records beforehand that bytes may be sent.
    private func begun() async throws(SessionError) -> GCSSession {
        if let upload { return upload }
        let transfer = state.gcsTransfer
        let upload: GCSSession
        if let target = transfer.session {
            upload = GCSSession(bucket, dataName, target: target, persisted: transfer.sent)
            // First, so that an append of another gateway fails as early as possible.
            try await save(isOpen: true, isAhead: true)
            if transfer.isAhead {
                try await inStore { () throws(BucketError) in
                    guard try await upload.update() == nil else { throw GCSSession.endedEarly }
                }
            }
        } else {
            upload = try await beginSession()
        }
        self.upload = upload
        return upload
    }

    private var dataName: String { HiddenName.data(file.id).text }

    private func beginSession() async throws(SessionError) -> GCSSession {
        let (bucket, state, name) = (bucket, state, dataName)
        let upload = try await inStore { () throws(BucketError) in
            try await GCSSession.start(
                bucket.requests, bucket.pool, name, state.attributes,
                GCSConditions(pinnedTo: nil), mark: state.mark)
        }
        let target = upload.target
        do throws(SessionError) {
            try await save(isOpen: true, isAhead: true, target)
        } catch {
            // Unless the state may contain it.
            if case .superseded = error { await upload.cancel() }
            throw error
        }
        return upload
    }

    /// Writes the state with the last complete position.
    /// - Parameters:
    ///   - isOpen: Whether bytes may be sent afterwards.
    ///   - isAhead: Whether the service may keep bytes after that position.
    ///   - target: A new resumable session.
    private func save(isOpen: Bool, isAhead: Bool, _ target: String? = nil)
        async throws(SessionError)
    {
        let (complete, length) = (complete, length)
        var transfer = state.gcsTransfer
        if let target { transfer.session = target }
        transfer.sent = complete.sent
        transfer.isAhead = isAhead
        state = try await file.update { state in
            state.offset = complete.offset
            state.tail = complete.tail
            state.digests = complete.digests.saved
            state.length = state.length ?? length
            state.isOpen = isOpen
            state.transfer = transfer.session == nil ? .none : .gcs(transfer)
        }
    }

    // MARK: Ending

    func end(length: UInt64?) async throws(SessionError) -> UInt64 {
        var failure: SessionError?
        do throws(SessionError) {
            if !hasFailed, let whole { try await pass(all: whole) }
            if !hasFailed {
                try await endShortChunk()
                complete = position
            }
        } catch {
            failure = error
        }
        // Unchanged if this append has sent no request.
        let isAhead =
            chunk != nil || failure != nil || upload == nil && state.gcsTransfer.isAhead
        chunk?.stream?.exchange.cancel()
        if complete.offset != state.offset || upload != nil || self.length != nil {
            try await save(isOpen: false, isAhead: isAhead)
        }
        if let failure { throw failure }
        return state.offset
    }

    private func pass(all spool: Spool) async throws(SessionError) {
        end = state.offset + spool.count
        var offset: UInt64 = 0
        while offset < spool.count {
            let start = offset
            let bytes = try await inStore { () throws(BucketError) in
                try await self.bucket.pool.run { () throws(BucketError) in
                    try spool.read(at: start, limit: CloudAppend.step)
                }
            }
            try await pass(bytes)
            try await advance()
            offset += UInt64(bytes.count)
        }
    }

    func discard() async {
        cancel()
    }

    func cancel() {
        upload?.giveUp()
        chunk?.stream?.exchange.cancel()
    }
}

extension CloudSessionState {
    var gcsTransfer: GCSTransferState {
        if case .gcs(let transfer) = transfer { transfer } else { GCSTransferState() }
    }
}
