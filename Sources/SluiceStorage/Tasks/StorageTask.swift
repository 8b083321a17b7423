import Dispatch
import Foundation
import Synchronization

/// A task with observers, as the Storage SDK for Apple platforms names it.
public typealias StorageObservableTask = StorageTask

/// How a transfer is controlled.
public protocol StorageTaskManagement {
    /// Does nothing, because a task starts when it is created.
    func enqueue()
    /// Stops the task after the current piece.
    func pause()
    /// Ends the task with the error `cancelled`.
    func cancel()
    /// Continues a paused task.
    func resume()
}

/// A transfer: a ``StorageUploadTask`` or a ``StorageDownloadTask``.
///
/// It starts when it is created. All methods can be called from any thread at any time. Observers are called on the
/// storage's ``Storage/callbackQueue``, one after another in the order of the events. After the success or failure of the
/// task all observers are removed.
///
/// Safety: subclasses add no state of their own that is not `Sendable`, and what changes is behind locks.
public class StorageTask: @unchecked Sendable {
    private struct State {
        /// The last event other than progress.
        var phase = StorageTaskStatus.unknown
        var metadata: StorageMetadata?
        var completed: Int64 = 0
        var total: Int64 = 0
        var error: StorageError?
        var next = 0
        var observers: [Int: Observer] = [:]
        var streams: [Int: AsyncStream<StorageTaskSnapshot>.Continuation] = [:]

        var isOver: Bool { phase == .success || phase == .failure }
    }
    private struct Observer {
        let status: StorageTaskStatus
        /// Whether it is called by the transfer itself rather than on the queue: for a function with `async`, which must not
        /// wait for a queue that nobody may run.
        var isDirect = false
        let handler: @Sendable (StorageTaskSnapshot) -> Void
    }

    /// The subject of the task.
    public let reference: StorageReference
    let control = TransferControl()
    /// Serial, even if the application's queue is concurrent.
    private let queue: DispatchQueue
    private let state = Mutex(State())

    init(_ reference: StorageReference, total: Int64 = 0) {
        self.reference = reference
        queue = DispatchQueue(
            label: "SluiceStorage.task", target: reference.storage.callbackQueue)
        state.withLock { $0.total = total }
    }

    // MARK: Management

    /// Stops the task after the current piece. It can be resumed.
    public func pause() { control.pause() }

    /// Continues a paused task: an upload from the offset that the gateway reports.
    public func resume() { control.resume() }

    /// Ends the task with the error `cancelled`, unless it has ended. An upload's bytes are removed at the gateway.
    public func cancel() { control.cancel() }

    /// Does nothing, because the task has already started. For code that calls it.
    public func enqueue() {}

    // MARK: Observation

    /// The current state.
    public var snapshot: StorageTaskSnapshot {
        state.withLock { snapshot($0, $0.phase) }
    }

    /// The current state and all later events, until the task ends. A slow reader gets only the latest 64.
    public var snapshots: AsyncStream<StorageTaskSnapshot> {
        let (stream, continuation) = AsyncStream<StorageTaskSnapshot>.makeStream(bufferingPolicy: .bufferingNewest(64))
        state.withLock { state in
            continuation.yield(snapshot(state, state.phase))
            guard !state.isOver else { return continuation.finish() }
            state.next += 1
            let handle = state.next
            state.streams[handle] = continuation
            continuation.onTermination = { [weak self] reason in
                guard case .cancelled = reason else { return }
                self?.state.withLock { state in _ = state.streams.removeValue(forKey: handle) }
            }
        }
        return stream
    }

    /// Calls `handler` for each event of this kind. If the task is in that state already, it is called once for that.
    /// - Returns: A handle for ``removeObserver(withHandle:)``.
    @discardableResult
    public func observe(
        _ status: StorageTaskStatus,
        handler: @escaping (StorageTaskSnapshot) -> Void
    ) -> String {
        let box = Handler(call: handler)
        let handler: @Sendable (StorageTaskSnapshot) -> Void = { box.call($0) }
        return state.withLock { state in
            state.next += 1
            let isCurrent =
                status == state.phase || status == .progress && state.phase == .resume && state.completed > 0
            if isCurrent {
                let snapshot = snapshot(state, status)
                queue.async { handler(snapshot) }
            }
            if !state.isOver {
                state.observers[state.next] = Observer(status: status, handler: handler)
            }
            return String(state.next)
        }
    }

