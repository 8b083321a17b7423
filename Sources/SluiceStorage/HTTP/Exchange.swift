import Foundation
import Synchronization
import Wire

#if canImport(FoundationNetworking)
    import FoundationNetworking
#endif

/// A request in progress. It ends once, whatever happens first.
final class Exchange: Sendable {
    typealias Continuation = CheckedContinuation<Result<HTTPResponse, TransportFailure>, Never>

    private struct State {
        var continuation: Continuation?
        var early: Result<HTTPResponse, TransportFailure>?
        var body = Data()
        var isFinished = false
        var end: (@Sendable () -> Void)?
    }
    /// The maximum size of the body in bytes.
    let limit: Int
    private let state = Mutex(State())

    init(limit: Int) { self.limit = limit }

    var isFinished: Bool { state.withLock { $0.isFinished } }

    func begin(_ continuation: Continuation) {
        let early = state.withLock { state in
            if state.early == nil { state.continuation = continuation }
            return state.early
        }
        if let early { continuation.resume(returning: early) }
    }

    /// Runs `end` if the exchange ends before its task does.
    func onEnd(_ end: @escaping @Sendable () -> Void) {
        let isFinished = state.withLock { state in
            if !state.isFinished { state.end = end }
            return state.isFinished
        }
        if isFinished { end() }
    }

    /// What `onEnd` was told is not needed any more: the response is there.
    func released() { state.withLock { $0.end = nil } }

    func receive(_ data: Data) {
        let isTooLarge = state.withLock { state in
            guard !state.isFinished else { return false }
            if state.body.count + data.count > limit { return true }
            state.body.append(data)
            return false
        }
        if isTooLarge { finish(.failure(.failed("The response is larger than it may be."))) }
    }

    /// The task has ended with a response.
    func finish(_ head: HTTPURLResponse) {
        let body = state.withLock { state in
            state.end = nil
            defer { state.body = Data() }
            return state.body
        }
        // Keys: names of fields.
        var fields: [BytewiseString: String] = [:]
        for case (let name as String, let value as String) in head.allHeaderFields {
            fields[BytewiseString(name.asciiLowercased())] = value
        }
        finish(.success(HTTPResponse(status: head.statusCode, fields: fields, body: body)))
    }

    func finish(_ result: Result<HTTPResponse, TransportFailure>) {
        let (continuation, end) = state.withLock { state in
            defer { (state.continuation, state.end) = (nil, nil) }
            if state.isFinished {
                return (
                    nil as Continuation?,
                    nil as (@Sendable () -> Void)?
                )
            }
            state.isFinished = true
            if state.continuation == nil { state.early = result }
            return (state.continuation, state.end)
        }
        continuation?.resume(returning: result)
        end?()
    }
}
