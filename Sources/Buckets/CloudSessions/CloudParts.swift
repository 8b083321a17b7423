import System
import Wire

/// The service-specific part of uploads in parts. The rest is that of sessions (``CloudSessionService``).
protocol CloudPartsService: Sendable {
    /// The least size of all parts but the last, in bytes.
    var minimumPart: UInt64 { get }
    /// The maximum size of a part in bytes.
    var maximumPart: UInt64 { get }

    /// Begins an upload in parts at the service, and returns the state's transfer.
    func newUpload(_ id: UploadSessionID, _ state: CloudSessionState) async throws(BucketError)
        -> CloudSessionState.Transfer

    /// Begins to send a part. The service stores nothing before the last byte.
    func streamPart(_ part: CloudPartAddress, _ plan: PartPlan) async throws(BucketError) -> any CloudPartStream

    /// Stores a part and returns its entity tag. `facts` are those of `bytes`.
    func storePart(_ part: CloudPartAddress, _ bytes: [UInt8], _ facts: ContentFacts) async throws(CloudPartFailure)
        -> String

    /// Stores bytes of an object as a part, and returns its entity tag; nil if the service can't copy them.
    func copyPart(_ part: CloudPartAddress, _ source: PartSource) async throws(CloudPartFailure) -> String?

    /// Whether a request at the commit sets the properties of the object, so that they can depend on its parts.
    var setsProperties: Bool { get }

    /// A page of the parts after a number, at most `limit`.
    func listParts(_ upload: CloudUploadAddress, after number: Int, limit: Int) async throws(CloudPartFailure)
        -> CloudPartsPage
}

extension CloudPartsService {
    func copyPart(_ part: CloudPartAddress, _ source: PartSource) async throws(CloudPartFailure) -> String? { nil }
}

/// An upload in parts at the service.
struct CloudUploadAddress: Sendable {
    var id: UploadSessionID
    /// The object's name.
    var name: String
    /// The service's id.
    var upload: String
}

struct CloudPartAddress: Sendable {
    var upload: CloudUploadAddress
    /// 1 to 10,000.
    var number: Int
}

struct CloudPartsPage: Sendable {
    var parts: [Part]
    var isLast: Bool
}

enum CloudPartFailure: Error {
    /// The service does not know the upload.
    case uploadGone
    case store(BucketError)
}

/// A request with the bytes of one part. Confined to its loop.
protocol CloudPartStream: ByteSink {
    /// Sends the last bytes and returns the part's entity tag. `facts` are those of the whole part. After a failure of
    /// ``ByteSink/write(_:)``, it throws the cause.
    func end(_ last: [UInt8], _ facts: ContentFacts) async throws(CloudPartFailure) -> String

    /// Ends the request. The service stores nothing, unless it has all bytes.
    func cancel()
}

extension ByteSink {
    /// Writes all bytes, and waits whenever the sink is full.
    func writeAll(_ bytes: [UInt8]) async throws {
        var offset = 0
        while offset < bytes.count {
            let count = try write(bytes.span.bytes.extracting(droppingFirst: offset))
            offset += count
            if count == 0 {
                await withCheckedContinuation { waiter in whenWritable { waiter.resume() } }
            }
        }
    }
}

/// An upload in parts in a cloud store: a session whose bytes are parts of the service's own upload. Its key is the
/// service's id, so that a part costs one request and no read of the state.
final class CloudParts: CopyingPartsUpload {
    private static let maximumKey = 256
    /// The number of parts in a page of the service's list.
    private static let pageLimit = 1000

    private let session: CloudSession
    private let service: any CloudPartsService
    private let name: String
    /// nil if it must be read from the state, because it is too long for a key.
    private let upload: Lock<String?>

    init(_ session: CloudSession, _ service: any CloudPartsService, _ name: String, upload: String?) {
        self.session = session
        self.service = service
        self.name = name
        self.upload = Lock(upload)
    }

    var id: UploadSessionID { session.id }

    var context: [UInt8]? { session.context }

    var key: [UInt8] { CloudParts.key(ofUpload: upload.withLock { $0 }) }

    /// The key of an upload with this id at the service; empty if it is not known, or too long.
    static func key(ofUpload upload: String?) -> [UInt8] {
        let key = Array((upload ?? "").utf8)
        return key.count > CloudParts.maximumKey ? [] : key
    }

    func state() async throws(SessionError) -> SessionState { try await session.state() }

    private func address() async throws(SessionError) -> CloudUploadAddress {
        if session.file.isGone { throw .notFound }
        if let known = upload.withLock({ $0 }) { return CloudUploadAddress(id: id, name: name, upload: known) }
        let state = try await inStore { () throws(BucketError) in try await session.stored() }
        guard let known = state?.upload else { throw .notFound }
        upload.withLock { $0 = known }
        return CloudUploadAddress(id: id, name: name, upload: known)
    }

