import Buckets
import System
import Wire

extension OperatorEndpoints {
    /// Adds the endpoints of webhooks: `GET /events` lists the subscriptions, `GET /events/list` events of one,
    /// `POST /events/replay` sends events again, `POST /events/resume` ends `gone` and pauses, and `DELETE /events/dead`
    /// removes dead events.
    ///
    /// No object's name is shown, because none is at this listener.
    public mutating func addEvents(_ events: EventDeliveries) {
        add("/events", "Webhooks: what is delivered, what waits, and why.") { _ in
            Response(200, "application/json", events.json)
        }
        add("/events/list", "Events of a webhook: `?subscription=NAME&state=pending|waiting|dead`.") {
            (request) throws(Problem) in
            Response(
                200, "application/json", try await events.list(EventQuery(request.query, "state"), withNames: false))
        }
        add(
            "/events/replay",
            "`POST` sends events again: `?subscription=NAME&dead`, `&from=SEQUENCE` or `&since=TIME`.", method: "POST"
        ) {
            (request) throws(Problem) in
            Response(
                200, "application/json", try await events.replay(EventQuery(request.query, "dead", "from", "since")))
        }
        add("/events/resume", "`POST` sends to a webhook again that had responded with 410.", method: "POST") {
            (request) throws(Problem) in
            for dispatcher in try events.find(EventQuery(request.query)) { dispatcher.resume() }
            return Response(200, "application/json", Array("{\"resumed\":true}\n".utf8))
        }
        add("/events/dead", "`DELETE` removes a webhook's dead events.", method: "DELETE") {
            (request) throws(Problem) in
            var count = 0
            for dispatcher in try events.find(EventQuery(request.query)) {
                do throws(BucketError) { count += try await dispatcher.dropDead() } catch { throw Problem(error) }
            }
            return Response(200, "application/json", Array("{\"removed\":\(count)}\n".utf8))
        }
    }
}

/// A query of the endpoints of webhooks.
struct EventQuery: Sendable {
    private let parameters: [(name: String, value: String)]

    /// - Parameters:
    ///   - names: The parameters that the endpoint has, beside `subscription` and `bucket`. All but `dead` need a value.
    /// - Throws: ``Problem``: a parameter that is not understood must not make the operation a wider one.
    init(_ query: [Substring], _ names: String...) throws(Problem) {
        var parameters: [(name: String, value: String)] = []
        for part in query {
            let words = part.split(separator: "=", maxSplits: 1, omittingEmptySubsequences: false)
            let name = String(words[0])
            guard (["subscription", "bucket"] + names).contains(where: { BytewiseString.areEqual($0, name) }) else {
                throw Problem(.invalidArgument, "There is no parameter \(name.prefix(50)).")
            }
            let isFlag = BytewiseString.areEqual(name, "dead")
            let value: String? =
                if words.count < 2 {
                    isFlag ? "" : nil
                } else if let bytes = try? PercentEncoding.decode(Array(words[1].utf8)[...]) {
                    String(validating: bytes, as: UTF8.self)
                } else {
                    nil
                }
            guard let value, value.isEmpty == isFlag else {
                throw Problem(.invalidArgument, isFlag ? "dead has no value." : "\(name) needs a value.")
            }
            guard !parameters.contains(where: { BytewiseString.areEqual($0.name, name) }) else {
                throw Problem(.invalidArgument, "\(name) is there twice.")
            }
            parameters.append((name, value))
        }
        self.parameters = parameters
    }

    func has(_ name: String) -> Bool { self[name] != nil }

    subscript(name: String) -> String? { parameters.first { BytewiseString.areEqual($0.name, name) }?.value }
}

extension EventDeliveries {
    /// The most events in a response, and the most that one request sends again.
    private static let listLimit = 1000
    private static let replayLimit = 10_000

    /// The deliveries that a query names: of one subscription, and of one bucket if it has `bucket`.
    func find(_ query: EventQuery) throws(Problem) -> [EventDispatcher] {
        guard let name = query["subscription"] else {
            throw Problem(.invalidArgument, "The query names the subscription: ?subscription=NAME.")
        }
        let found = dispatchers.filter { dispatcher in
            BytewiseString.areEqual(dispatcher.name, name)
                && (query["bucket"].map { BytewiseString.areEqual($0, dispatcher.bucket) } ?? true)
        }
        if found.isEmpty { throw Problem(.notFound, "There is no such subscription.") }
        return found
    }

    /// The subscriptions, by bucket.
    var json: [UInt8] {
        var json = JSONWriter(reserving: 1024)
        let now = SystemClock.microseconds()
        json.beginObject()
        json.key("subscriptions")
        json.beginArray()
        for dispatcher in dispatchers {
            let status = dispatcher.status
            json.beginObject()
            json.member("subscription", dispatcher.name)
            json.member("bucket", dispatcher.bucket)
            json.member("state", status.state)
            json.member("pending", Int64(status.pending))
            json.member("waiting", Int64(status.retries))
            json.member("dead", Int64(status.dead))
            json.member("oldestSeconds", status.oldest.map { max(0, now - $0) / 1_000_000 } ?? 0)
            json.member("settled", Int64(status.counts.settled))
            json.member("failed", Int64(status.counts.failed))
            json.member("discarded", Int64(status.counts.discarded))
            if let cause = status.lastCause { json.member("lastCause", cause) }
            json.endObject()
        }
        json.endArray()
        json.endObject()
        return json.bytes + [0x0a]
    }

