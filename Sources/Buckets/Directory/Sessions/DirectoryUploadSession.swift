import System

/// An upload session of a directory.
///
/// Safety: the append is in a lock.
final class DirectoryUploadSession: DirectorySession, UploadSession, @unchecked Sendable {
    private let current = Lock<DirectoryAppend?>(nil)

    init(_ id: UploadSessionID, _ bucket: DirectoryBucket) { super.init(id, bucket, isInParts: false) }

    deinit { bucket.sessions.remove(id) }

    override func stop(keeping: Bool) async -> Bool {
        guard let append = current.withLock({ $0 }) else { return true }
        return await append.stop(keeping: keeping, within: bucket.stopLimit)
    }

    override func prepare(_ row: SessionRow, _ facts: ContentFacts, _ directory: OpenDirectory)
        async throws(SessionError)
    {
        guard facts.size == row.offset else { throw .offsetMismatch(durable: row.offset) }
        if let length = row.length, length != row.offset { throw .lengthMismatch(declared: length) }
        try await SessionPart.open(row, directory, bucket.pool).close()
    }

    // MARK: Appending

    func append(_ plan: AppendPlan) async throws(SessionError) -> any SessionAppend {
        guard let loop = EventLoop.current else {
            throw .store(BucketError(.internal, "an append belongs on a loop"))
        }
        return try await inTurn(givingUp: true) { row, directory throws(SessionError) in
            var row = row
            try DirectoryUploadSession.check(plan, row)
            if row.length == nil, let length = plan.length {
                row.length = length
                row = try await change(.save(row), directory)
            }
            let part = try await SessionPart.open(row, directory, bucket.pool)
            let append = DirectoryAppend(self, directory, part, loop, bucket.pool, row, plan)
            current.withLock { $0 = append }
            bucket.appends.begin()
            return AppendHandle(append)
        }
    }

    private static func check(_ plan: AppendPlan, _ row: SessionRow) throws(SessionError) {
        if row.end != nil { throw .finished }
        guard plan.offset == row.offset else { throw .offsetMismatch(durable: row.offset) }
        if let known = row.length, let length = plan.length, length != known {
            throw .lengthMismatch(declared: known)
        }
        let limit = row.length ?? plan.length ?? SessionPart.maximumLength
        guard limit <= SessionPart.maximumLength else {
            throw .lengthExceeded(limit: SessionPart.maximumLength)
        }
        guard limit >= row.offset, plan.size ?? 0 <= limit - row.offset else {
            throw .lengthExceeded(limit: limit)
        }
    }

    func detach(_ append: DirectoryAppend) {
        let isHeld = current.withLock { current in
            guard current === append else { return false }
            current = nil
            return true
        }
        if isHeld { bucket.appends.end() }
    }

    /// Continues without an append that never ends. Its last change may still be executed, before the next one.
    func abandon(_ append: DirectoryAppend) {
        detach(append)
        forget()
    }
}
