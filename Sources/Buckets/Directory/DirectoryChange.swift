import Wire

struct DirectoryChange: Sendable {
    enum Kind: Sendable {
        case put(UploadContent, ContentFacts, ObjectAttributes)
        case patch(AttributePatch)
        case delete
        indirect case copy(CopyPlan)
        /// A write without a change, to test whether an upload could be written.
        case probe
        /// Puts the committer's filter of events into effect.
        case startEvents
        /// Deletes the oldest events.
        case trimEvents(before: Int64, keeping: Int, limit: Int)
        /// Changes what subscriptions have settled.
        indirect case settleEvents(DeliveryChange)
        /// Creates an upload session. The committer chooses the id of its file.
        indirect case beginSession(SessionRow)
        /// Another operation on upload sessions. A given directory must still be the open one.
        indirect case session(SessionChange, OpenDirectory?)

        /// Whether the change is rejected on a nearly full disk.
        var needsRoom: Bool {
            switch self {
            case .put, .copy, .probe, .beginSession: true
            case .patch, .delete, .startEvents, .trimEvents: false
            case .session(let change, _): change.needsRoom
            case .settleEvents(let change): change.needsRoom
            }
        }

        /// Whether files are removed before it completes.
        var freesSpace: Bool {
            if case .session(let change, _) = self { change.freesSpace } else { false }
        }

        /// The bytes that become a blob or go into the index.
        var content: UploadContent? {
            switch self {
            case .put(let content, let facts, _): facts.size > 0 ? content : nil
            case .session(.keepPart(_, _, let file?), _): .staged(file)
            default: nil
            }
        }

        func discard() { content?.discard() }
    }
    struct Outcome: Sendable {
        /// The object after the change or before its deletion; nil for a probe.
        var metadata: ObjectMetadata?
        var replaced = false
        /// The found upload sessions, after the change.
        var sessions: [SessionRow] = []
        /// The parts of a found upload, or the kept one.
        var parts: [PartRow] = []
        var directory: OpenDirectory?
        /// Grows from change to change of sessions. Tasks may learn of their changes in another order.
        var order: UInt64 = 0
        /// The number of trimmed events.
        var count = 0
        var eventBounds: EventBounds?
    }

    let name: String
    let kind: Kind
    let preconditions: Preconditions
    let completion: @Sendable (Result<Outcome, BucketError>) -> Void

    /// The objects that may change.
    var names: [String] { if case .copy(let plan) = kind { [name, plan.source.name] } else { [name] } }
}

/// Applies the changes of one batch to the rows of the index.
struct DirectoryTransaction {
    let directory: OpenDirectory
    let writer: IndexWriter
    let clock: @Sendable () -> Int64
    /// Blobs added to the garbage table.
    var released: [Int64] = []

    typealias Result = Swift.Result<DirectoryChange.Outcome, BucketError>

    mutating func release(_ blob: Int64) throws(SQLiteError) {
        try writer.addGarbage(blob)
        released.append(blob)
    }

    /// Records the object as it is in the index now.
    private func record(_ kind: BucketEvent.Kind, _ name: String, at time: Int64, other: Int64? = nil)
        throws(SQLiteError)
    {
        try writer.events?.record(kind, of: name, at: time, other: other)
    }

    mutating func put(
        _ change: DirectoryChange, _ facts: ContentFacts, _ attributes: ObjectAttributes,
        blob: Int64?, content: UnsafeRawBufferPointer?
    ) throws(SQLiteError) -> Result {
        let old = try writer.lookup(change.name)
        if change.preconditions.evaluate(old?.metadata, reading: false) != nil {
            if let blob { try release(blob) }
            return .failure(BucketError(.preconditionFailed))
        }
        let metadata = try replace(old, change.name, facts, attributes, blob: blob, content: content)
        return .success(.init(metadata: metadata, replaced: old != nil))
    }

