// The functions of the standard library that take an isolation look up the task's executor before and after they wait, under
// a lock each time. A small request paid for eight of these look-ups; it is four with the functions here, which have no
// isolation: 1.6 % of its time. They are what the standard library has for code without one, under names that begin with
// an underscore.

/// Suspends the calling task until its continuation is resumed, which must happen exactly once.
/// - Parameter body: Keeps the continuation, or resumes it.
@inlinable @inline(__always)
public func suspend<Result>(
    _ body: (UnsafeContinuation<Result, Never>) -> Void
) async -> Result {
    await _unsafeInheritExecutor_withUnsafeContinuation(body)
}

/// Suspends the calling task until its continuation is resumed, which must happen exactly once.
/// - Parameters:
///   - body: Keeps the continuation, or resumes it.
///   - onCancel: Called once if the task is cancelled, on any thread; before `body` if it already is.
@inlinable @inline(__always)
public func suspend<Result>(
    _ body: (UnsafeContinuation<Result, Never>) -> Void, onCancel: @Sendable () -> Void
) async -> Result {
    await _unsafeInheritExecutor_withTaskCancellationHandler(
        operation: { await _unsafeInheritExecutor_withUnsafeContinuation(body) },
        onCancel: onCancel)
}
