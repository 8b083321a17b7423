extension S3Bucket: SessionDriver {
    var openSessions: CloudSessions {
        sessions.withLock { sessions in
            if let sessions { return sessions }
            let made = CloudSessions(S3SessionService(self), clock: clock, work: cleaning)
            sessions = made
            return made
        }
    }

    func closeSessions() {
        let closed = sessions.withLock { $0.take() }
        closed?.close()
    }

    public func beginSession(_ name: String, _ plan: SessionPlan) async throws(SessionError)
        -> any UploadSession
    {
        try await checkSessions()
        return try await openSessions.begin(name, plan)
    }

    func checkSessions() async throws(SessionError) {
        let isPossible = try await inStore { () throws(BucketError) in
            try await decidesConditions()
        }
        guard isPossible else {
            throw .store(BucketError(.unsupported, "the service has no conditional writes"))
        }
    }

    public func openSession(_ id: UploadSessionID) async throws(SessionError) -> any UploadSession {
        try await openSessions.open(id)
    }

    public func isOpen(_ id: UploadSessionID) async throws(BucketError) -> Bool {
        try await openSessions.isOpen(id)
    }

    public func listSessions(after id: UploadSessionID?, limit: Int) async throws(BucketError)
        -> [(id: UploadSessionID, state: SessionState)]
    {
        guard try await decidesConditions() else { return [] }
        return try await openSessions.list(after: id, limit: limit)
    }

    public func removeExpiredSessions(limit: Int) async throws(BucketError) -> Int {
        guard try await decidesConditions() else { return 0 }
        return try await openSessions.removeExpired(limit: limit)
    }
}
