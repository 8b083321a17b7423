/// Upload sessions in Cloud Storage. A resumable session, which lives for a week, has the bytes; a hidden object the
/// state.
extension GCSBucket: CloudSessionService {
    /// The maximum size of an object: 5 TiB.
    var maximumSessionLength: UInt64 { 5 << 40 }

    /// The resumable session begins with the first 256 KiB.
    func newTransfer(_ name: String, now: Int64) -> CloudSessionState.Transfer { .none }

    func transfer(_ file: CloudSessionFile, _ state: CloudSessionState, _ plan: AppendPlan)
        async throws(SessionError) -> any CloudTransfer
    {
        try await inStore { () throws(BucketError) in
            try await GCSTransfer(file, self, state, plan)
        }
    }

    func sends(_ state: CloudSessionState, _ plan: AppendPlan) -> Bool {
        guard let size = plan.size, !plan.isAllOrNothing else { return false }
        return state.pending + size >= GCSSession.quantum
    }

    func commit(
        _ file: CloudSessionFile, _ state: CloudSessionState, _ facts: ContentFacts,
        _ preconditions: Preconditions, until: Int64
    ) async throws(SessionError) -> CommitResult {
        try await GCSSessionCommit(
            bucket: self, file: file, facts: facts, preconditions: preconditions, until: until
        ).run(state)
    }

    func settle(_ file: CloudSessionFile, _ state: CloudSessionState)
        async throws(SessionError) -> CommitResult?
    {
        let facts = try await inStore { () throws(BucketError) in try state.facts() }
        return try await GCSSessionCommit(
            bucket: self, file: file, facts: facts, preconditions: Preconditions(), until: state.expires
        ).settle(state)
    }

    func release(_ id: UploadSessionID, _ state: CloudSessionState, isSoleOwner: Bool) async throws(BucketError) -> Bool
    {
        if let source = state.intent?.source { try await deleteHidden(source.name(of: id)) }
        let name = HiddenName.data(id).text
        if case .gcsParts(let transfer) = state.transfer {
            try await abortUpload(name, transfer.upload)
            try await deleteHidden(name)
        }
        guard let target = state.gcsTransfer.session else { return true }
        try await GCSSession(self, name, target: target, persisted: 0).discard()
        try await deleteHidden(name)
        return true
    }
}

extension GCSBucket: SessionDriver {
    public func beginSession(_ name: String, _ plan: SessionPlan) async throws(SessionError)
        -> any UploadSession
    {
        try await inStore { () throws(BucketError) in try checkOpen() }
        var plan = plan
        // The type that the service reports for an object without one.
        plan.upload.attributes.contentType = plan.upload.attributes.mediaType
        return try await sessions.begin(name, plan)
    }

    public func openSession(_ id: UploadSessionID) async throws(SessionError) -> any UploadSession {
        try await inStore { () throws(BucketError) in try checkOpen() }
        return try await sessions.open(id)
    }

    public func isOpen(_ id: UploadSessionID) async throws(BucketError) -> Bool {
        try checkOpen()
        return try await sessions.isOpen(id)
    }

    public func listSessions(after id: UploadSessionID?, limit: Int) async throws(BucketError)
        -> [(id: UploadSessionID, state: SessionState)]
    {
        try checkOpen()
        return try await sessions.list(after: id, limit: limit)
    }

    public func removeExpiredSessions(limit: Int) async throws(BucketError) -> Int {
        try checkOpen()
        return try await sessions.removeExpired(limit: limit)
    }
}
