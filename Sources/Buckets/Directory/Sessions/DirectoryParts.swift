import Glibc
import System
import Wire

/// An upload in parts of a directory. Parts are received at the same time; other calls are serialized.
///
/// Safety: all state is in a lock.
final class DirectoryParts: DirectorySession, PartsUpload, @unchecked Sendable {
    /// Where a part in progress is written.
    struct Place {
        let directory: OpenDirectory
        /// Its reservation in the layout; nil if it has a staged file.
        var reservation: Int?
        var staged: StagedFile?
        let target: BodyTarget
        /// The offset in its file.
        let offset: UInt64
        let gate: ChangeGate
    }
    private struct State {
        var layout = PartLayout()
        /// What stops the parts in progress.
        var gates: [ObjectIdentifier: ChangeGate] = [:]
        /// The parts of the object. nil before the selection, and after a part was kept since.
        var selection: (parts: [PartRow], facts: ContentFacts, s3: S3Properties)?
        /// Whether the blob has bytes after those of the object.
        var isTooLong = false
    }
    private let held = Lock(State())

    init(_ id: UploadSessionID, _ bucket: DirectoryBucket) { super.init(id, bucket, isInParts: true) }

    deinit { bucket.partsUploads.remove(id) }

    /// Any directory finds the parts by the id.
    var key: [UInt8] { [] }

    override func adopt(parts: [PartRow], at order: UInt64) { held.withLock { $0.layout.load(parts, at: order) } }

    override func stop(keeping: Bool) async -> Bool {
        for gate in held.withLock({ $0.gates.values }) {
            guard await finishes(within: bucket.stopLimit, on: nil, { await gate.close() }) else { return false }
        }
        return true
    }

    // MARK: Receiving

    func beginPart(_ number: Int, _ plan: PartPlan) async throws(SessionError) -> any PartUpload {
        guard let loop = EventLoop.current else {
            throw .store(BucketError(.internal, "a part belongs on a loop"))
        }
        return try await inTurn(keeping: nil, givingUp: true) { row, directory throws(SessionError) in
            if row.end != nil { throw .finished }
            let place = try await place(number, plan, row, directory)
            held.withLock { $0.gates[ObjectIdentifier(place.gate)] = place.gate }
            return DirectoryPartUpload(self, number, plan, place, loop, bucket.pool)
        }
    }

    private func place(_ number: Int, _ plan: PartPlan, _ row: SessionRow, _ directory: OpenDirectory)
        async throws(SessionError) -> Place
    {
        let (pool, gate, files) = (bucket.pool, ChangeGate(), directory.files)
        return try await inStore { () throws(BucketError) in
            if let (reservation, offset) = held.withLock({ $0.layout.reserve(number, size: plan.size) }) {
                do throws(BucketError) {
                    let descriptor = try await pool.run { () throws(BucketError) in try files.openForParts(row.blob) }
                    return Place(
                        directory: directory, reservation: reservation,
                        target: .file(descriptor, at: offset, name: "blob \(row.blob) of \(files.path)", gate),
                        offset: offset, gate: gate)
                } catch {
                    held.withLock { $0.layout.endReservation(reservation) }
                    throw error
                }
            }
            let file = StagedFile(id: StagedFile.newID(), directory: directory)
            let descriptor = try await pool.run { () throws(BucketError) in try files.createStaged(file.id) }
            return Place(
                directory: directory, staged: file,
                target: .file(descriptor, at: 0, name: "\(files.path)/staging/\(file.id)", gate), offset: 0, gate: gate)
        }
    }

    /// Makes a part durable.
    func keep(_ number: Int, _ facts: ContentFacts, _ checksum: PartChecksum?, _ place: Place)
        async throws(SessionError) -> Part
    {
        let row = PartRow(
            number: number, size: facts.size, md5: facts.md5 ?? [], crc32c: facts.crc32c ?? 0,
            updated: bucket.clock() / 1000, checksum: checksum, offset: place.offset)
        let outcome: DirectoryChange.Outcome
        do throws(SessionError) {
            outcome = try await bucket.sessionChange(
                .session(.keepPart(id, row, place.staged), place.directory), "")
        } catch {
            forget()
            throw error
        }
        guard adopt(outcome) != nil, let kept = outcome.parts.first else {
            forget()
            throw .notFound
        }
        held.withLock { state in
            state.layout.keep(kept, at: outcome.order)
            state.selection = nil
        }
        return kept.part
    }

    /// A part has ended, and nothing of it is written any more.
    func end(_ place: Place) {
        held.withLock { state in
            if let reservation = place.reservation { state.layout.endReservation(reservation) }
            state.gates[ObjectIdentifier(place.gate)] = nil
        }
    }

