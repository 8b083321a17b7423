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
            Response(200, "application/json", try await events.list(EventQuery(request.query)))
        }
        add(
            "/events/replay",
            "`POST` sends events again: `?subscription=NAME&dead`, `&from=SEQUENCE` or `&since=TIME`.", method: "POST"
        ) {
            (request) throws(Problem) in
            Response(200, "application/json", try await events.replay(EventQuery(request.query)))
        }
        add("/events/resume", "`POST` sends to a webhook again that had responded with 410.", method: "POST") {
            (request) throws(Problem) in
            let query = EventQuery(request.query)
            for dispatcher in try events.find(query) { dispatcher.resume() }
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
    private let parameters: [(name: String, value: String?)]

    init(_ query: [Substring]) {
        parameters = query.map { part in
            let words = part.split(separator: "=", maxSplits: 1, omittingEmptySubsequences: false)
            let value = words.count < 2 ? nil : (try? PercentEncoding.decode(Array(words[1].utf8)[...]))
            return (String(words[0]), value.map { String(decoding: $0, as: UTF8.self) })
        }
    }

    func has(_ name: String) -> Bool { parameters.contains { BytewiseString.areEqual($0.name, name) } }

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

    /// Events of a subscription.
    func list(_ query: EventQuery) async throws(Problem) -> [UInt8] {
        let state = query["state"] ?? "dead"
        guard ["pending", "waiting", "dead"].contains(where: { BytewiseString.areEqual($0, state) }) else {
            throw Problem(.invalidArgument, "state is pending, waiting or dead.")
        }
        let isPending = BytewiseString.areEqual(state, "pending")
        var json = JSONWriter(reserving: 4096)
        var count = 0
        json.beginObject()
        json.key("events")
        json.beginArray()
        for dispatcher in try find(query) where count < EventDeliveries.listLimit {
            let limit = EventDeliveries.listLimit - count
            do throws(BucketError) {
                if isPending {
                    for event in try await dispatcher.pendingEvents(limit: limit) {
                        json.write(event, nil, dispatcher.bucket, state)
                        count += 1
                    }
                } else {
                    let isDead = BytewiseString.areEqual(state, "dead")
                    let found = try await dispatcher.log.eventRetries(dispatcher.name, dead: isDead, limit: limit)
                    for (retry, event) in found { json.write(event, retry, dispatcher.bucket, state) }
                    count += found.count
                }
            } catch { throw Problem(error) }
        }
        json.endArray()
        json.key("isComplete")
        json.raw(count < EventDeliveries.listLimit ? "true" : "false")
        json.endObject()
        return json.bytes + [0x0a]
    }

    /// Sends events again.
    func replay(_ query: EventQuery) async throws(Problem) -> [UInt8] {
        let all = try find(query)
        let replay: EventReplay
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
        } else if query.has("dead") {
            replay = .dead(limit: EventDeliveries.replayLimit)
        } else {
            throw Problem(.invalidArgument, "The query says what: &dead, &from=SEQUENCE or &since=TIME.")
        }
        var count = 0
        for dispatcher in all {
            do throws(BucketError) { count += try await dispatcher.replay(replay) } catch { throw Problem(error) }
        }
        return Array("{\"replayed\":\(count)}\n".utf8)
    }
}

extension EventDispatcher {
    /// Events after the cursor that the subscription wants.
    fileprivate func pendingEvents(limit: Int) async throws(BucketError) -> [BucketEvent] {
        guard let progress = try await log.subscriptionProgress(name) else { return [] }
        return try await log.events(after: progress.cursor, limit: limit)
    }
}

extension JSONWriter {
    /// Writes an event for operators, without the object's name.
    fileprivate mutating func write(_ event: BucketEvent, _ retry: EventRetry?, _ bucket: String, _ state: String) {
        beginObject()
        member("id", CloudEvent(event, bucket: bucket).id)
        member("bucket", bucket)
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
