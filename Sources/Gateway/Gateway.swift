import Buckets
import EventLoop
import HTTPServer

/// What answers requests: an immutable snapshot of buckets, their policies and settings, swapped whole on reload.
public final class Gateway: Sendable {
    private let buckets: [String: GatewayBucket]
    private let cors: CORSPolicy?
    private let observer: any RequestObserver
    private let wallClock: @Sendable () -> Int64
    private let requestIds = RequestIDs()

    /// - Parameters:
    ///   - buckets: With different names; of two with the same, the last is served.
    ///   - cors: nil: browsers let no page of another origin call the gateway.
    ///   - observer: Is told of every request's end.
    ///   - wallClock: Seconds since 1970.
    public init(
        buckets: [GatewayBucket], cors: CORSPolicy? = nil, observer: any RequestObserver,
        wallClock: @escaping @Sendable () -> Int64 = systemSeconds
    ) {
        self.buckets = Dictionary(buckets.map { ($0.name, $0) }) { _, last in last }
        self.cors = cors
        self.observer = observer
        self.wallClock = wallClock
    }

    /// For the server.
    public var handler: RequestHandler {
        { exchange in await self.respond(exchange) }
    }

    /// Answers one request; success, denial, failure and reset all end here, in one record.
    public func respond(_ exchange: Exchange) async {
        let call = Call(exchange, requestId: requestIds.next(), now: wallClock)
        let head = exchange.head
        var answer: Answer
        do throws(Problem) {
            if head.method == "OPTIONS" {
                answer = try options(head, call)
            } else {
                let route = try Route(target: head.target)
                let bucket = try bucket(of: route, call)
                let action = try Action(head, route, bucket)
                call.begin(action.operation(in: bucket), bucket, route.query)
                answer = try await call.perform(action, on: bucket)
            }
        } catch {
            answer = call.failed(error)
        }
        answer.complete(requestId: call.record.requestId, isHead: head.method == "HEAD")
        cors?.decorate(&answer.head.fields, for: head.fields)
        let outcome = await exchange.respond(answer.head, answer.body)
        observer.finished(call.finished(answer, outcome))
    }

    private func bucket(of route: Route, _ call: Call) throws(Problem) -> GatewayBucket {
        guard let bucket = buckets[route.bucket] else {
            throw Problem(.bucketNotFound, "No bucket of this name is served here.")
        }
        call.record.bucket = bucket.name
        return bucket
    }

    /// The methods of a path, and where CORS is configured what a preflight asks for. No rule is asked and nothing of
    /// an object is told.
    private func options(_ head: RequestHead, _ call: Call) throws(Problem) -> Answer {
        var methods = "GET, HEAD, PUT, PATCH, DELETE, OPTIONS"
        if head.target != "*" {
            let route = try Route(target: head.target)
            _ = try bucket(of: route, call)
            methods = route.methods
        }
        var answer = Answer(status: 204)
        answer.head.fields.append("allow", methods)
        cors?.preflight(&answer.head.fields, for: head.fields, methods: methods)
        return answer
    }
}