    /// Removes one observer.
    public func removeObserver(withHandle handle: String) {
        guard let handle = Int(handle) else { return }
        state.withLock { state in _ = state.observers.removeValue(forKey: handle) }
    }

    /// Removes the observers of one kind of events.
    public func removeAllObservers(for status: StorageTaskStatus) {
        state.withLock { state in
            state.observers = state.observers.filter { $0.value.status != status }
        }
    }

    /// Removes all observers.
    public func removeAllObservers() { state.withLock { $0.observers = [:] } }

    /// Calls `handler` for each progress, within the transfer.
    func observeDirectly(_ handler: @escaping @Sendable (Progress?) -> Void) {
        state.withLock { state in
            state.next += 1
            state.observers[state.next] = Observer(status: .progress, isDirect: true) {
                handler($0.progress)
            }
        }
    }

    private func snapshot(_ state: borrowing State, _ status: StorageTaskStatus)
        -> StorageTaskSnapshot
    {
        StorageTaskSnapshot(
            self, status, state.metadata, completed: state.completed, total: state.total,
            state.error)
    }

    // MARK: Events

    /// Reports an event. Nothing follows a success or failure.
    private func report(_ status: StorageTaskStatus, _ change: (inout State) -> Void = { _ in }) {
        var direct: [() -> Void] = []
        let ended: [AsyncStream<StorageTaskSnapshot>.Continuation] = state.withLock { state in
            if state.isOver { return [] }
            change(&state)
            if status != .progress { state.phase = status }
            let snapshot = snapshot(state, status)
            // Handles are numbers in the order of registration.
            for (_, observer) in state.observers.sorted(by: { $0.key < $1.key }) where observer.status == status {
                if observer.isDirect {
                    direct.append { observer.handler(snapshot) }
                } else {
                    queue.async { observer.handler(snapshot) }
                }
            }
            let streams = Array(state.streams.values)
            for stream in streams { stream.yield(snapshot) }
            guard state.isOver else { return [] }
            state.observers = [:]
            state.streams = [:]
            return streams
        }
        // Outside the lock: handlers may take it.
        for call in direct { call() }
        for stream in ended { stream.finish() }
    }

    func begin() { report(.resume) }

    /// Waits while the task is paused.
    /// - Returns: Whether it was paused.
    func checkpoint() async throws(StorageError) -> Bool {
        var wasPaused = false
        try await control.checkpoint {
            wasPaused = true
            report(.pause)
        } resumed: {
            report(.resume)
        }
        return wasPaused
    }

    func progressed(to completed: Int64, of total: Int64, _ metadata: StorageMetadata? = nil) {
        report(.progress) { state in
            state.completed = completed
            state.total = total
            state.metadata = metadata ?? state.metadata
        }
    }

    /// Ends the task, and calls `completion` after its observers.
    func end<Value: Sendable>(
        _ result: Result<Value, StorageError>, _ metadata: StorageMetadata?, _ completion: Completion<Value>
    ) {
        switch result {
        case .success: report(.success) { $0.metadata = metadata ?? $0.metadata }
        case .failure(let error): report(.failure) { $0.error = error }
        }
        switch completion {
        case .none: break
        case .queued(let handler): queue.async { handler(result) }
        case .direct(_, let handler): handler(result)
        }
    }
}

/// The completion of a task.
enum Completion<Value: Sendable>: Sendable {
    case none
    /// On the queue for callbacks.
    case queued(@Sendable (Result<Value, StorageError>) -> Void)
    /// By the transfer itself, as is `progress` before.
    case direct(
        progress: (@Sendable (Progress?) -> Void)?,
        @Sendable (Result<Value, StorageError>) -> Void)

    /// Observes a task that has not begun yet.
    func observe(_ task: StorageTask) {
        if case .direct(let progress?, _) = self { task.observeDirectly { progress($0) } }
    }
}