    mutating func replace(
        _ old: IndexRow?, _ name: String, _ facts: ContentFacts, _ attributes: ObjectAttributes,
        blob: Int64?, content: UnsafeRawBufferPointer?
    ) throws(SQLiteError) -> ObjectMetadata {
        let now = clock()
        let generation = max(now, writer.lastGeneration + 1)
        writer.lastGeneration = generation
        let metadata = ObjectMetadata(
            name: name, generation: generation, metageneration: 1, size: facts.size, created: now / 1000,
            updated: now / 1000, md5: facts.md5, crc32c: facts.crc32c, etag: String(generation), attributes: attributes)
        if old != nil { try record(.replaced, name, at: now, other: generation) }
        try writer.put(IndexRow(metadata: metadata, blob: blob), content: content, replacing: old)
        try record(.finalized, name, at: now, other: old?.metadata.generation)
        if let old { try giveUpBytes(of: old) }
        return metadata
    }

    /// Removes the bytes of a row, unless copies share them.
    private mutating func giveUpBytes(of row: IndexRow) throws(SQLiteError) {
        if let blob = row.blob {
            if try !writer.dropOwner(of: blob) { try release(blob) }
        } else if row.isInline {
            try writer.removeContent(row.metadata.generation)
        }
    }

    /// The copy shares the blob of its source. Bytes in the index are copied.
    mutating func copy(_ change: DirectoryChange, _ plan: CopyPlan) throws(SQLiteError) -> Result {
        guard let source = try writer.lookup(plan.source.name) else {
            return .failure(BucketError(.objectNotFound))
        }
        let old = try writer.lookup(change.name)
        guard source.metadata.isSame(as: plan.source),
            change.preconditions.evaluate(old?.metadata, reading: false) == nil
        else { return .failure(BucketError(.preconditionFailed)) }
        // Before the old bytes are released, because they may be the same.
        if let blob = source.blob { try writer.addOwner(of: blob) }
        let content = source.isInline ? try writer.content(source.metadata.generation) : []
        let facts = ContentFacts(
            size: source.metadata.size, md5: source.metadata.md5, crc32c: source.metadata.crc32c ?? 0)
        let metadata = try content.withUnsafeBufferPointer { bytes throws(SQLiteError) in
            try replace(
                old, change.name, facts, plan.attributes(keepsTag: true), blob: source.blob,
                content: source.isInline ? UnsafeRawBufferPointer(bytes) : nil)
        }
        if plan.removesSource, !BytewiseString.areEqual(change.name, source.metadata.name) {
            try record(.deleted, source.metadata.name, at: clock())
            try writer.delete(source)
            try giveUpBytes(of: source)
        }
        return .success(.init(metadata: metadata, replaced: old != nil))
    }

    mutating func patch(_ change: DirectoryChange, _ patch: AttributePatch) throws(SQLiteError)
        -> Result
    {
        guard var row = try writer.lookup(change.name) else {
            return .failure(BucketError(.objectNotFound))
        }
        if change.preconditions.evaluate(row.metadata, reading: false) != nil {
            return .failure(BucketError(.preconditionFailed))
        }
        let now = clock()
        row.metadata = row.metadata.patched(patch, now: now / 1000)
        try writer.patch(row)
        try record(.metadataUpdated, change.name, at: now)
        return .success(.init(metadata: row.metadata, replaced: true))
    }

    mutating func delete(_ change: DirectoryChange) throws(SQLiteError) -> Result {
        guard let row = try writer.lookup(change.name) else {
            return .failure(BucketError(.objectNotFound))
        }
        if change.preconditions.evaluate(row.metadata, reading: false) != nil {
            return .failure(BucketError(.preconditionFailed))
        }
        try record(.deleted, change.name, at: clock())
        try writer.delete(row)
        try giveUpBytes(of: row)
        return .success(.init(metadata: row.metadata, replaced: true))
    }
}
