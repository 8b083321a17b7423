import Synchronization

/// The committer's operations on upload sessions. It also reads rows, so that none is older than what was acknowledged.
enum SessionChange: Sendable {
    case load(UploadSessionID)
    case list(after: UploadSessionID?, limit: Int)
    case save(SessionRow)
    /// Adds or replaces a part of an upload. A staged file becomes its blob.
    case keepPart(UploadSessionID, PartRow, StagedFile?)
    /// Creates the object. Keeps the result until `until`, in seconds since 1970.
    indirect case commit(UploadSessionID, ContentFacts, S3Properties?, until: Int64)
    case close(UploadSessionID, record: [UInt8], until: Int64)
    case cancel(UploadSessionID)
    case removeExpired(limit: Int)

    /// Whether the change is rejected on a nearly full disk.
    var needsRoom: Bool {
        switch self {
        case .save, .keepPart, .commit: true
        case .load, .list, .close, .cancel, .removeExpired: false
        }
    }

    /// Whether files are removed before it completes.
    var freesSpace: Bool {
        switch self {
        case .close, .cancel, .removeExpired: true
        case .load, .list, .save, .keepPart, .commit: false
        }
    }
}

extension DirectoryTransaction {
    private static let orders = Atomic<UInt64>(0)

    /// Seconds since 1970.
    private var now: Int64 { clock() / 1_000_000 }

    /// nil if the session does not exist or has expired.
    private func find(_ id: UploadSessionID) throws(SQLiteError) -> SessionRow? {
        guard var row = try writer.sessions().find(id), row.expires > now else { return nil }
        try countParts(of: &row)
        return row
    }

    private func countParts(of row: inout SessionRow) throws(SQLiteError) {
        if row.isInParts, row.end == nil { row.offset = try writer.parts().total(row.blob) }
    }

    private func outcome(_ rows: [SessionRow], parts: [PartRow] = []) -> Result {
        var outcome = DirectoryChange.Outcome()
        outcome.sessions = rows
        outcome.parts = parts
        outcome.directory = directory
        outcome.order = DirectoryTransaction.orders.add(1, ordering: .relaxed).newValue
        return .success(outcome)
    }

    private func outcome(_ row: SessionRow?) -> Result { outcome(row.map { [$0] } ?? []) }

    mutating func begin(_ row: SessionRow, blob: Int64) throws(SQLiteError) -> Result {
        var row = row
        row.blob = blob
        try writer.sessions().insert(row)
        // Raises the version of the index.
        if row.isInParts { _ = try writer.parts() }
        return outcome(row)
    }

    /// - Parameters:
    ///   - directory: The directory of the session's file; nil accepts any.
    ///   - blob: The blob that was a change's staged file.
    mutating func apply(
        _ change: SessionChange, _ request: DirectoryChange, directory: OpenDirectory?, blob: Int64?
    ) throws(SQLiteError) -> Result {
        if let directory, directory !== self.directory {
            if let blob { try release(blob) }
            return .failure(BucketError(.unavailable, "the bucket directory was replaced during the upload"))
        }
        let table = try writer.sessions()
        switch change {
        case .load(let id):
            guard let row = try find(id) else { return outcome(nil) }
            return outcome([row], parts: row.isInParts ? try writer.parts().list(row.blob) : [])
        case .list(let id, let limit):
            var rows = try table.list(after: id, limit: limit)
            for index in rows.indices { try countParts(of: &rows[index]) }
            return outcome(rows)
        case .save(let row):
            guard let stored = try find(row.id) else { return outcome(nil) }
            guard stored.end == nil, stored.offset <= row.offset else {
                return .failure(BucketError(.internal, "an upload session has changed beside its owner"))
            }
            try table.update(row)
            return outcome(row)
        case .keepPart(let id, let part, _): return try keep(part, of: id, blob: blob)
        case .commit(let id, let facts, let s3, let until):
            return try commit(id, facts, s3, until: until, request.preconditions)
        case .close(let id, let record, let until):
            guard var row = try find(id) else { return outcome(nil) }
            guard row.ownsBlob else { return outcome(row) }
            try release(row.blob)
            try removeParts(of: row)
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
        guard row.ownsBlob else { return }
        try release(row.blob)
        try removeParts(of: row)
    }

    /// Removes the parts, and the blobs with only one of them.
    private mutating func removeParts(of row: SessionRow) throws(SQLiteError) {
        guard row.isInParts else { return }
        let table = try writer.parts()
        for part in try table.list(row.blob) { if let blob = part.blob { try release(blob) } }
        try table.removeAll(row.blob)
    }

    /// Adds a part to an upload. The bytes of the replaced one are released.
    private mutating func keep(_ part: PartRow, of id: UploadSessionID, blob: Int64?) throws(SQLiteError) -> Result {
        guard let row = try find(id), row.end == nil, row.isInParts else {
            if let blob { try release(blob) }
            return outcome(nil)
        }
        var part = part
        part.blob = blob
        let table = try writer.parts()
        let old = try table.find(row.blob, part.number)
        try table.put(row.blob, part)
        if let blob = old?.blob { try release(blob) }
        return outcome([row], parts: [part])
    }

    /// Creates the object, once. The same transaction writes the result to the session's row.
    private mutating func commit(
        _ id: UploadSessionID, _ facts: ContentFacts, _ s3: S3Properties?, until: Int64, _ preconditions: Preconditions
    ) throws(SQLiteError) -> Result {
        guard var row = try find(id) else { return outcome(nil) }
        guard row.end == nil else { return outcome(row) }
        if row.isInParts {
            row.offset = facts.size
            row.digests = [SessionRow.ofParts] + withUnsafeBytes(of: (facts.crc32c ?? 0).bigEndian) { Array($0) }
        }
        guard row.offset == facts.size else {
            return .failure(BucketError(.internal, "an upload session has changed beside its owner"))
        }
        let old = try writer.lookup(row.name)
        if preconditions.evaluate(old?.metadata, reading: false) != nil {
            return .failure(BucketError(.preconditionFailed))
        }
        if var s3 {
            s3.expires = row.attributes.system.s3?.expires
            row.attributes.system.s3 = s3
            // For the result of a repeated commit.
            try writer.sessions().updateSystemMetadata(row)
        }
        let blob = facts.size > 0 ? row.blob : nil
        let object = try replace(
            old, row.name, facts, row.attributes, blob: blob, content: nil)
        if blob == nil { try release(row.blob) }
        try removeParts(of: row)
        row.end = .committed(generation: object.generation, created: object.created, replaced: old != nil)
        row.expires = min(row.expires, until)
        try writer.sessions().update(row)
        return outcome(row)
    }
}
