extension DirectoryBucket: PartsDriver {
    public func beginSession(_ name: String, _ plan: SessionPlan) async throws(SessionError)
        -> any UploadSession
    {
        let outcome = try await begin(name, plan, digests: SessionDigests(plan.upload.digests).saved)
        let session = sessions.session(outcome.id) { DirectoryUploadSession(outcome.id, self) }
        session.adopt(outcome.found)
        return session
    }

    public func beginParts(_ name: String, _ plan: SessionPlan) async throws(SessionError) -> any PartsUpload {
        let outcome = try await begin(name, plan, digests: [SessionRow.ofParts])
        let upload = partsUploads.session(outcome.id) { DirectoryParts(outcome.id, self) }
        upload.adopt(outcome.found)
        return upload
    }

    private func begin(_ name: String, _ plan: SessionPlan, digests: [UInt8])
        async throws(SessionError) -> (id: UploadSessionID, found: DirectoryChange.Outcome)
    {
        let length = plan.upload.size
        guard length ?? 0 <= SessionPart.maximumLength else {
            throw .lengthExceeded(limit: SessionPart.maximumLength)
        }
        guard plan.context.count <= SessionPlan.maximumContext else {
            throw .store(BucketError(.internal, "a context of \(plan.context.count) bytes"))
        }
        let now = clock()
        guard plan.expires > now / 1_000_000 else { throw .notFound }
        let row = SessionRow(
            blob: 0, id: UploadSessionID(expires: plan.expires), name: name, attributes: plan.upload.attributes,
            created: now / 1000, expires: plan.expires, length: length,
            digests: digests, context: plan.context)
        return (row.id, try await sessionChange(.beginSession(row), name))
    }

    public func openSession(_ id: UploadSessionID) async throws(SessionError) -> any UploadSession {
        let session = sessions.session(id) { DirectoryUploadSession(id, self) }
        try await session.open()
        return session
    }

    public func openParts(_ id: UploadSessionID, _ name: String, key: [UInt8])
        async throws(SessionError) -> any PartsUpload
    {
        let upload = partsUploads.session(id) { DirectoryParts(id, self) }
        try await upload.open()
        return upload
    }

    /// Only this process ends sessions of the directory, and it counts their ends.
    public func isOpen(_ id: UploadSessionID) async throws(BucketError) -> Bool { true }

    public func listSessions(after id: UploadSessionID?, limit: Int) async throws(BucketError)
        -> [(id: UploadSessionID, state: SessionState)]
    {
        let change = SessionChange.list(after: id, limit: limit)
        let outcome = try await self.change("", .session(change, nil), Preconditions())
        var states: [(id: UploadSessionID, state: SessionState)] = []
        for row in outcome.sessions { states.append((row.id, try row.state())) }
        return states
    }

    public func removeExpiredSessions(limit: Int) async throws(BucketError) -> Int {
        let change = SessionChange.removeExpired(limit: limit)
        return try await self.change("", .session(change, nil), Preconditions()).sessions.count
    }

    func sessionChange(
        _ kind: DirectoryChange.Kind, _ name: String,
        _ preconditions: Preconditions = Preconditions()
    ) async throws(SessionError) -> DirectoryChange.Outcome {
        do throws(BucketError) {
            return try await change(name, kind, preconditions)
        } catch {
            throw .store(error)
        }
    }
}
