import Buckets
import HTTPServer
import System
import Wire

extension OperationHandler {
    /// The driver of uploads in parts.
    /// - Throws: ``SessionError/store(_:)`` with `.unsupported` if the store never has them.
    func partsDriver() throws(SessionError) -> any PartsDriver {
        guard let driver = bucket.driver as? any PartsDriver else {
            throw .store(BucketError(.unsupported, "the store has no uploads in parts"))
        }
        return driver
    }

    /// Reports the error of a session as a problem. A session that the store does not know is no longer counted.
    private func reported<Value>(
        _ id: UploadSessionID, _ body: () async throws(SessionError) -> Value
    ) async throws(Problem) -> Value {
        do throws(SessionError) { return try await body() } catch { throw lost(error, id) }
    }

    /// Begins or continues an upload in parts.
    func parts(_ name: ObjectName, _ request: PartsRequest) async throws(Problem) -> OperationResult {
        switch request.action {
        case .create(let upload, let url): return try await createParts(name, upload, request, url)
        case .put(let number, let content):
            do throws(Problem) {
                return try await put(number, content.size, name, request) { (upload) throws(Problem) in
                    try await receive(number, content, upload)
                }
            } catch {
                content.body?.stop()
                throw error
            }
        case .copy(let number, let copy, let range): return try await copyPart(number, copy, range, name, request)
        case .list(let number, let limit):
            let (token, _) = try token(request, name)
            let parts = try await listed(try await openParts(token, name), after: number, limit: limit)
            return .parts(.listed(parts, isLast: parts.count < limit))
        case .complete(let conditions, let decode):
            let selection = try decode(try await context.collect(limit: PartsRequest.maximumList))
            return try await complete(selection, try conditions.get(), name, request)
        case .cancel:
            let (token, _) = try token(request, name)
            let upload = try await openParts(token, name)
            // For clients of S3 a completed upload is over, and its result stays.
            let keepsResult = request.dialect == .s3
            try await reported(token.id) { () throws(SessionError) in
                try await uncancelled { () throws(SessionError) in
                    if keepsResult, try await upload.state().end != nil { throw .finished }
                    try await upload.cancel()
                }
            }
            uploads.ended(token.id, .cancelled)
            return .deleted
        }
    }

    private func createParts(
        _ name: ObjectName, _ request: UploadRequest, _ parts: PartsRequest, _ url: (String) -> String
    ) async throws(Problem) -> OperationResult {
        let dialect = parts.dialect
        guard request.digests.md5 == nil, request.digests.others.isEmpty else {
            throw Problem(.invalidArgument, "Of an upload in parts, only the crc32c is verified as a whole.")
        }
        let capabilities = try await bucket.capabilities()
        guard capabilities.parts else {
            throw Problem(.notImplemented, "The bucket's store has no uploads in parts.")
        }
        var creation = SessionCreation(dialect: dialect, isLast: false) { $0 }
        creation.hasObjectBytes = false
        creation.metadata = parts.metadata
        let upload = try await begin(name, request, creation)
        guard let session = upload.session as? any PartsUpload else {
            throw Problem(BucketError(.internal, "the store has begun another upload"))
        }
        let token = PartsToken(
            upload.id, dialect: dialect, bucket: bucket.name, name: name.value,
            creator: upload.context.caller?.principal.identity,
            key: session.key)
        if context.exchange.isClientGone {
            // Nobody knows its URL.
            try? await session.cancel()
            uploads.ended(upload.id, .cancelled)
        }
        let location = url(uploads.keys.seal(token))
        return .parts(.created(url: location, expires: upload.state.expires, minimumPart: capabilities.minimumPart))
    }