    func sessionError(_ failure: CloudPartFailure) async -> SessionError {
        switch failure {
        case .store(let error): return .store(error)
        case .uploadGone:
            // The service does not report why.
            switch try? await session.stored()?.end {
            case .committed, .closed: return .finished
            case .cancelled, nil: return .notFound
            }
        }
    }

    // MARK: Parts

    func beginPart(_ number: Int, _ plan: PartPlan) async throws(SessionError) -> any PartUpload {
        guard let loop = EventLoop.current, (1...PartPlan.maximumNumber).contains(number) else {
            throw .store(BucketError(.internal, "part \(number), or no loop"))
        }
        guard plan.size <= service.maximumPart else { throw .lengthExceeded(limit: service.maximumPart) }
        let round = session.parts.round
        let address = CloudPartAddress(upload: try await address(), number: number)
        var stream: (any CloudPartStream)?
        if plan.size > UInt64(CloudPart.memory) {
            stream = try await inStore { () throws(BucketError) in try await service.streamPart(address, plan) }
        }
        let part = CloudPart(self, service, address, plan, loop, stream, in: session)
        guard session.parts.add(part, since: round) else {
            part.abort()
            throw .superseded
        }
        return CloudPartHandle(part)
    }

    /// Runs to its end, because the service may store the part although the client went away. A selection does not wait
    /// for it, just as for parts of other gateways.
    func copyPart(_ number: Int, of source: PartSource) async throws(SessionError) -> Part? {
        guard (1...PartPlan.maximumNumber).contains(number), source.range.count <= service.maximumPart else {
            return nil
        }
        let address = CloudPartAddress(upload: try await address(), number: number)
        return try await toItsEnd { [self] () throws(SessionError) in
            do throws(CloudPartFailure) {
                guard let etag = try await service.copyPart(address, source) else { return nil }
                return Part(
                    number: number, size: UInt64(source.range.count), etag: etag, crc32c: nil,
                    updated: session.file.milliseconds)
            } catch {
                throw await sessionError(error)
            }
        }
    }

    func parts(after number: Int, limit: Int) async throws(SessionError) -> [Part] {
        let address = try await address()
        do throws(CloudPartFailure) {
            var found: [Part] = []
            var last = number
            // A page can be shorter than wanted without being the last one.
            while found.count < limit {
                let wanted = min(limit - found.count, CloudParts.pageLimit)
                let page = try await page(address, after: last, limit: wanted)
                found += session.sessions.computed.completed(page.parts.distinct([]), of: id)
                guard !page.isLast, let end = page.parts.last?.number else { break }
                last = end
            }
            return found
        } catch {
            throw await sessionError(error)
        }
    }

    private func page(_ address: CloudUploadAddress, after number: Int, limit: Int) async throws(CloudPartFailure)
        -> CloudPartsPage
    {
        var page = try await service.listParts(address, after: number, limit: limit)
        var last = number
        for part in page.parts {
            guard part.number >= last, part.number > number, part.number <= PartPlan.maximumNumber else {
                throw .store(BucketError(.unavailable, "the service lists parts in no order"))
            }
            last = part.number
        }
        guard page.isLast || !page.parts.isEmpty else {
            throw .store(BucketError(.unavailable, "the service's list of parts does not end"))
        }
        if page.parts.count > limit { page = CloudPartsPage(parts: Array(page.parts[..<limit]), isLast: false) }
        return page
    }

    /// All durable parts, ordered by number. Each page has a higher number than the page before, so it ends.
    private func allParts() async throws(CloudPartFailure) -> [Part] {
        guard let known = upload.withLock({ $0 }) else { throw .uploadGone }
        let address = CloudUploadAddress(id: id, name: name, upload: known)
        var parts: [Part] = []
        while true {
            let page = try await page(address, after: parts.last?.number ?? 0, limit: CloudParts.pageLimit)
            parts += page.parts
            if page.isLast { return parts }
        }
    }

    func select(_ selection: [SelectedPart], checksum: SelectedChecksum?) async throws(SessionError) {
        await session.stopParts()
        _ = try await address()
        try await session.inTurn { [self] () throws(SessionError) in
            try await session.untilOwned { [self] () throws(SessionError) in
                try await selectOnce(selection, checksum)
            }
        }
    }

    private func selectOnce(_ selection: [SelectedPart], _ checksum: SelectedChecksum?)
        async throws(SessionError)
    {
        let file = session.file
        let state = try await file.claim()
        if state.end != nil { throw .finished }
        if state.hasFixedParts {
            // An earlier commit has joined the parts, or its request may be executed yet. The next commit finds out.
            if state.selects(selection) { return }
            if try await session.settled(state) != nil { throw .finished }
            throw .store(BucketError(.unavailable, "an earlier commit has selected other parts"))
        }
        let parts: [Part]
        do throws(CloudPartFailure) { parts = try await allParts() } catch {
            guard case .store(let cause) = error else { throw await file.endWithoutParts() }
            throw .store(cause)
        }
        let chosen = try parts.distinct(selection).selected(selection, minimum: service.minimumPart)
        let size = chosen.reduce(0) { $0 + $1.size }
        if let length = state.length, length != size { throw .lengthMismatch(declared: length) }
        let limit = session.sessions.service.maximumSessionLength
        guard size <= limit else { throw .lengthExceeded(limit: limit) }
        let s3 = service.setsProperties ? S3Properties(of: chosen, checksum) : nil
        try await file.update { $0.select(chosen, size, s3) }
    }

