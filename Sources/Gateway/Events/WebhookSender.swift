import Buckets
import HTTPClient
import System
import Telemetry
import Wire

/// The requests to a sink. Each is one attempt: ``DeliveryState`` decides about another one.
///
/// A sink is not trusted: its redirects are not followed, at most 64 KiB of its body are read and none is shown, and a
/// request ends in time however slowly a response comes.
final class WebhookSender: Sendable {
    /// The bytes of a response that are read, so that its connection can be used again.
    private static let maximumBody = 64 << 10
    /// How long they are read after the head, in nanoseconds.
    private static let bodyTimeout: UInt64 = 1_000_000_000
    /// Shorter than the 5 s of Node.js, so that a request does not meet the end of its connection. In nanoseconds.
    private static let idleTimeout: UInt64 = 4_000_000_000
    private static let connectTimeout: UInt64 = 5_000_000_000

    let subscription: EventSubscription
    let bucket: String
    private let source: String
    private let upstream: Upstream
    private let keys: Lock<WebhookKeys?>
    private let traces: TraceExporter?

    init(
        _ subscription: EventSubscription, _ bucket: String, keys: WebhookKeys?, observer: (any UpstreamObserver)?,
        traces: TraceExporter?
    ) {
        self.subscription = subscription
        self.bucket = bucket
        source = subscription.source ?? CloudEvent.source(of: bucket)
        self.keys = Lock(keys)
        self.traces = traces
        var settings = UpstreamSettings(name: "events \(subscription.name)", origin: subscription.origin)
        settings.connectTimeout = min(WebhookSender.connectTimeout, subscription.timeout)
        settings.firstByteTimeout = subscription.timeout
        settings.progressTimeout = subscription.timeout
        settings.queueTimeout = subscription.timeout
        settings.attempts = 1
        settings.idleTimeout = WebhookSender.idleTimeout
        settings.certificateAuthorities = subscription.certificateAuthorities
        settings.clientCertificate = subscription.clientCertificate
        settings.clientKey = subscription.clientKey
        settings.secureTransport = .own
        settings.passesTrace = true
        upstream = Upstream(settings, observer: observer, hasBreaker: false)
    }

    func replace(_ keys: WebhookKeys?) { self.keys.withLock { $0 = keys } }

    func close() async { await upstream.close() }

    /// Sends events in one request.
    func send(_ events: [BucketEvent]) async -> DeliveryResult {
        let all = events.map { CloudEvent($0, bucket: bucket, source: source) }
        guard let first = all.first, let last = all.last else { return .delivered }
        let body: [UInt8]
        var fields = HeaderFields()
        if subscription.mode == .binary {
            fields = first.fields
            fields.append("content-type", "application/json")
            body = first.data
        } else if subscription.batch > 1 {
            // Also for one event, so that the receiver always gets the same type.
            fields.append("content-type", CloudEvent.batchMediaType + "; charset=utf-8")
            body = CloudEvent.batch(all)
        } else {
            fields.append("content-type", CloudEvent.mediaType + "; charset=utf-8")
            body = first.json
        }
        let id = all.count == 1 ? first.id : "\(first.id)_\(last.id)"
        let now = SystemClock.seconds()
        let signed =
            keys.withLock { $0 }?.fields(id: id, timestamp: now, body: body)
            ?? WebhookKeys.unsigned(id: id, timestamp: now)
        for (name, value) in signed.all(withPrefix: "") {
            fields.append(name: name, String(decoding: value, as: UTF8.self))
        }
        let response: Head
        do throws(ClientError) {
            response = try await call(request("POST", fields, .bytes(body)))
        } catch {
            return .failed(cause: error.cause)
        }
        switch response.status {
        case 200..<300: return .delivered
        case 410: return .gone
        case 429, 503:
            return .failed(cause: "status \(response.status)", retryAfter: Self.silence(response.retryAfter))
        case 300..<400:
            return .failed(cause: "status \(response.status): redirects are not followed")
        default: return .failed(cause: "status \(response.status)")
        }
    }

