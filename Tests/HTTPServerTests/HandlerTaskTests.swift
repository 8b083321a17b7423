import System
import TestSupport
import Testing

@testable import HTTPServer

@Suite("Tasks that run handlers")
struct HandlerTaskTests {
    @TaskLocal static var local = 0

    /// Requests on the tests' loop.
    ///
    /// Safety: confined to it.
    private final class Requests: @unchecked Sendable {
        let context = LoopContext(
            loop: TestLoop.loop, limits: ServerLimits(), statistics: ServerStatistics())
        /// What each handler saw at its end: its task, whether that was cancelled, and a task-local value.
        var seen: [(task: Int, isCancelled: Bool, local: Int)] = []
        private var waiters: [UnsafeContinuation<Void, Never>] = []

        /// Starts the handler of a request.
        /// - Parameter waits: Whether it waits for ``release()``.
        @discardableResult func start(waits: Bool = false) -> ServerStream {
            let stream = ServerStream(
                id: 1, owner: NoOwner(), context: context, expectsContinue: false, hasBody: false)
            let head = RequestHead(
                method: "GET", target: "/", authority: nil, fields: .init(), contentLength: nil,
                hasBody: false, expectsContinue: false)
            let exchange = Exchange(
                head: head, version: .http2, isSecure: false, peer: "", loop: context.loop,
                stream: stream)
            stream.start(exchange) { _ in
                if waits { await withUnsafeContinuation { self.waiters.append($0) } }
                let task = withUnsafeCurrentTask { $0.hashValue }
                self.seen.append((task, Task.isCancelled, HandlerTaskTests.local))
            }
            return stream
        }

        /// Lets the handlers end that wait.
        func release() async {
            for waiter in waiters { waiter.resume() }
            waiters = []
            await context.loop.yield()
        }

        var idle: [HandlerTask] { context.handlers.idle }
        var liveRequests: Int { context.statistics.live(.request) }
    }

    @Test("One task runs the handlers of requests that follow each other")
    func reuse() async throws {
        try await TestLoop.run {
            let requests = Requests()
            for count in 1...5 {
                requests.start()
                #expect(requests.seen.count == count, "it runs at once")
                #expect(requests.liveRequests == 0, "the task does not keep the request")
            }
            requests.start(waits: true)
            #expect(requests.idle.isEmpty)
            await requests.release()
            #expect(Set(requests.seen.map(\.task)).count == 1 && requests.seen.count == 6)
            #expect(requests.idle.count == 1)
        }
    }

    @Test("A task that was cancelled runs no other handler")
    func cancelled() async throws {
        try await TestLoop.run {
            let requests = Requests()
            // The second time, the task has run a handler before.
            for _ in 1...2 {
                let stream = requests.start(waits: true)
                stream.abandon()
                await requests.release()
                #expect(requests.idle.isEmpty)
                requests.start()
                #expect(requests.idle.count == 1)
            }
            #expect(requests.seen.map(\.isCancelled) == [true, false, true, false])
        }
    }

    @Test("A stream that is abandoned after its handler leaves the task alone")
    func late() async throws {
        try await TestLoop.run {
            let requests = Requests()
            let first = requests.start()
            let second = requests.start(waits: true)
            first.abandon()
            await requests.release()
            second.abandon()
            requests.start()
            #expect(requests.seen.map(\.isCancelled) == [false, false, false])
            #expect(Set(requests.seen.map(\.task)).count == 1)
        }
    }

    @Test("Requests have no task-local values of others")
    func locals() async throws {
        try await TestLoop.run {
            let requests = Requests()
            Self.$local.withValue(1) {
                requests.start()
                requests.start()
            }
            #expect(requests.seen.map(\.local) == [0, 0])
        }
    }

    @Test("A bounded number of tasks is kept, and none after the last connection")
    func bounds() async throws {
        try await TestLoop.run {
            let requests = Requests()
            let count = HandlerTasks.maximumIdle + 10
            for _ in 0..<count { requests.start(waits: true) }
            await requests.release()
            #expect(requests.seen.count == count)
            #expect(requests.idle.count == HandlerTasks.maximumIdle)
            weak let task = requests.idle.first
            #expect(task != nil)
            requests.context.handlers.endIdle()
            await requests.context.loop.yield()
            #expect(requests.idle.isEmpty && task == nil)
            requests.context.handlers.close()
            requests.start()
            #expect(requests.idle.isEmpty)
        }
    }
}
