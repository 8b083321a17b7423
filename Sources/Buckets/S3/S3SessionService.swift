import System
import Wire

/// Upload sessions on S3. Each has a multipart upload that the commit completes, whatever the object's size, so that a
/// late request of a former owner can't make the object twice.
final class S3SessionService: CloudSessionService {
    private let requests: any S3SessionRequests
    private static let attempts = 4

    init(_ requests: any S3SessionRequests) { self.requests = requests }

    let maximumSessionLength = UInt64(Int64.max)

    func newTransfer(_ name: String, now: Int64) -> CloudSessionState.Transfer {
        .s3(S3TransferState(lostSince: now))
    }

    func transfer(_ file: CloudSessionFile, _ state: CloudSessionState, _ plan: AppendPlan)
        async throws(SessionError) -> any CloudTransfer
    {
        if state.intent != nil, plan.size != 0 {
            if try await adopted(file, state, until: state.expires) != nil { throw .finished }
            // The object could lack bytes that are appended now.
            throw .store(BucketError(.unavailable, "a commit of the upload may be in progress"))
        }
        return try S3SessionTransfer(file, requests, state, plan)
    }

    func sends(_ state: CloudSessionState, _ plan: AppendPlan) -> Bool {
        guard case .s3(let transfer) = state.transfer, let size = plan.size else { return false }
        let number = UInt64(transfer.nextNumber)
        return number < requests.sizes.count
            && state.pending + size
                >= requests.sizes.size(ofPart: number, length: state.length ?? plan.length, sent: transfer.sent)
    }

    // MARK: Commit

    private struct Attempt {
        var upload: String
        /// Whether the upload was begun for this commit, with the digests of the whole object.
        var isNew: Bool
        /// The number of the last part; nil if all bytes are in parts.
        var number: UInt16?
        /// The previous intent. A request of its commit may still be executed.
        var before: CloudSessionState.Intent?
    }

    func commit(
        _ file: CloudSessionFile, _ state: CloudSessionState, _ facts: ContentFacts,
        _ preconditions: Preconditions, until: Int64
    ) async throws(SessionError) -> CommitResult {
        // A request without a response may have made the object.
        if state.intent != nil, let result = try await adopted(file, state, until: until) {
            return result
        }
        let tail = file.takeTail()
        let condition: S3Bucket.WriteCondition
        do throws(BucketError) {
            condition = try await requests.writeCondition(state.name, preconditions)
        } catch {
            // The request may have been executed since.
            if state.intent != nil, let result = try await adopted(file, state, until: until) {
                return result
            }
            throw .store(error)
        }
        let existing = condition.isNew ? nil : try? await requests.findMarked(state.name)?.object
        var state = state
        let attempt = try await begin(file, &state, facts, existing)
        guard case .s3(var transfer) = state.transfer else { throw .superseded }
        do throws(S3PartFailure) {
            if let part = try await lastPart(file, state, attempt, tail) { transfer.parts.append(part) }
        } catch {
            // The request of an earlier commit may have been executed, which ends the upload.
            if let result = try? await made(state) {
                return await record(file, state, result, until: until)
            }
            if error.isUploadGone { throw await drop(file, state, attempt) }
            await abandon(file, attempt, state.name)
            throw .store(error.cause)
        }
        switch await requests.complete(state.name, attempt.upload, transfer.parts, condition) {
        case .stored(let etag):
            let result = stored(state, transfer, etag, attempt.isNew ? facts : nil, replaced: existing != nil)
            return await record(file, state, result, until: until)
        case .gone:
            let result = try await inStore { () throws(BucketError) in try await made(state) }
            if let result { return await record(file, state, result, until: until) }
            throw await drop(file, state, attempt)
        case .failed(let error, let isFinal):
            let result = try? await made(state)
            if let result { return await record(file, state, result, until: until) }
            if isFinal { await abandon(file, attempt, state.name) }
            throw .store(error)
        }
    }

