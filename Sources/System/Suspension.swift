// The functions of the standard library that take an isolation look up the task's executor before and after they wait, under
// a lock each time. A small request paid for eight of these look-ups; it is four with the functions here, which take none:
// 1.6 % of its time. They call what the standard library keeps for programs that were compiled before it had isolations,
// under names that begin with an underscore. Not for actors: `body` would run outside of them.

/// Suspends the calling task until its continuation is resumed, which must happen exactly once. It continues on its
/// preferred executor.
/// - Parameter body: Called at once. Keeps the continuation, or resumes it.
@inlinable @inline(__always)
public func suspend<Result>(
    _ body: (UnsafeContinuation<Result, Never>) -> Void
) async -> Result {
    await _unsafeInheritExecutor_withUnsafeContinuation(body)
}

/// Suspends the calling task until its continuation is resumed, which must happen exactly once. It continues on its
/// preferred executor.
/// - Parameters:
///   - body: Called at once. Keeps the continuation, or resumes it.
///   - onCancel: Called once if the task is cancelled while it waits, on the thread that cancels it; before `body` if it
///     is cancelled already.
@inlinable @inline(__always)
public func suspend<Result>(
    _ body: (UnsafeContinuation<Result, Never>) -> Void, onCancel: @Sendable () -> Void
) async -> Result {
    await _unsafeInheritExecutor_withTaskCancellationHandler(
        operation: { await _unsafeInheritExecutor_withUnsafeContinuation(body) },
        onCancel: onCancel)
}