    /// The token of a request, if its caller may continue the upload.
    /// - Throws: ``Problem``: `upload-not-found`, `unauthenticated`.
    private func token(_ request: PartsRequest, _ name: ObjectName) throws(Problem) -> (PartsToken, owner: [UInt8]?) {
        guard let token = uploads.keys.openParts(request.token) else {
            throw Problem(uploadNotFound: "the token is not one of these keys")
        }
        guard token.dialect == request.dialect, token.isOf(bucket: bucket.name, name: name.value),
            token.id.expires > context.now
        else {
            throw Problem(uploadNotFound: "the token is another object's, or expired")
        }
        if token.isAnonymous { return (token, nil) }
        try requireCreator(request.dialect) { token.isOf(creator: $0) }
        return (token, context.caller.principal?.identity)
    }

    private func openParts(_ token: PartsToken, _ name: ObjectName) async throws(Problem) -> any PartsUpload {
        try await reported(token.id) { () throws(SessionError) in
            try await partsDriver().openParts(token.id, name.value, key: token.key)
        }
    }

    private func listed(_ upload: any PartsUpload, after number: Int, limit: Int) async throws(Problem) -> [Part] {
        try await reported(upload.id) { () throws(SessionError) in
            try await upload.parts(after: number, limit: limit)
        }
    }

    /// The caller's own uploads.
    func listUploads(_ request: UploadListRequest) async throws(Problem) -> OperationResult {
        try authorizer.require(try await authorizer.evaluate())
        guard let identity = context.caller.principal?.identity, let driver = bucket.driver as? any PartsDriver,
            try await bucket.capabilities().parts
        else { return .uploads([]) }
        var found: [ListedUpload] = []
        do throws(BucketError) {
            try await uploads.forEach(bucket.name, driver) { upload in
                guard upload.state.end == nil, upload.context.dialect == request.dialect,
                    upload.context.caller?.principal.identity == identity,
                    upload.state.name.utf8.starts(with: request.prefix.utf8)
                else { return true }
                let token = PartsToken(
                    upload.id, dialect: request.dialect, bucket: bucket.name, name: upload.state.name,
                    creator: identity, key: upload.state.key)
                found.append(
                    ListedUpload(
                        name: upload.state.name, token: uploads.keys.seal(token), created: upload.state.created))
                return true
            }
        } catch {
            throw Problem(error)
        }
        found.sort {
            BytewiseString.areEqual($0.name, $1.name)
                ? $0.token < $1.token : $0.name.utf8.lexicographicallyPrecedes($1.name.utf8)
        }
        return .uploads(found)
    }

    // MARK: Receiving

    /// Stores a part.
    /// - Parameter receive: Moves its bytes into the upload.
    private func put(
        _ number: Int, _ size: UInt64, _ name: ObjectName, _ request: PartsRequest,
        _ receive: (any PartsUpload) async throws(Problem) -> Part
    ) async throws(Problem) -> OperationResult {
        if size > min(PartsRequest.maximumPart, bucket.maximumObjectSize) {
            throw Problem(BodyError.tooLarge, limit: min(PartsRequest.maximumPart, bucket.maximumObjectSize))
        }
        let (token, creator) = try token(request, name)
        if uploads.finishing.isTaken(token.id.text) {
            // A running completion wins: its parts must not change meanwhile.
            await uploads.finishing.take(token.id.text)
            uploads.finishing.end(token.id.text)
        }
        let upload = try await openParts(token, name)
        let entry = UploadLedger.Entry(
            bucket: bucket.name, dialect: request.dialect, owner: context.callerKey, creator: creator, bytes: 0,
            expires: token.id.expires, parts: UploadLedger.PartCount(declared: nil))
        if uploads.ledger.adopt(token.id, entry) { uploads.statistics.takenOver(bucket.name) }
        do throws(UploadLedger.LimitExceeded) {
            try uploads.ledger.begins(token.id, partOf: size, sessionLimits(request.dialect))
        } catch {
            throw Problem(error)
        }
        var isKept = false
        defer { uploads.ledger.ended(token.id, part: number, size: size, isKept: isKept) }
        do throws(Problem) {
            let part = try await receive(upload)
            isKept = true
            uploads.statistics.appended(bucket.name, request.dialect, .stored)
            return .parts(.kept(part))
        } catch {
            let isCut = error.code == .requestTimeout || context.exchange.isClientGone
            let isConflict = error.code == .uploadConflict
            uploads.statistics.appended(bucket.name, request.dialect, isCut ? .cut : isConflict ? .conflict : .refused)
            throw error
        }
    }

