import System
import Wire

/// Moves the bytes of one append to S3: full parts to the multipart upload, and the rest to the tail.
///
/// Safety: confined to its loop.
final class S3SessionTransfer: CloudTransfer, @unchecked Sendable {
    /// The maximum number of part numbers claimed by one write if the append's size is known; never more than a 64th of
    /// the remaining ones.
    private static let claimLimit: UInt64 = 64
    /// The same for an unknown size.
    private static let blindClaim: UInt64 = 16

    /// The state that becomes durable with the next write.
    private struct Progress {
        var transfer: S3TransferState
        var digests: SessionDigests
        var pieces: [CloudSessionState.Piece]
        var tail: [UInt8]

        var offset: UInt64 { pieces.reduce(transfer.sent + UInt64(tail.count)) { $0 + $1.size } }
    }

    private let file: CloudSessionFile
    private let requests: any S3SessionRequests
    private let state: CloudSessionState
    private let plan: AppendPlan
    private let length: UInt64?
    /// The progress at the end of the last part. ``Progress/tail`` and ``Progress/pieces`` change only with a new part.
    private var durable: Progress
    private var digests: SessionDigests
    /// The initial tail without its hidden objects, and the new bytes; nil if there are none.
    private var spool: SessionSpool?
    /// The hidden objects that precede the file.
    private var pieces: [CloudSessionState.Piece]
    /// Their bytes, if this gateway has kept them.
    private var before: SessionSpool?
    /// Hidden objects that are not used any more.
    private var unused: [CloudSessionState.Piece]
    /// Those that the stored state does not use and this gateway can write again.
    private var reusable: [UInt64]
    /// The maximum number of other unused objects. More are deleted.
    private static let unusedLimit = 8
    private var number: UInt64
    /// The first unclaimed number.
    private var claimed: UInt64
    private var hasClaimed = false
    private var taken: UInt64 = 0
    /// The request of the part ``number``, which the arriving bytes fill.
    private var stream: (any CloudPartStream)?
    private let cancellation = S3PartCancellation()

    init(
        _ file: CloudSessionFile, _ requests: any S3SessionRequests, _ state: CloudSessionState,
        _ plan: AppendPlan
    ) throws(SessionError) {
        guard case .s3(let transfer) = state.transfer,
            let digests = SessionDigests(saved: state.digests)
        else { throw .store(BucketError(.internal, "the session is not one of S3")) }
        self.file = file
        self.requests = requests
        self.state = state
        self.plan = plan
        length = state.length ?? plan.length
        pieces = state.pieces.filter { $0.size > 0 }
        unused = state.pieces.filter { $0.size == 0 }
        reusable = unused.map(\.number).filter(file.isSettled)
        before = file.takeTail()
        durable = Progress(transfer: transfer, digests: digests, pieces: pieces, tail: state.tail)
        self.digests = digests
        number = UInt64(transfer.nextNumber)
        claimed = number
    }

    // MARK: Bytes

    private var pending: UInt64 {
        pieces.reduce(spool?.count ?? UInt64(durable.tail.count)) { $0 + $1.size }
    }

    private var partSize: UInt64 {
        requests.sizes.size(ofPart: min(number, requests.sizes.count), length: length, sent: durable.transfer.sent)
    }

    func take(_ bytes: [UInt8]) async throws(SessionError) {
        var offset = 0
        while offset < bytes.count {
            try await forward()
            try await beginStream()
            let count = min(bytes.count - offset, Int(clamping: partSize - pending))
            let next = count == bytes.count ? bytes : Array(bytes[offset..<offset + count])
            try await inStore { () throws(BucketError) in try await keep(next) }
            do { try await stream?.writeAll(next) } catch { takeStream()?.cancel() }
            offset += count
        }
    }

    func forward() async throws(SessionError) {
        if pending >= partSize { try await sendPart() }
    }

    private func keep(_ bytes: [UInt8]) async throws(BucketError) {
        if bytes.isEmpty { return }
        let spool = try await makeSpool()
        digests = try await spool.append(bytes, digests)
        taken += UInt64(bytes.count)
    }

    private func makeSpool() async throws(BucketError) -> SessionSpool {
        if let spool { return spool }
        let spool = try await requests.makeSpool()
        if !durable.tail.isEmpty { try await spool.append(durable.tail) }
        self.spool = spool
        return spool
    }

    // MARK: Parts

    func open() async throws(SessionError) { _ = try await claim() }

