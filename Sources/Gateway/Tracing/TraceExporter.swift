import HTTPClient
import Logging
import Synchronization
import System
import Telemetry
import Wire

/// Sends spans to a collector by OTLP/HTTP in protobuf. A request never waits for it: its spans go to a queue, and are dropped
/// and counted when the queue is full or the collector does not take them.
public final class TraceExporter: Sendable {
    /// Where spans are sent, and which.
    public struct Settings: Sendable {
        /// The origin and the path to post to.
        public var origin: Origin
        public var target: String
        /// The sampling rate of traces that begin here, 0 to 1. For other traces, the caller's flag decides.
        public var sampleRatio: Double
        /// `service.name`.
        public var serviceName: String
        /// Fields of each request, such as `authorization`; names in lower case.
        public var fields: HeaderFields
        /// A file with the authorities of the collector's certificate; nil for the system's.
        public var certificateAuthorities: String?

        public init(
            origin: Origin, target: String, sampleRatio: Double, serviceName: String,
            fields: HeaderFields = HeaderFields(), certificateAuthorities: String? = nil
        ) {
            self.origin = origin
            self.target = target
            self.sampleRatio = sampleRatio
            self.serviceName = serviceName
            self.fields = fields
            self.certificateAuthorities = certificateAuthorities
        }
    }

    private struct State {
        var spans: [TraceSpan] = []
        /// The task that sends.
        var sending: Task<Void, Never>?
        var isFailing = false
        var isClosed = false
        var exported = 0
        var dropped = 0
    }

    /// The maximum number of queued spans, and of spans in one request.
    static let capacity = 4096
    static let batch = 512
    /// How long ``close()`` waits, in nanoseconds.
    private static let closingLimit: UInt64 = 2_000_000_000

    private let settings: Settings
    private let upstream: Upstream
    private let pool: BlockingPool
    private let loop: EventLoop
    private let logger: Logger
    private let state = Lock(State())

    /// - Parameters:
    ///   - pool: Encodes the spans.
    ///   - loop: Sends them.
    public init(_ settings: Settings, pool: BlockingPool, loop: EventLoop, logger: Logger) {
        self.settings = settings
        self.pool = pool
        self.loop = loop
        self.logger = logger
        var upstream = UpstreamSettings(name: "traces", origin: settings.origin)
        upstream.connectTimeout = 2_000_000_000
        upstream.firstByteTimeout = 5_000_000_000
        upstream.progressTimeout = 5_000_000_000
        upstream.attempts = 2
        upstream.maximumRetryDelay = 1_000_000_000
        upstream.certificateAuthorities = settings.certificateAuthorities
        self.upstream = Upstream(upstream)
    }

    /// The trace of a request: the caller's, or a new one.
    func begin(_ origin: RequestOrigin) -> RequestTrace {
        let context =
            origin.trace?.child()
            ?? .root(isSampled: Double.random(in: 0..<1) < settings.sampleRatio)
        return RequestTrace(context, state: origin.traceState, hasSpans: true)
    }

    /// A trace of work that no client asked for.
    func begin() -> RequestTrace {
        let isSampled = Double.random(in: 0..<1) < settings.sampleRatio
        return RequestTrace(.root(isSampled: isSampled), state: nil, hasSpans: true)
    }

    /// Records the request's span if its trace is sampled.
    func add(_ record: RequestRecord) {
        guard let trace = record.trace, let context = trace.context, context.isSampled else { return }
        add(TraceSpan(record, context, trace))
    }

    /// Records the span of a request to a service if its trace is sampled.
    func add(_ record: UpstreamRecord) {
        guard let trace = record.trace, let context = record.span, context.isSampled else { return }
        add(TraceSpan(record, context, trace))
    }

    private func add(_ span: TraceSpan) {
        let isBatch = state.withLock { state in
            guard !state.isClosed, state.spans.count < TraceExporter.capacity else {
                state.dropped += 1
                return false
            }
            state.spans.append(span)
            return state.spans.count % TraceExporter.batch == 0
        }
        if isBatch { loop.execute { self.flush() } }
    }

    /// Sends the waiting spans, unless that is under way. Called every second.
    public func flush() {
        state.withLock { state in
            guard state.sending == nil, !state.spans.isEmpty else { return }
            state.sending = Task(executorPreference: loop) { await self.sendAll() }
        }
    }

    /// Sends the waiting spans for at most 2 s. Later spans are not sent.
    public func close() async {
        flush()
        guard let sending = state.withLock({ $0.sending }) else { return await end() }
        let alarm = Task {
            try? await Task.sleep(nanoseconds: TraceExporter.closingLimit)
            state.withLock { $0.isClosed = true }
            // The request that the collector does not respond to.
            sending.cancel()
        }
        await sending.value
        alarm.cancel()
        await end()
    }

    private func end() async {
        state.withLock { $0.isClosed = true }
        await upstream.close()
    }

    /// Shows the counts.
    public func show(in registry: PrometheusRegistry) {
        registry.collect { text in
            let (exported, dropped, waiting) = self.state.withLock {
                ($0.exported, $0.dropped, $0.spans.count)
            }
            text.single(
                "sluice_trace_spans_exported_total", .counter, "Spans that the collector has accepted.", exported)
            text.single(
                "sluice_trace_spans_dropped_total", .counter,
                "Spans that were lost: the queue was full, or the collector did not take them.", dropped)
            text.single("sluice_trace_spans_queued", .gauge, "Spans that wait.", waiting)
        }
    }

    private func sendAll() async {
        while let spans = next() {
            do throws(ClientError) {
                let rejected = min(spans.count, try await send(spans))
                state.withLock {
                    $0.exported += spans.count - rejected
                    $0.dropped += rejected
                }
                changed(to: nil)
            } catch {
                state.withLock { $0.dropped += spans.count }
                if Task.isCancelled { continue }
                changed(to: error.cause)
            }
        }
    }

    /// The next spans to send. If there are none, the sending task has ended.
    private func next() -> [TraceSpan]? {
        state.withLock { state in
            if state.isClosed {
                state.dropped += state.spans.count
                state.spans = []
            }
            if state.spans.isEmpty {
                state.sending = nil
                return nil
            }
            let spans = Array(state.spans.prefix(TraceExporter.batch))
            state.spans.removeFirst(spans.count)
            return spans
        }
    }

    /// Posts spans. Returns how many the collector did not accept.
    private func send(_ spans: [TraceSpan]) async throws(ClientError) -> Int {
        let service = settings.serviceName
        let body = await pool.run { spans.exportRequest(service: service, build: .current) }
        let request = ClientRequest(
            "POST", settings.target, fields: settings.fields, body: .bytes(body), isRepeatable: true)
        request.fields.append("content-type", "application/x-protobuf")
        let response = try await upstream.call(request, limit: 1 << 16)
        guard response.status / 100 == 2 else {
            throw ClientError(.malformed, "\(settings.origin) responds with \(response.status)")
        }
        return rejectedSpans(of: response.body)
    }

    /// Logs when sending begins to fail, and when it works again.
    private func changed(to failure: String?) {
        let isChange = state.withLock { state in
            defer { state.isFailing = failure != nil }
            return state.isFailing != (failure != nil)
        }
        guard isChange else { return }
        if let failure {
            logger.warning("traces not exported", metadata: ["cause": "\(failure)"])
        } else {
            logger.info("traces exported again")
        }
    }
}