    private func receive(_ number: Int, _ content: PartContent, _ upload: any PartsUpload)
        async throws(Problem) -> Part
    {
        let digests = content.digests
        let plan = PartPlan(
            size: content.size, md5: digests.md5, digests: digests.algorithms, checksum: content.checksum)
        return try await stored(number, plan, upload) { (part) throws(Problem) in
            if context.exchange.head.hasBody { try await receiveBody(part, content) }
            let facts = try await reported(upload.id) { () throws(SessionError) in try await part.finish() }
            try digests.verify(facts, "the part was not stored")
            try content.body?.trailer?.verify(facts, "the part was not stored")
        }
    }

    /// - Parameter fill: Moves the bytes into the part, and finishes it.
    private func stored(
        _ number: Int, _ plan: PartPlan, _ upload: any PartsUpload,
        _ fill: (any PartUpload) async throws(Problem) -> Void
    ) async throws(Problem) -> Part {
        let part = try await reported(upload.id) { () throws(SessionError) in
            try await upload.beginPart(number, plan)
        }
        do throws(Problem) {
            try await fill(part)
        } catch {
            part.abort()
            throw error
        }
        return try await reported(upload.id) { () throws(SessionError) in try await part.keep() }
    }

    private func receiveBody(_ part: any PartUpload, _ content: PartContent) async throws(Problem) {
        do throws(BodyError) {
            let sink = context.lease?.pacing(part) ?? part
            if let body = content.body {
                try await body.receive(into: sink, limit: content.size)
                context.record.bytesIn = content.size
            } else {
                context.record.bytesIn = try await context.exchange.receive(into: sink, limit: content.size)
            }
        } catch {
            if case .sink(let failure as SessionError) = error { throw Problem(failure) }
            if case .sink(let problem as Problem) = error { throw problem }
            throw Problem(error, limit: content.size)
        }
    }

    /// Stores bytes of an object as a part. The rules decide a `get` of the object.
    private func copyPart(
        _ number: Int, _ copy: CopyRequest, _ range: ClosedRange<UInt64>?, _ name: ObjectName, _ request: PartsRequest
    ) async throws(Problem) -> OperationResult {
        let sources = SourceAuthorizer(self, copy)
        var source = CurrentObject.unknown
        try await sources.authorize(&source)
        let object = try await sources.object(&source)
        if let range, range.upperBound >= object.size {
            throw Problem(.rangeNotSatisfiable, "The source has \(object.size) bytes.")
        }
        let bytes = range.map { $0.lowerBound..<$0.upperBound + 1 } ?? 0..<object.size
        let size = UInt64(bytes.count)
        return try await put(number, size, name, request) { (upload) throws(Problem) in
            if size > 0, let upload = upload as? any CopyingPartsUpload {
                let source = PartSource(object, in: copy.bucket.driver, bytes)
                let copied = try await reported(upload.id) { () throws(SessionError) in
                    try await upload.copyPart(number, of: source)
                }
                if let copied { return copied }
            }
            return try await stored(number, PartPlan(size: size), upload) { (part) throws(Problem) in
                let reader = try await copy.bucket.open(copy.source, ReadPlan())
                guard reader.metadata.generation == object.generation, reader.metadata.etag == object.etag else {
                    reader.close()
                    throw Problem(BucketError(.preconditionFailed))
                }
                let source = try await copy.bucket.bytes(of: reader, bytes)
                defer { source.close() }
                try await move(source, into: part)
                _ = try await reported(upload.id) { () throws(SessionError) in try await part.finish() }
            }
        }
    }

    // MARK: The end