    /// Begins to send a part that the append's next bytes fill. They are kept as well, so that the part can be sent again.
    private func beginStream() async throws(SessionError) {
        guard stream == nil, pending == 0, let size = plan.size, size >= taken + partSize else { return }
        let upload = CloudUploadAddress(id: file.id, name: state.name, upload: try await claim())
        let address = CloudPartAddress(upload: upload, number: Int(number))
        // If it can't begin, the part is sent when it is complete.
        guard let begun = try? await requests.streamPart(address, PartPlan(size: partSize)) else { return }
        if cancellation.isCancelled { begun.cancel() }
        cancellation.set { begun.cancel() }
        stream = begun
    }

    /// Ends the use of the stream. Its number is not used again.
    private func takeStream() -> (any CloudPartStream)? {
        guard let stream = stream.take() else { return nil }
        cancellation.set(nil)
        number += 1
        return stream
    }

    /// Sends all bytes that are not in a part as one part.
    private func sendPart() async throws(SessionError) {
        if let stream, let etag = try? await stream.end([], ContentFacts(size: pending, md5: nil, crc32c: nil)) {
            let part = S3TransferState.Part(number: UInt16(number), etag: etag)
            _ = takeStream()
            return await finishPart(part, pending)
        }
        takeStream()?.cancel()
        let whole = try await inStore { () throws(BucketError) in
            try await requests.assemble(pieces, before.take(), of: file.id, try await makeSpool())
        }
        var attempt = 1
        while true {
            let address = S3PartAddress(upload: try await claim(), number: UInt16(number), cancellation: cancellation)
            number += 1
            do throws(S3PartFailure) {
                let etag = try await requests.sendPart(state.name, address, whole)
                let part = S3TransferState.Part(number: address.number, etag: etag)
                return await finishPart(part, whole.count)
            } catch {
                if error.isUploadGone, !durable.transfer.parts.isEmpty {
                    throw await file.endWithoutParts()
                }
                guard error.isUploadGone, attempt < 3 else { throw .store(error.cause) }
                // The upload had no part, so nothing is lost.
                durable.transfer.upload = nil
                attempt += 1
            }
        }
    }

    private func finishPart(_ part: S3TransferState.Part, _ size: UInt64) async {
        durable.transfer.parts.append(part)
        durable.transfer.sent += size
        durable.digests = digests
        durable.tail = []
        durable.pieces = []
        release(pieces)
        pieces = []
        await spool?.clear()
    }

    private func release(_ pieces: [CloudSessionState.Piece]) {
        unused += pieces.map { CloudSessionState.Piece(number: $0.number, size: 0) }
    }

    /// Claims the next part numbers before the first request with one of them, and returns the multipart upload.
    private func claim() async throws(SessionError) -> String {
        guard number <= lastNumber else {
            throw .store(BucketError(.unsupported, "the upload has too many parts"))
        }
        if number < claimed, let upload = durable.transfer.upload { return upload }
        let upload: String
        let isNew = durable.transfer.upload == nil
        if let known = durable.transfer.upload {
            upload = known
        } else {
            let generation = requests.newGeneration(after: 0)
            upload = try await requests.beginUpload(file, state, generation: generation, nil)
            durable.transfer.generation = generation
            durable.transfer.upload = upload
        }
        let end = min(number + claimCount, lastNumber + 1)
        do throws(SessionError) { try await declare(upload, until: end) } catch {
            if isNew { await requests.drop(file, state.name, upload, after: error) }
            throw error
        }
        hasClaimed = true
        claimed = end
        return upload
    }

    /// Writes the claim. Between two parts this also makes all bytes durable.
    private func declare(_ upload: String, until end: UInt64) async throws(SessionError) {
        if durable.offset > state.offset, !plan.isAllOrNothing {
            return try await save(durable, nextNumber: end, isOpen: true)
        }
        let generation = durable.transfer.generation
        try await file.update {
            guard case .s3(var saved) = $0.transfer else { return }
            saved.upload = upload
            saved.generation = generation
            saved.nextNumber = UInt16(end)
            if !$0.isTakenOver { saved.lostSince = nil }
            $0.transfer = .s3(saved)
            $0.isOpen = true
        }
    }

    private var claimCount: UInt64 {
        // Numbers claimed by a killed gateway are not reused. Always leave some.
        let most = max(1, (lastNumber + 1 - number) / S3SessionTransfer.claimLimit)
        guard let size = plan.size else { return min(S3SessionTransfer.blindClaim, most) }
        let rest = pending + (size > taken ? size - taken : 0)
        return min(rest / max(1, partSize) + 1, S3SessionTransfer.claimLimit, most)
    }

