/// The committer's operations on upload sessions. It also reads rows, so that none is older than what was acknowledged.
enum SessionChange: Sendable {
    case load(UploadSessionID)
    case list(after: UploadSessionID?, limit: Int)
    case save(SessionRow)
    /// Creates the object. Keeps the result until `until`, in seconds since 1970.
    case commit(UploadSessionID, ContentFacts, until: Int64)
    case close(UploadSessionID, record: [UInt8], until: Int64)
    case cancel(UploadSessionID)
    case removeExpired(limit: Int)

    /// Whether the change is rejected on a nearly full disk.
    var needsRoom: Bool {
        switch self {
        case .save, .commit: true
        case .load, .list, .close, .cancel, .removeExpired: false
        }
    }

    /// Whether files are removed before it completes.
    var freesSpace: Bool {
        switch self {
        case .close, .cancel, .removeExpired: true
        case .load, .list, .save, .commit: false
        }
    }
}

extension DirectoryTransaction {
    /// Seconds since 1970.
    private var now: Int64 { clock() / 1_000_000 }

    /// nil if the session does not exist or has expired.
    private func find(_ id: UploadSessionID) throws(SQLiteError) -> SessionRow? {
        let row = try writer.sessions().find(id)
        return row.flatMap { $0.expires > now ? $0 : nil }
    }

    private func outcome(_ rows: [SessionRow]) -> Result {
        var outcome = DirectoryChange.Outcome()
        outcome.sessions = rows
        outcome.directory = directory
        return .success(outcome)
    }

    private func outcome(_ row: SessionRow?) -> Result { outcome(row.map { [$0] } ?? []) }

    mutating func begin(_ row: SessionRow, blob: Int64) throws(SQLiteError) -> Result {
        var row = row
        row.blob = blob
        try writer.sessions().insert(row)
        return outcome(row)
    }

    /// - Parameter directory: The directory of the session's file; nil accepts any.
    mutating func apply(
        _ change: SessionChange, _ request: DirectoryChange, directory: OpenDirectory?
    ) throws(SQLiteError) -> Result {
        if let directory, directory !== self.directory {
            return .failure(BucketError(.unavailable, "the bucket directory was replaced during the upload"))
        }
        let table = try writer.sessions()
        switch change {
        case .load(let id): return outcome(try find(id))
        case .list(let id, let limit): return outcome(try table.list(after: id, limit: limit))
        case .save(let row):
            guard let stored = try find(row.id) else { return outcome(nil) }
            guard stored.end == nil, stored.offset <= row.offset else {
                return .failure(BucketError(.internal, "an upload session has changed beside its owner"))
            }
            try table.update(row)
            return outcome(row)
        case .commit(let id, let facts, let until): return try commit(id, facts, until: until, request.preconditions)
        case .close(let id, let record, let until):
            guard var row = try find(id) else { return outcome(nil) }
            guard row.ownsBlob else { return outcome(row) }
            try release(row.blob)
            row.end = .closed(record)
            row.expires = min(row.expires, until)
            try table.update(row)
            return outcome(row)
        case .cancel(let id):
            guard let row = try find(id) else { return outcome(nil) }
            try remove(row)
            return outcome(row)
        case .removeExpired(let limit):
            let rows = try table.expired(now, limit: limit)
            for row in rows { try remove(row) }
            return outcome(rows)
        }
    }

    private mutating func remove(_ row: SessionRow) throws(SQLiteError) {
        try writer.sessions().delete(row)
        if row.ownsBlob { try release(row.blob) }
    }

    /// Creates the object, once. The same transaction writes the result to the session's row.
    private mutating func commit(
        _ id: UploadSessionID, _ facts: ContentFacts, until: Int64, _ preconditions: Preconditions
    ) throws(SQLiteError) -> Result {
        guard var row = try find(id) else { return outcome(nil) }
        guard row.end == nil else { return outcome(row) }
        guard row.offset == facts.size else {
            return .failure(BucketError(.internal, "an upload session has changed beside its owner"))
        }
        let old = try writer.lookup(row.name)
        if preconditions.evaluate(old?.metadata, reading: false) != nil {
            return .failure(BucketError(.preconditionFailed))
        }
        let blob = facts.size > 0 ? row.blob : nil
        let object = try replace(
            old, row.name, facts, row.attributes, blob: blob, content: nil)
        if blob == nil { try release(row.blob) }
        row.end = .committed(generation: object.generation, created: object.created, replaced: old != nil)
        row.expires = min(row.expires, until)
        try writer.sessions().update(row)
        return outcome(row)
    }
}
