import HTTPClient
import Testing

@testable import Gateway
@testable import Telemetry

@Suite struct UpstreamMetricsTests {
    private func record(
        _ method: StaticString, _ status: Int?, _ error: ClientError.Code? = nil,
        firstByte: UInt64? = 2_000_000, of upstream: String = "bucket a"
    ) -> UpstreamRecord {
        let settings = UpstreamSettings(name: upstream, origin: Origin(.http, host: "localhost"))
        return UpstreamRecord(
            upstream: Upstream(settings), method: method, status: status, error: error, attempt: 1,
            timeToFirstByte: firstByte, duration: 3_000_000)
    }

    @Test func attemptsAreCountedByMethodAndOutcome() throws {
        let registry = PrometheusRegistry()
        let metrics = UpstreamMetrics(registry)
        for status in [200, 206, 404, 503] { metrics.finished(record("GET", status)) }
        metrics.finished(record("GET", 200, .connectionLost))
        metrics.finished(record("PUT", nil, .timedOut, firstByte: nil))
        metrics.finished(record("GET", 200, of: "bucket b"))
        let samples = try Exposition(registry.exposition()).samples
        func count(_ method: String, _ outcome: String, of bucket: String = "a") -> Double? {
            samples[
                "sluice_upstream_requests_total{method=\"\(method)\",outcome=\"\(outcome)\",upstream=\"bucket \(bucket)\"}"
            ]
        }
        #expect(count("GET", "2xx") == 2)
        #expect(count("GET", "2xx", of: "b") == 1)
        #expect(count("GET", "4xx") == 1)
        #expect(count("GET", "5xx") == 1)
        #expect(count("GET", "connection-lost") == 1)
        #expect(count("PUT", "timed-out") == 1)
        let get = "{method=\"GET\",upstream=\"bucket a\"}"
        let put = "{method=\"PUT\",upstream=\"bucket a\"}"
        #expect(samples["sluice_upstream_request_duration_seconds_count" + get] == 5)
        #expect(samples["sluice_upstream_request_duration_seconds_sum" + get] == 0.015)
        #expect(samples["sluice_upstream_first_byte_seconds_count" + get] == 5)
        #expect(samples["sluice_upstream_first_byte_seconds_count" + put] == 0)
    }

    @Test func everyUpstreamHasItsGauges() throws {
        let registry = PrometheusRegistry()
        registry.addUpstreams([])
        #expect(!String(decoding: registry.exposition(), as: UTF8.self).contains("upstream"))
        let upstreams = ["a", "b"].map {
            Upstream(
                UpstreamSettings(name: "bucket \($0)", origin: Origin(.http, host: "localhost")))
        }
        registry.addUpstreams(upstreams)
        let samples = try Exposition(registry.exposition()).samples
        for name in [
            "retries_total", "requests_in_flight", "requests_queued", "connections_open",
            "connections_idle", "breaker_open",
        ] {
            for bucket in ["a", "b"] {
                #expect(samples["sluice_upstream_\(name){upstream=\"bucket \(bucket)\"}"] == 0)
            }
        }
    }
}