    // MARK: Ending

    func finish() async throws(SessionError) -> ContentFacts { try await session.finish() }

    func commit(
        _ facts: ContentFacts, _ preconditions: Preconditions, resultUntil: Int64
    ) async throws(SessionError) -> CommitResult {
        await session.stopParts()
        let result = try await session.commit(facts, preconditions, resultUntil: resultUntil)
        session.sessions.computed.forget(id)
        return result
    }

    func close(_ record: [UInt8], until: Int64) async throws(SessionError) {
        await session.stopParts()
        try await session.close(record, until: until)
    }

    func cancel() async throws(SessionError) {
        await session.stopParts()
        session.sessions.computed.forget(id)
        try await session.cancel()
    }
}

extension CloudSession {
    /// The stored state, read without waiting for other calls and without a claim; nil if there is none.
    func stored() async throws(BucketError) -> CloudSessionState? {
        let name = HiddenName.state(id).text
        return try await sessions.service.readHidden(name).flatMap { try? CloudSessionState($0.bytes) }
    }

    func stopParts() async { await parts.stop(within: sessions.stopLimit) }
}

extension CloudSessionState {
    /// The service's id of an upload in parts.
    var upload: String? {
        guard isInParts else { return nil }
        return switch transfer {
        case .s3(let state): state.upload
        case .gcsParts(let state): state.upload
        case .none, .gcs: nil
        }
    }

    /// Whether the selected parts may be joined already.
    var hasFixedParts: Bool {
        if case .gcsParts(let state) = transfer, state.isFixed { return true }
        return intent != nil
    }

    /// Whether these parts are already selected.
    fileprivate func selects(_ selection: [SelectedPart]) -> Bool {
        selected.count == selection.count
            && zip(selected, selection).allSatisfy {
                Int($0.number) == $1.number && ($1.etag ?? $0.etag) == $0.etag
            }
    }

    fileprivate mutating func select(_ chosen: [Part], _ size: UInt64, _ s3: S3Properties?) {
        if var s3 {
            s3.expires = attributes.system.s3?.expires
            attributes.system.s3 = s3
        }
        let parts = chosen.map { S3TransferState.Part(number: UInt16($0.number), etag: $0.etag) }
        switch transfer {
        case .s3(var state):
            (state.parts, state.sent) = (parts, size)
            transfer = .s3(state)
        case .gcsParts(var state):
            (state.parts, state.sent) = (parts, size)
            transfer = .gcsParts(state)
        case .none, .gcs: return
        }
        offset = size
    }
}

extension CloudSessions {
    func beginParts(_ name: String, _ plan: SessionPlan, _ parts: any CloudPartsService) async throws(SessionError)
        -> CloudParts
    {
        let state = try newState(name, plan, isInParts: true)
        let session = session(UploadSessionID(expires: plan.expires), isInParts: true)
        return try await toItsEnd { [self] () throws(SessionError) in
            var state = state
            state.transfer = try await inStore { [state] () throws(BucketError) in
                try await parts.newUpload(session.id, state)
            }
            do throws(SessionError) { try await session.file.create(state) } catch {
                // Nobody knows its id. If the state exists nevertheless, the sweep removes it.
                _ = try? await service.release(session.id, state, isSoleOwner: true)
                throw error
            }
            remember(session)
            return CloudParts(session, parts, name, upload: state.upload)
        }
    }

    func openParts(_ id: UploadSessionID, _ name: String, key: [UInt8], _ parts: any CloudPartsService)
        throws(SessionError) -> CloudParts
    {
        guard id.expires > now, let upload = String(validating: key, as: UTF8.self) else { throw .notFound }
        return CloudParts(session(id, isInParts: true), parts, name, upload: upload.isEmpty ? nil : upload)
    }
}

extension [Part] {
    /// One part of each number, since SeaweedFS also lists those that were replaced: the selected one, otherwise the
    /// newest, as far as its time in whole seconds tells.
    fileprivate func distinct(_ selection: [SelectedPart]) -> [Part] {
        var distinct: [Part] = []
        distinct.reserveCapacity(count)
        var rest = selection[...]
        for part in self {
            guard let last = distinct.last, last.number == part.number else {
                distinct.append(part)
                continue
            }
            rest = rest.drop { $0.number < part.number }
            let wanted = rest.first.flatMap { $0.number == part.number ? $0.etag : nil }
            if part.etag == wanted || last.etag != wanted && part.updated >= last.updated {
                distinct[distinct.count - 1] = part
            }
        }
        return distinct
    }
}