    /// What the console shows: the subscriptions, or events of the one that the query names, with their objects' names.
    public func shown(_ query: [Substring]) async throws(Problem) -> [UInt8] {
        let query = try EventQuery(query, "state")
        return query["subscription"] == nil ? json : try await list(query, withNames: true)
    }

    /// Events of a subscription.
    func list(_ query: EventQuery, withNames: Bool) async throws(Problem) -> [UInt8] {
        let state = query["state"] ?? "dead"
        guard ["pending", "waiting", "dead"].contains(where: { BytewiseString.areEqual($0, state) }) else {
            throw Problem(.invalidArgument, "state is pending, waiting or dead.")
        }
        var json = JSONWriter(reserving: 4096)
        var (count, isComplete) = (0, true)
        json.beginObject()
        json.key("events")
        json.beginArray()
        for dispatcher in try find(query) {
            do throws(BucketError) {
                let listed = try await dispatcher.events(state, limit: EventDeliveries.listLimit - count)
                for (event, retry) in listed.events {
                    json.write(event, retry, dispatcher.bucket, state, withName: withNames)
                }
                count += listed.events.count
                isComplete = isComplete && listed.isComplete
            } catch { throw Problem(error) }
        }
        json.endArray()
        json.key("isComplete")
        json.raw(isComplete ? "true" : "false")
        json.endObject()
        return json.bytes + [0x0a]
    }

    /// Sends events again.
    func replay(_ query: EventQuery) async throws(Problem) -> [UInt8] {
        let all = try find(query)
        let replay: EventReplay
        guard ["dead", "from", "since"].count(where: query.has) == 1 else {
            throw Problem(.invalidArgument, "The query says what: one of &dead, &from=SEQUENCE and &since=TIME.")
        }
        if let text = query["from"] {
            guard let sequence = Int64(text), sequence > 0 else {
                throw Problem(.invalidArgument, "from is the number of an event, above 0.")
            }
            guard all.count == 1 else {
                throw Problem(.invalidArgument, "Numbers are a bucket's: the query needs &bucket=NAME.")
            }
            replay = .from(sequence)
        } else if let text = query["since"] {
            guard let time = HTTPDate.parse(rfc3339: text) else {
                throw Problem(.invalidArgument, "since is a time such as 2026-01-31T12:00:00Z.")
            }
            replay = .since(time * 1000)
        } else {
            replay = .dead(limit: EventDeliveries.replayLimit)
        }
        var count = 0
        for dispatcher in all {
            do throws(BucketError) { count += try await dispatcher.replay(replay) } catch { throw Problem(error) }
        }
        return Array("{\"replayed\":\(count)}\n".utf8)
    }
}

extension EventDispatcher {
    /// The most reads for one list of pending events.
    private static let listReads = 100

    /// Events in a state, and whether there are no more.
    fileprivate func events(_ state: String, limit: Int) async throws(BucketError)
        -> (events: [(BucketEvent, EventRetry?)], isComplete: Bool)
    {
        if BytewiseString.areEqual(state, "pending") {
            return try await onLoop { [self] () async throws(BucketError) in try await pending(limit: limit) }
        }
        let isDead = BytewiseString.areEqual(state, "dead")
        // One more, to know whether there are more.
        let found = try await log.eventRetries(name, dead: isDead, limit: limit + 1)
        return (found.prefix(limit).map { ($1, $0) }, found.count <= limit)
    }

    /// Events after the cursor that the subscription wants and that have not failed.
    private func pending(limit: Int) async throws(BucketError)
        -> (events: [(BucketEvent, EventRetry?)], isComplete: Bool)
    {
        guard let progress = try await log.subscriptionProgress(name) else { return ([], true) }
        let known = Set(progress.deadAbove + progress.waiting.map(\.retry.sequence))
        var after = progress.cursor
        var found: [(BucketEvent, EventRetry?)] = []
        for _ in 0..<EventDispatcher.listReads {
            let events = try await log.events(after: after, limit: 1000)
            guard let last = events.last else { return (found, true) }
            after = last.sequence
            for event in events
            where subscription.wants(event.kind, event.object.name) && !known.contains(event.sequence) {
                if found.count == limit { return (found, false) }
                found.append((event, nil))
            }
        }
        return (found, false)
    }
}

extension JSONWriter {
    /// Writes an event for operators.
    fileprivate mutating func write(
        _ event: BucketEvent, _ retry: EventRetry?, _ bucket: String, _ state: String, withName: Bool
    ) {
        beginObject()
        member("id", CloudEvent(event, bucket: bucket).id)
        member("bucket", bucket)
        if withName { member("name", event.object.name) }
        member("sequence", "\(event.sequence)")
        member("type", event.kind.name)
        member("time", HTTPDate.rfc3339(milliseconds: event.time / 1000))
        member("state", state)
        if let retry {
            member("attempts", Int64(retry.attempts))
            let time = HTTPDate.rfc3339(milliseconds: retry.due / 1000)
            if retry.isDead { member("died", time) } else { member("due", time) }
            if let cause = retry.cause { member("cause", cause) }
        }
        endObject()
    }
}
