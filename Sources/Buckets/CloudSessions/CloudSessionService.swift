/// The service-specific part of upload sessions.
protocol CloudSessionService: CloudSessionStore {
    var maximumSessionLength: UInt64 { get }

    /// The initial state of a session. `now` is in milliseconds since 1970.
    func newTransfer(_ name: String, now: Int64) -> CloudSessionState.Transfer

    /// Begins to receive an append that fits the plan's offset and lengths. Nothing is acknowledged before its
    /// ``CloudTransfer/end(length:)``. `state` is the state at the beginning of the append.
    func transfer(_ file: CloudSessionFile, _ state: CloudSessionState, _ plan: AppendPlan)
        async throws(SessionError) -> any CloudTransfer

    /// Whether the append sends bytes to the service if it is complete. It then begins with ``CloudTransfer/open()``.
    func sends(_ state: CloudSessionState, _ plan: AppendPlan) -> Bool

    /// Makes the object visible, at most once even after earlier attempts, and writes the result to the state.
    /// - Parameters:
    ///   - state: The claimed state, without an end, with exactly the bytes of `facts`.
    ///   - until: The new expiry of the session, in seconds since 1970.
    /// - Throws: ``SessionError/superseded`` if another gateway has claimed the session. Read the state again then.
    func commit(
        _ file: CloudSessionFile, _ state: CloudSessionState, _ facts: ContentFacts,
        _ preconditions: Preconditions, until: Int64
    ) async throws(SessionError) -> CommitResult

    /// Looks for the object of a commit without a recorded result. If it exists, writes the result to the state.
    /// - Parameter state: The claimed state, with an intent and without an end.
    /// - Returns: nil if there is no such object now.
    func settle(_ file: CloudSessionFile, _ state: CloudSessionState) async throws(SessionError) -> CommitResult?

    /// Removes everything of a session at the service except its state and object. Can be repeated.
    /// - Parameter isSoleOwner: Whether only this process has sent requests of the session.
    /// - Returns: Whether nothing can be left. Otherwise call it again after ``CloudSessions/settlingTime``.
    func release(_ id: UploadSessionID, _ state: CloudSessionState, isSoleOwner: Bool) async throws(BucketError) -> Bool
}

/// Moves the bytes of one append to the service. Its calls are sequential, except for ``cancel()``.
protocol CloudTransfer: AnyObject {
    /// Writes to the state that bytes may be sent.
    /// - Throws: ``SessionError/superseded`` if another gateway has changed it.
    func open() async throws(SessionError)

    /// Takes the next bytes. ``forward()`` follows.
    func take(_ bytes: [UInt8]) async throws(SessionError)

    /// Waits until the next bytes may be sent. It holds no buffer, which matters with many appends.
    func forward() async throws(SessionError)

    /// Makes the taken bytes durable, or after a failure those taken before it, and writes the state if it changes.
    /// - Parameter length: The object length that the append has declared.
    /// - Returns: The durable offset.
    /// - Throws: ``SessionError/superseded`` if another gateway has changed the session.
    func end(length: UInt64?) async throws(SessionError) -> UInt64

    func discard() async

    /// Cancels the request of a running ``take(_:)`` or ``forward()`` because its bytes are no longer needed.
    func cancel()
}

func inStore<Result>(
    _ body: () async throws(BucketError) -> Result
) async throws(SessionError) -> Result {
    do throws(BucketError) { return try await body() } catch { throw .store(error) }
}
