/// The service's part of upload sessions.
protocol CloudSessionService: CloudSessionStore {
    /// The maximum size of an object in bytes.
    var maximumSessionLength: UInt64 { get }

    /// The initial state of a new session.
    /// - Parameter now: Milliseconds since 1970.
    func newTransfer(_ name: String, now: Int64) -> CloudSessionState.Transfer

    /// Begins to take the bytes of an append, which the plan's offset and lengths permit. Nothing is acknowledged before
    /// its ``CloudTransfer/end(length:)``.
    /// - Parameter state: The state that the append begins with.
    func transfer(_ file: CloudSessionFile, _ state: CloudSessionState, _ plan: AppendPlan)
        async throws(SessionError) -> any CloudTransfer

    /// Makes the object visible, at most once whatever happened before, and writes the result to the state.
    /// - Parameters:
    ///   - state: The claimed state, with exactly the bytes of `facts`, and without an end.
    ///   - until: The new expiry of the session, in seconds since 1970.
    /// - Throws: ``SessionError/superseded`` if another gateway has claimed the session meanwhile, so that the commit
    ///   must look at the state again.
    func commit(
        _ file: CloudSessionFile, _ state: CloudSessionState, _ facts: ContentFacts,
        _ preconditions: Preconditions, until: Int64
    ) async throws(SessionError) -> CommitResult

    /// Looks for the object of a commit whose result is not in the state. If it exists, writes the result to the state.
    /// - Parameter state: The claimed state, with an intent and without an end.
    /// - Returns: nil if there is no such object now.
    func settle(_ file: CloudSessionFile, _ state: CloudSessionState) async throws(SessionError) -> CommitResult?

    /// Removes everything that the service has of a session, except for its state and its object. Can be repeated.
    /// - Parameter isSoleOwner: Whether no other process than this one has sent requests of the session.
    /// - Returns: Whether nothing can be left. Otherwise it must be called again after
    ///   ``CloudSessions/settlingTime``.
    func release(_ id: UploadSessionID, _ state: CloudSessionState, isSoleOwner: Bool) async throws(BucketError) -> Bool
}

/// Moves the bytes of one append to the service. Its calls follow one another, except for ``cancel()``.
protocol CloudTransfer: AnyObject {
    /// Takes the next bytes. ``forward()`` follows.
    func take(_ bytes: [UInt8]) async throws(SessionError)

    /// Waits until the next bytes may be sent. No buffer is held meanwhile, which matters with many appends.
    func forward() async throws(SessionError)

    /// Makes the taken bytes durable and writes the state if it changes; after a failure the bytes taken before it.
    /// - Parameter length: The length of the whole object that the append has declared.
    /// - Returns: The durable offset.
    /// - Throws: ``SessionError/superseded`` if another gateway has changed the session.
    func end(length: UInt64?) async throws(SessionError) -> UInt64

    /// Gives up all taken bytes.
    func discard() async

    /// Cancels the request of a running ``take(_:)`` or ``forward()``, because its bytes are not wanted any more.
    func cancel()
}

/// Reports a failure of the store as one of a session.
func inStore<Result>(
    _ body: () async throws(BucketError) -> Result
) async throws(SessionError) -> Result {
    do throws(BucketError) { return try await body() } catch { throw .store(error) }
}