    /// Writes the intent, with a new multipart upload if there is none, and claims the number of the last part.
    private func begin(
        _ file: CloudSessionFile, _ state: inout CloudSessionState, _ facts: ContentFacts, _ existing: ObjectMetadata?
    ) async throws(SessionError) -> Attempt {
        guard case .s3(var transfer) = state.transfer else { throw .superseded }
        let isNew = transfer.upload == nil
        if isNew {
            transfer.generation = requests.newGeneration(after: existing?.generation ?? 0)
            let (begun, generation) = (state, transfer.generation)
            transfer.upload = try await requests.beginUpload(file, begun, generation: generation, facts)
        }
        let upload = transfer.upload ?? ""
        var attempt = Attempt(upload: upload, isNew: isNew, before: state.intent)
        if state.pending > 0 || transfer.parts.isEmpty {
            guard transfer.nextNumber <= requests.sizes.count else {
                throw .store(BucketError(.unsupported, "the upload has too many parts"))
            }
            attempt.number = transfer.nextNumber
            transfer.nextNumber += 1
        }
        // Repeats aborts that have failed.
        for upload in transfer.discarded {
            if (try? await requests.abortUpload(state.name, upload)) != nil {
                transfer.discarded.removeAll { $0 == upload }
            }
        }
        if !state.isTakenOver { transfer.lostSince = nil }
        let intent = CloudSessionState.Intent(generation: existing?.generation ?? 0, etag: existing?.etag)
        do throws(SessionError) {
            state = try await file.update {
                $0.transfer = .s3(transfer)
                $0.intent = $0.intent ?? intent
                $0.isOpen = true
            }
        } catch {
            if isNew { await requests.drop(file, state.name, upload, after: error) }
            throw error
        }
        return attempt
    }

    /// Sends the bytes that are not in a part yet as the last part; nil if there are none.
    private func lastPart(
        _ file: CloudSessionFile, _ state: CloudSessionState, _ attempt: Attempt, _ tail: SessionSpool?
    ) async throws(S3PartFailure) -> S3TransferState.Part? {
        guard let number = attempt.number else { return nil }
        let whole: SessionSpool
        do throws(BucketError) {
            let spool = try await requests.makeSpool()
            try await spool.append(state.tail)
            whole = try await requests.assemble(state.pieces, tail, of: file.id, spool)
        } catch {
            throw S3PartFailure(cause: error)
        }
        let address = S3PartAddress(
            upload: attempt.upload, number: number, cancellation: S3PartCancellation())
        let etag = try await requests.sendPart(state.name, address, whole)
        return S3TransferState.Part(number: number, etag: etag)
    }

    /// Handles a multipart upload unknown to the service when the current object is not the session's.
    private func drop(
        _ file: CloudSessionFile, _ state: CloudSessionState, _ attempt: Attempt
    ) async -> SessionError {
        if attempt.before != nil {
            await abandon(file, attempt, state.name)
            return .store(BucketError(.preconditionFailed, "the object was stored, and replaced or deleted"))
        }
        guard case .s3(let transfer) = state.transfer, transfer.parts.isEmpty else {
            return await file.endWithoutParts()
        }
        // All bytes are in the state.
        await abandon(file, attempt, state.name, discarding: true)
        return .store(BucketError(.unavailable, "the service has dropped the upload"))
    }

    /// Withdraws the intent of a commit that was not and will not be executed.
    private func abandon(_ file: CloudSessionFile, _ attempt: Attempt, _ name: String, discarding: Bool = false) async {
        // The upload has the digests of these bytes, and other bytes may follow.
        let now = file.milliseconds
        let isDiscarded = (attempt.isNew || discarding) && attempt.before == nil
        let isWritten =
            (try? await file.update {
                guard case .s3(var transfer) = $0.transfer else { return }
                if isDiscarded {
                    transfer.upload = nil
                    transfer.lostSince = transfer.lostSince ?? now
                    transfer.discarded.append(attempt.upload)
                }
                $0.transfer = .s3(transfer)
                $0.intent = attempt.before
                $0.isOpen = false
            }) != nil
        if isWritten, isDiscarded { try? await requests.abortUpload(name, attempt.upload) }
    }

    func settle(_ file: CloudSessionFile, _ state: CloudSessionState)
        async throws(SessionError) -> CommitResult?
    {
        try await adopted(file, state, until: state.expires)
    }

    /// The result of a commit with a lost response; nil if the current object is not the session's.
    private func made(_ state: CloudSessionState) async throws(BucketError) -> CommitResult? {
        guard let found = try await requests.findMarked(state.name), found.mark == state.mark
        else { return nil }
        return CommitResult(
            metadata: found.object, replaced: (state.intent?.generation ?? 0) != 0)
    }