    /// The part of a response that matters.
    private struct Head {
        var status: Int
        var retryAfter: String?
        var allowedOrigin: String?
        var allowedRate: String?
    }

    private func request(_ method: StaticString, _ own: HeaderFields, _ body: RequestBody) -> ClientRequest {
        var fields = own
        fields.append("user-agent", "sluice")
        for (name, value) in subscription.fields.all(withPrefix: "") {
            fields.append(name: name, String(decoding: value, as: UTF8.self))
        }
        return ClientRequest(method, subscription.target, fields: fields, body: body, isRepeatable: false)
    }

    /// Sends a request on the current loop. Returns after at most the timeout, and a second for the body.
    private func call(_ request: ClientRequest) async throws(ClientError) -> Head {
        guard let loop = EventLoop.current else { throw ClientError(.cancelled, "not on a loop") }
        let trace = traces?.begin() ?? RequestTrace(.root(isSampled: false), state: nil, hasSpans: false)
        let exchange = RequestTrace.$current.withValue(trace) { upstream.start(request) }
        var isLate = false
        let deadline = LoopTimer {
            isLate = true
            exchange.cancel()
        }
        loop.arm(deadline, after: subscription.timeout)
        defer { loop.disarm(deadline) }
        let response: ClientResponse
        do throws(ClientError) {
            response = try await exchange.response()
        } catch {
            throw isLate ? ClientError(.timedOut, "no response in time", mayHaveReached: true) : error
        }
        let head = Head(
            status: response.status, retryAfter: response.fields["retry-after"],
            allowedOrigin: response.fields["webhook-allowed-origin"],
            allowedRate: response.fields["webhook-allowed-rate"])
        loop.disarm(deadline)
        loop.arm(deadline, after: WebhookSender.bodyTimeout)
        // What is longer, or slower, costs the sink its connection.
        do throws(ClientError) { _ = try await response.collect(limit: WebhookSender.maximumBody) } catch {}
        return head
    }

    /// The microseconds of a `Retry-After`.
    static func silence(_ field: String?, now: Int64 = SystemClock.seconds()) -> Int64? {
        guard let field else { return nil }
        let seconds: Int64
        if !field.isEmpty, field.utf8.allSatisfy(ASCII.isDigit) {
            // More than an hour is an hour.
            seconds = Int64(UInt32(field) ?? .max)
        } else if let date = HTTPDate.parse(field.utf8.span, now: now) {
            seconds = max(0, date - now)
        } else {
            return nil
        }
        return min(seconds * 1_000_000, DeliveryLimits.maximumDelay)
    }

    // MARK: Handshake

    /// What a sink has permitted.
    enum Permission: Equatable {
        /// - Parameter interval: The shortest time between two requests, in microseconds; 0 without a limit.
        case granted(interval: Int64)
        case refused(cause: String)
    }

    /// Asks the sink whether it wants events (CloudEvents, HTTP 1.1 Web Hooks, section 4).
    func askPermission(origin: String) async -> Permission {
        var fields = HeaderFields()
        fields.append("webhook-request-origin", origin)
        let response: Head
        do throws(ClientError) {
            response = try await call(request("OPTIONS", fields, .none))
        } catch {
            return .refused(cause: error.cause)
        }
        guard response.status / 100 == 2 else { return .refused(cause: "status \(response.status)") }
        let allowed = response.allowedOrigin?.asciiLowercased() ?? ""
        guard BytewiseString.areEqual(allowed, "*") || BytewiseString.areEqual(allowed, origin.asciiLowercased())
        else { return .refused(cause: "WebHook-Allowed-Origin is missing or has another value") }
        guard let rate = response.allowedRate, !BytewiseString.areEqual(rate, "*") else {
            return .granted(interval: 0)
        }
        guard let perMinute = UInt32(rate), perMinute > 0 else {
            return .refused(cause: "WebHook-Allowed-Rate is not a number above 0")
        }
        return .granted(interval: 60_000_000 / Int64(perMinute))
    }
}