    func parts(after number: Int, limit: Int) async throws(SessionError) -> [Part] {
        try await inTurn(keeping: nil, givingUp: true) { row, _ throws(SessionError) in
            if row.end != nil { throw .finished }
            let rows = held.withLock { $0.layout.sorted }
            return rows.lazy.filter { $0.number > number }.prefix(limit).map(\.part)
        }
    }

    // MARK: Ending

    func select(_ parts: [SelectedPart], checksum: SelectedChecksum?) async throws(SessionError) {
        try await inTurn(keeping: nil) { row, _ throws(SessionError) in
            if row.end != nil { throw .finished }
            _ = try selected(parts, row)
            guard await stop(keeping: false) else {
                throw .store(BucketError(.timedOut, "the parts in progress do not end"))
            }
            let selection = try selected(parts, row)
            // On the pool: 10,000 checksums take long to combine.
            let (facts, s3) = await bucket.pool.run {
                (DirectoryParts.facts(of: selection), DirectoryParts.properties(of: selection, checksum))
            }
            held.withLock { $0.selection = (selection, facts, s3) }
        }
    }

    private func selected(_ parts: [SelectedPart], _ row: SessionRow) throws(SessionError) -> [PartRow] {
        let layout = held.withLock { $0.layout }
        let chosen = try layout.sorted.map(\.part).selected(parts, minimum: 0)
        let size = chosen.reduce(UInt64(0)) { $0 &+ $1.size }
        if let length = row.length, length != size { throw .lengthMismatch(declared: length) }
        return chosen.compactMap { layout.rows[$0.number] }
    }

    override func facts(_ row: SessionRow) throws(SessionError) -> ContentFacts {
        guard let selection = held.withLock({ $0.selection }) else { throw .superseded }
        return selection.facts
    }

    private static func facts(of selection: [PartRow]) -> ContentFacts {
        var facts = ContentFacts(size: 0, md5: nil, crc32c: 0)
        for part in selection {
            facts.crc32c = CRC32CMatrix.combined(facts.crc32c ?? 0, part.crc32c, count: part.size)
            facts.size += part.size
        }
        return facts
    }

    private static func properties(of selection: [PartRow], _ checksum: SelectedChecksum?) -> S3Properties {
        // The crc32c of each part is known, so no caller asks for that of the store.
        let computed: S3Properties.Checksum? = if case .computed(let value) = checksum { value } else { nil }
        return S3Properties(
            tag: S3Properties.tag(ofParts: selection.lazy.map(\.md5), count: selection.count),
            parts: PartSizes(selection.lazy.map(\.size)), checksum: computed)
    }

    override func s3Properties() -> S3Properties? { held.withLock { $0.selection?.s3 } }

    /// Copies what is not in its final place. Repeating it is harmless: no part's bytes are overwritten.
    override func prepare(_ row: SessionRow, _ facts: ContentFacts, _ directory: OpenDirectory)
        async throws(SessionError)
    {
        let (layout, held) = held.withLock { ($0.layout, $0.selection) }
        guard let held, held.facts == facts else { throw .superseded }
        let (evicted, moves) = layout.moves(held.parts)
        let (pool, files) = (bucket.pool, directory.files)
        let blob: Int32
        do throws(BucketError) {
            blob = try await pool.run { () throws(BucketError) in try files.openForParts(row.blob) }
        } catch { throw .store(error) }
        defer { pool.submit { Glibc.close(blob) } }
        for part in evicted { try await evict(part, from: blob, directory) }
        for move in moves {
            let part = self.held.withLock { $0.layout.rows[move.part.number] } ?? move.part
            try await inStore { () throws(BucketError) in
                let source = try part.blob.map { id throws(BucketError) in try files.openBlob(id) } ?? blob
                guard let source else { throw BucketError(.internal, "the blob of part \(part.number) is missing") }
                defer { if part.blob != nil { pool.submit { Glibc.close(source) } } }
                try await copy(part, from: source, to: blob, at: move.target, files)
            }
        }
        let size = try await inStore { () throws(BucketError) in
            try await pool.run { () throws(BucketError) in
                var status = stat()
                if fstat(blob, &status) != 0 { throw BucketError("fstat", "blob \(row.blob) of \(files.path)") }
                if fdatasync(blob) != 0 { throw BucketError("fdatasync", "blob \(row.blob) of \(files.path)") }
                return UInt64(status.st_size)
            }
        }
        guard size >= facts.size else {
            throw .store(
                BucketError(.internal, "blob \(row.blob) has \(size) bytes, but \(facts.size) were acknowledged"))
        }
        self.held.withLock { $0.isTooLong = size > facts.size }
    }