    /// The last number that an append uses. If the length is unknown, the commit needs one for the tail.
    private var lastNumber: UInt64 { requests.sizes.count - (length == nil ? 1 : 0) }

    // MARK: Ending

    private func save(_ progress: Progress, nextNumber: UInt64, isOpen: Bool, length: UInt64? = nil)
        async throws(SessionError)
    {
        let (offset, unused) = (progress.offset, unused)
        try await file.update {
            var transfer = progress.transfer
            transfer.nextNumber = UInt16(clamping: nextNumber)
            if !$0.isTakenOver, transfer.upload != nil { transfer.lostSince = nil }
            $0.transfer = .s3(transfer)
            $0.offset = offset
            $0.digests = progress.digests.saved
            $0.pieces = progress.pieces + unused
            $0.tail = progress.tail
            $0.isOpen = isOpen
            if let length { $0.length = $0.length ?? length }
        }
    }

    func end(length: UInt64?) async throws(SessionError) -> UInt64 {
        takeStream()?.cancel()
        if taken == 0, length == nil { return try await unchanged() }
        var last = durable
        var failure: BucketError?
        do throws(BucketError) { last = try await withTail() } catch {
            // The bytes after the last part are lost.
            failure = error
        }
        var obsolete = unused.filter { !file.isSettled($0.number) }
        if obsolete.count <= S3SessionTransfer.unusedLimit { obsolete = [] }
        unused.removeAll { obsolete.contains($0) }
        try await save(last, nextNumber: number, isOpen: false, length: length)
        if let before, !last.pieces.isEmpty { file.keepTail(before) }
        for piece in obsolete {
            // If this fails, the sweep removes it.
            try? await requests.deleteHidden(HiddenName.tail(file.id, number: piece.number).text)
        }
        if let failure { throw .store(failure) }
        return last.offset
    }

    /// The offset of an append without bytes. Another gateway may have changed the state meanwhile.
    private func unchanged() async throws(SessionError) -> UInt64 {
        if plan.size == 0 { return state.offset }
        let now = try await file.claim()
        guard now.end == nil, now.offset == state.offset else { throw .superseded }
        return state.offset
    }

    /// All bytes, with those after the last part as the tail.
    private func withTail() async throws(BucketError) -> Progress {
        guard let spool else { return durable }
        var last = durable
        last.digests = digests
        last.pieces = pieces
        last.tail = []
        if spool.count <= requests.sizes.inlineTail {
            last.tail = try await spool.read(at: 0, limit: Int(spool.count))
            return last
        }
        var whole = spool
        let merges = pieces.count >= requests.sizes.pieces
        if merges {
            whole = try await requests.assemble(pieces, before.take(), of: file.id, spool)
            last.pieces = []
        }
        let number = reusable.popLast() ?? .random(in: 0 ... .max)
        file.settle(number, false)
        file.settle(number, try await requests.writePiece(HiddenName.tail(file.id, number: number).text, whole))
        unused.removeAll { $0.number == number }
        last.pieces.append(CloudSessionState.Piece(number: number, size: whole.count))
        if merges { release(pieces) }
        if last.pieces.count == 1 { before = whole } else { try await before?.append(spool) }
        return last
    }

    func discard() async {
        takeStream()?.cancel()
        guard hasClaimed else {
            if let before { file.keepTail(before) }
            return
        }
        let number = UInt16(clamping: number)
        // If this fails, the next claim skips the numbers.
        _ = try? await file.update {
            guard case .s3(var saved) = $0.transfer else { return }
            saved.nextNumber = number
            $0.transfer = .s3(saved)
            $0.isOpen = false
        }
    }

    func cancel() { cancellation.cancel() }
}

extension S3SessionRequests {
    /// Concatenates hidden objects and the file that follows them. `known`: a file with the objects' bytes, if any.
    func assemble(
        _ pieces: [CloudSessionState.Piece], _ known: SessionSpool?, of id: UploadSessionID, _ spool: SessionSpool
    ) async throws(BucketError) -> SessionSpool {
        let pieces = pieces.filter { $0.size > 0 }
        if pieces.isEmpty { return spool }
        let whole: SessionSpool
        if let known {
            whole = known
        } else {
            whole = try await makeSpool()
            for piece in pieces {
                try await readPiece(HiddenName.tail(id, number: piece.number).text, piece.size, into: whole)
            }
        }
        try await whole.append(spool)
        return whole
    }
}
