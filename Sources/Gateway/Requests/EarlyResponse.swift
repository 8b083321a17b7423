import HTTPServer
import System
import Wire

/// The response to an operation that takes longer than clients and proxies wait for a first byte. It has status 200 and
/// begins with an XML declaration, a space follows from time to time, and the result ends it, even a failure.
///
/// Safety: confined to its loop; the tasks that use it are pinned to it.
final class EarlyResponse: ByteSource, @unchecked Sendable {
    /// How long an operation is waited for before the response begins, and the time between two spaces, in nanoseconds.
    private static let interval: UInt64 = 10_000_000_000
    private static let declaration = Array("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n".utf8)

    private let loop: EventLoop
    private var timer: LoopTimer?
    /// The bytes to send next.
    private var ready: [UInt8] = []
    private var hasEnded = false
    private var resume: (() -> Void)?
    private var waiter: CheckedContinuation<Void, Never>?
    private var result: Result<Response, Problem>?

    private init(_ loop: EventLoop) { self.loop = loop }

    /// Performs an operation, which continues even if the client disconnects.
    /// - Parameters:
    ///   - interval: In nanoseconds.
    ///   - fields: Of a response that begins before the operation has ended.
    ///   - render: Renders a failure that ends a response which has begun.
    /// - Returns: The operation's response, or the beginning of one.
    /// - Throws: ``Problem`` of an operation that fails in time.
    static func response(
        on loop: EventLoop, after interval: UInt64 = interval, _ fields: HeaderFields,
        _ perform: @escaping () async throws(Problem) -> Response, render: @escaping (Problem) -> Response
    ) async throws(Problem) -> Response {
        let early = EarlyResponse(loop)
        // Safety: the task runs on the loop of its request, as the closures expect.
        nonisolated(unsafe) let (perform, render) = (perform, render)
        let task = Task(executorPreference: loop) { () -> Void in
            do throws(Problem) {
                early.finish(.success(try await perform()), render)
            } catch {
                early.finish(.failure(error), render)
            }
        }
        _ = task
        early.arm(interval)
        await withCheckedContinuation { early.waiter = $0 }
        if let result = early.result { return try result.get() }
        var response = Response(status: 200)
        response.head.fields = fields
        response.body = .stream(early)
        return response
    }

    private func arm(_ interval: UInt64) {
        let timer = LoopTimer { [unowned self] in
            if let waiter = waiter.take() {
                ready = EarlyResponse.declaration
                waiter.resume()
            } else {
                ready.append(UInt8(ascii: " "))
                resume.take()?()
            }
            if !hasEnded, let timer = self.timer { loop.arm(timer, after: interval) }
        }
        self.timer = timer
        loop.arm(timer, after: interval)
    }

    private func finish(_ result: Result<Response, Problem>, _ render: (Problem) -> Response) {
        if let timer { loop.disarm(timer) }
        hasEnded = true
        if let waiter = waiter.take() {
            self.result = result
            return waiter.resume()
        }
        let response: Response
        switch result {
        case .success(let made): response = made
        case .failure(let problem): response = render(problem)
        }
        guard case .bytes(let bytes) = response.body else { return resume.take()?() ?? () }
        ready +=
            bytes.starts(with: EarlyResponse.declaration)
            ? bytes.dropFirst(EarlyResponse.declaration.count) : bytes[...]
        resume.take()?()
    }

    // MARK: ByteSource

    func read(into buffer: inout MutableRawSpan) -> SourceRead {
        if ready.isEmpty { return hasEnded ? .end : .wait }
        let count = min(ready.count, buffer.byteCount)
        buffer.withUnsafeMutableBytes { $0.copyBytes(from: ready[..<count]) }
        ready.removeFirst(count)
        return .bytes(count)
    }

    func whenReadable(_ resume: @escaping () -> Void) { self.resume = resume }

    func close() {
        resume = nil
        if let timer { loop.disarm(timer) }
    }
}