    /// Frees the space after the object's bytes, which parts used until the commit. A failure is harmless.
    override func committed(_ row: SessionRow, _ directory: OpenDirectory) async {
        guard held.withLock({ $0.isTooLong }) else { return }
        let files = directory.files
        await bucket.pool.run {
            guard let blob = try? files.openForParts(row.blob) else { return }
            _ = ftruncate(blob, off_t(row.offset))
            Glibc.close(blob)
        }
    }

    /// Moves a part to a blob of its own, because another one goes to its place.
    private func evict(_ part: PartRow, from blob: Int32, _ directory: OpenDirectory) async throws(SessionError) {
        let (pool, files) = (bucket.pool, directory.files)
        let file = StagedFile(id: StagedFile.newID(), directory: directory)
        do throws(BucketError) {
            let target = try await pool.run { () throws(BucketError) in try files.createStaged(file.id) }
            defer { pool.submit { Glibc.close(target) } }
            try await copy(part, from: blob, to: target, at: 0, files)
            try await pool.run { () throws(BucketError) in
                if fdatasync(target) != 0 { throw BucketError("fdatasync", "\(files.path)/staging/\(file.id)") }
            }
        } catch {
            pool.submit { files.removeStaged(file.id) }
            throw .store(error)
        }
        var row = part
        row.offset = 0
        let outcome = try await bucket.sessionChange(.session(.keepPart(id, row, file), directory), "")
        guard let kept = outcome.parts.first else { throw .notFound }
        held.withLock { $0.layout.keep(kept, at: outcome.order) }
    }

    private func copy(
        _ part: PartRow, from source: Int32, to target: Int32, at offset: UInt64, _ files: DirectoryFiles
    ) async throws(BucketError) {
        var done: UInt64 = 0
        while done < part.size {
            let start = done
            done += try await bucket.pool.run { () throws(BucketError) in
                try DirectoryFiles.copy(
                    from: source, at: part.offset + start, to: target, at: offset + start, count: part.size - start,
                    "part \(part.number) of \(files.path)")
            }
        }
    }
}

/// A part in progress. Its bytes go to their place in the upload's blob, or to a staged file.
final class DirectoryPartUpload: PartUpload {
    private let upload: DirectoryParts
    private let number: Int
    private let plan: PartPlan
    private let place: DirectoryParts.Place
    private let body: DirectoryBody
    private var taken: UInt64 = 0
    private var facts: ContentFacts?
    private var isEnded = false

    init(
        _ upload: DirectoryParts, _ number: Int, _ plan: PartPlan, _ place: DirectoryParts.Place, _ loop: EventLoop,
        _ pool: BlockingPool
    ) {
        self.upload = upload
        self.number = number
        self.plan = plan
        self.place = place
        body = DirectoryBody(place.target, plan.computed, expected: plan.size, loop, pool) {
            if let staged = place.staged { UploadContent.staged(staged).discard() }
            upload.end(place)
        }
    }

    deinit { abort() }

    func write(_ bytes: RawSpan) throws -> Int {
        precondition(facts == nil, "write after finish")
        if place.gate.isClosed { throw SessionError.superseded }
        guard bytes.byteCount <= plan.size - taken else { throw SessionError.lengthExceeded(limit: plan.size) }
        do throws(BucketError) {
            let count = try body.write(bytes)
            taken += UInt64(count)
            return count
        } catch { throw place.gate.isClosed ? SessionError.superseded : .store(error) }
    }

    func whenWritable(_ resume: @escaping () -> Void) { body.whenWritable(resume) }

    func finish() async throws(SessionError) -> ContentFacts {
        guard taken == plan.size else { throw .lengthMismatch(declared: plan.size) }
        do throws(BucketError) {
            let facts = try await body.finish().0
            self.facts = facts
            return facts
        } catch { throw place.gate.isClosed ? .superseded : .store(error) }
    }

    func keep() async throws(SessionError) -> Part {
        guard let facts, !isEnded else { throw .store(BucketError(.internal, "keep without finish")) }
        guard place.gate.begin() else { throw .superseded }
        isEnded = true
        defer {
            place.gate.end()
            upload.end(place)
        }
        do throws(BucketError) { _ = try await body.sync() } catch {
            if let staged = place.staged { UploadContent.staged(staged).discard() }
            throw .store(error)
        }
        return try await upload.keep(number, facts, plan.checksum(facts), place)
    }

    func abort() {
        if isEnded { return }
        isEnded = true
        body.abort()
    }
}
