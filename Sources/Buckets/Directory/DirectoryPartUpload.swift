import System

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
        body = DirectoryBody(place.target, plan.digests, expected: plan.size, loop, pool) {
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
        return try await upload.keep(number, facts, place)
    }

    func abort() {
        if isEnded { return }
        isEnded = true
        body.abort()
    }
}
