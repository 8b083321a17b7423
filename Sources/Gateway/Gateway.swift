import Buckets
import EventLoop
import HTTPServer

/// What answers requests: an immutable snapshot of buckets, their policies and settings, swapped whole on reload.
public final class Gateway: Sendable {
    private let buckets: [String: GatewayBucket]
    private let cors: CORSPolicy?
    private let callers: Callers
    private let observer: any RequestObserver
    private let wallClock: @Sendable () -> Int64
    private let requestIds = RequestIDs()

    /// - Parameters:
    ///   - buckets: With different names; of two with the same, the last is served.
    ///   - cors: nil: browsers let no page of another origin call the gateway.
    ///   - callers: How they are told from each other.
    ///   - observer: Is told of every request's end.
    ///   - wallClock: Seconds since 1970.
    public init(
        buckets: [GatewayBucket], cors: CORSPolicy? = nil, callers: Callers = .unknown,
        observer: any RequestObserver,
        wallClock: @escaping @Sendable () -> Int64 = systemSeconds
    ) {
        self.buckets = Dictionary(buckets.map { ($0.name, $0) }) { _, last in last }
        self.cors = cors
        self.callers = callers
        self.observer = observer
        self.wallClock = wallClock
    }

    /// For the server.
    public var handler: RequestHandler {
        { exchange in await self.respond(exchange) }
    }

    /// Answers one request; success, denial, failure and reset all end here, in one record. Returns when the answer is
    /// on its way.
    public func respond(_ exchange: Exchange) async {
        let call = Call(exchange, requestId: requestIds.next(), now: wallClock)
        let answer: Answer
        do throws(Problem) {
            if call.isOptions {
                answer = try options(call)
            } else {
                try call.checkCertificate()
                let route = try Route(target: call.exchange.head.target)
                let isLink = SignedLink.isClaimed(route.query)
                if !isLink, call.hasCredential { try await call.identify(callers) }
                let (action, bucket) = try begin(call, route, isLink)
                answer = try await call.perform(action, on: bucket, callers)
            }
        } catch {
            answer = call.failed(call.counted(error, callers))
        }
        finish(call, answer)
    }

    /// What is asked for, and of which bucket.
    private func begin(_ call: Call, _ route: Route, _ isLink: Bool) throws(Problem)
        -> (Action, GatewayBucket)
    {
        if !isLink { try call.admit(callers) }
        let bucket = try bucket(of: route, call)
        let action = try Action(call.exchange.head, route, bucket)
        call.begin(action.operation(in: bucket), bucket, route.query)
        if isLink {
            try call.follow(action, bucket, route.query ?? [], callers)
            try call.admit(callers)
        }
        return (action, bucket)
    }

    private func finish(_ call: Call, _ answer: consuming Answer) {
        answer.complete(requestId: call.record.requestId, isHead: call.isHead)
        cors?.decorate(&answer.head.fields, for: call.fields)
        let status = answer.head.status
        if let lease = call.lease { answer.body = lease.pacing(answer.body) }
        call.exchange.respond(answer.head, answer.body) { [self] outcome in
            observer.finished(call.finished(status, outcome))
        }
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
    private func options(_ call: Call) throws(Problem) -> Answer {
        let head = call.exchange.head
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