    /// Creates the object of these parts, or of all, which must be numbered from 1 without gaps. If another request completes the
    /// upload at the same time, the result is the same.
    private func complete(
        _ selection: PartsSelection, _ conditions: Preconditions, _ name: ObjectName, _ request: PartsRequest
    ) async throws(Problem) -> OperationResult {
        context.outlivesClient = true
        return try await repeatedly(attempts: 4) { () async throws(Problem) in
            try await completeOnce(selection, conditions, name, request)
        }
    }

    private func completeOnce(
        _ selection: PartsSelection, _ conditions: Preconditions, _ name: ObjectName, _ request: PartsRequest
    ) async throws(Problem) -> OperationResult {
        let (token, _) = try token(request, name)
        let session = try await openParts(token, name)
        let state = try await state(of: session, request.dialect, end: .completion) { () async throws(SessionError) in
            try await uncancelled { () async throws(SessionError) in try await session.state() }
        }
        let upload = try found(session, state, request.dialect, name.value)
        if !conditions.isEmpty { upload.context.conditions = conditions }
        if state.end != nil {
            let result = try await finish(upload)
            if request.dialect == .s3, case .stored(let stored) = result, !selection.isOf(stored.metadata) {
                throw Problem(uploadNotFound: "it was completed with other parts")
            }
            return result
        }
        var selection = selection
        if selection.parts.isEmpty { selection.parts = try await allParts(session) }
        try await checkParts(&selection, session, upload.context)
        return try await finish(upload, selection)
    }

    /// Checks what S3 requires of the parts beyond the store's own requirements, and chooses the checksum to keep, computed
    /// from those of the parts; nil if the creation asked for none, or if those of the parts are not known.
    /// - Throws: ``Problem`` if a part is too small, or if a checksum differs from the one that the client expects.
    private func checkParts(_ selection: inout PartsSelection, _ upload: any PartsUpload, _ context: UploadContext)
        async throws(Problem)
    {
        guard context.dialect == .s3 else { return }
        let wanted = context.metadata.flatMap { WantedChecksum(text: $0) }
        let isChecked = try await bucket.capabilities().minimumPart >= PartsRequest.minimumPart
        if isChecked, wanted == nil, selection.checksums.isEmpty, selection.checksum == nil { return }
        let all = try await listed(upload, after: 0, limit: PartPlan.maximumNumber)
        let known = Dictionary(uniqueKeysWithValues: all.map { ($0.number, $0) })
        let parts = selection.parts.compactMap { known[$0.number] }
        if let missing = selection.parts.first(where: { known[$0.number] == nil }) {
            throw Problem(SessionError.noSuchPart(missing.number))
        }
        for part in parts {
            if part.number != selection.parts.last?.number, part.size < PartsRequest.minimumPart {
                throw Problem(SessionError.partTooSmall(part.number, minimum: PartsRequest.minimumPart))
            }
            if let expected = selection.checksums[part.number], let found = part.checksum, expected != found {
                throw Problem(SessionError.noSuchPart(part.number))
            }
        }
        guard let wanted else {
            guard selection.checksum == nil else {
                throw Problem(.invalidArgument, "The upload was begun without a checksum.")
            }
            return
        }
        let found = S3Properties.Checksum(of: parts, wanted.algorithm, isComposite: wanted.isComposite)
        let expected = selection.checksum
        if let expected, expected.algorithm != wanted.algorithm || found.map({ $0.value != expected.value }) ?? false {
            throw Problem(.checksumMismatch, "The \(wanted.algorithm.rawValue) of the parts is another.")
        }
        if let found {
            selection.kept = .computed(found)
        } else if wanted.algorithm == .crc32c, !wanted.isComposite {
            selection.kept = .storesCRC32C(expected: expected?.value)
        }
    }

    private func allParts(_ upload: any PartsUpload) async throws(Problem) -> [SelectedPart] {
        let parts = try await listed(upload, after: 0, limit: PartPlan.maximumNumber)
        guard !parts.isEmpty, parts.last?.number == parts.count else {
            throw Problem(
                .invalidArgument, "The parts are not numbered from 1 without gaps: list them in the body.")
        }
        return parts.map { SelectedPart($0.number, etag: $0.etag) }
    }
}