    /// Same as ``made(_:)``, and writes the result to the state.
    private func adopted(_ file: CloudSessionFile, _ state: CloudSessionState, until: Int64)
        async throws(SessionError) -> CommitResult?
    {
        guard let result = try await inStore({ () throws(BucketError) in try await made(state) }) else { return nil }
        return await record(file, state, result, until: until)
    }

    private func stored(
        _ state: CloudSessionState, _ transfer: S3TransferState, _ etag: String, _ facts: ContentFacts?, replaced: Bool
    ) -> CommitResult {
        let object = ObjectMetadata(
            name: state.name, generation: transfer.generation, metageneration: 1,
            size: state.offset, created: transfer.generation / 1000,
            updated: transfer.generation / 1000, md5: facts?.md5, crc32c: facts?.crc32c,
            etag: etag, attributes: state.attributes)
        return CommitResult(metadata: object, replaced: replaced)
    }

    /// Writes the result to the state, even if another gateway has claimed it. If that fails, the next commit finds the
    /// result by the object's mark. The result is marked as repeated if another gateway has written it.
    private func record(
        _ file: CloudSessionFile, _ state: CloudSessionState, _ result: CommitResult, until: Int64
    ) async -> CommitResult {
        let object = CommittedObject(result)
        var result = result
        var isWritten = false
        for _ in 0..<S3SessionService.attempts where !isWritten {
            do throws(SessionError) {
                try await file.update {
                    $0.end = .committed(object)
                    $0.expires = until
                    $0.pieces = []
                    $0.tail = []
                    $0.isOpen = false
                }
                isWritten = true
            } catch {
                guard case .superseded = error, let now = try? await file.claim() else { break }
                result.isRepeated = now.result != nil
                if now.end != nil { break }
            }
        }
        if isWritten {
            for piece in state.pieces {
                try? await requests.deleteHidden(HiddenName.tail(file.id, number: piece.number).text)
            }
        }
        return result
    }

    // MARK: Release

    func release(_ id: UploadSessionID, _ state: CloudSessionState, isSoleOwner: Bool) async throws(BucketError) -> Bool
    {
        var isComplete = true
        if case .s3(let transfer) = state.transfer {
            for upload in [transfer.upload].compactMap(\.self) + transfer.discarded {
                try await requests.abortUpload(state.name, upload)
            }
            if let time = transfer.lostSince, !isSoleOwner {
                isComplete = await requests.abortLost(state.name, since: time, known: transfer.upload)
            }
        }
        for piece in state.pieces {
            try await requests.deleteHidden(HiddenName.tail(id, number: piece.number).text)
        }
        return isComplete
    }

    // MARK: Hidden objects

    func readHidden(_ name: String) async throws(BucketError) -> HiddenObject? {
        try await requests.readHidden(name)
    }

    func writeHidden(_ name: String, _ bytes: [UInt8], replacing version: String?)
        async throws(BucketError) -> String?
    {
        try await requests.writeHidden(name, bytes, replacing: version)
    }

    func deleteHidden(_ name: String) async throws(BucketError) {
        try await requests.deleteHidden(name)
    }

    func listHidden(_ prefix: String, after name: String?) async throws(BucketError) -> [String] {
        try await requests.listHidden(prefix, after: name)
    }
}

extension S3SessionRequests {
    /// Begins a multipart upload. If its id is lost, the state records that, and the session's release looks for it.
    func beginUpload(
        _ file: CloudSessionFile, _ state: CloudSessionState, generation: Int64,
        _ facts: ContentFacts?
    ) async throws(SessionError) -> String {
        do throws(BucketError) {
            return try await beginUpload(state, generation: generation, facts)
        } catch {
            file.noteLostRequest()
            throw .store(error)
        }
    }

    /// Aborts a multipart upload whose id could not be written to the state.
    func drop(
        _ file: CloudSessionFile, _ name: String, _ upload: String, after error: SessionError
    ) async {
        guard case .superseded = error else {
            // The id may be in the state nevertheless.
            return file.noteLostRequest()
        }
        // Another gateway owns the session and does not know the upload.
        do throws(BucketError) { try await abortUpload(name, upload) } catch {
            file.noteLostRequest()
        }
    }
}
