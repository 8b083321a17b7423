import HTTPServer
import System
import Testing

@testable import Gateway
@testable import Telemetry

/// The text exposition format read back strictly, as its specification says.
struct Exposition {
    var kinds: [String: String] = [:]
    var help: [String: String] = [:]
    /// By name and labels as they are written.
    var samples: [String: Double] = [:]

    init(_ bytes: [UInt8]) throws {
        let text = String(decoding: bytes, as: UTF8.self)
        try #require(text.hasSuffix("\n"))
        var family = ""
        for line in text.split(separator: "\n", omittingEmptySubsequences: false).dropLast() {
            if line.hasPrefix("# HELP ") {
                let parts = line.dropFirst(7).split(separator: " ", maxSplits: 1)
                family = String(parts[0])
                try #require(help.updateValue(String(parts[1]), forKey: family) == nil)
            } else if line.hasPrefix("# TYPE ") {
                let parts = line.dropFirst(7).split(separator: " ")
                try #require(parts.count == 2 && parts[0] == family)
                kinds[family] = String(parts[1])
            } else {
                let space = try #require(line.lastIndex(of: " "))
                let key = String(line[..<space])
                try #require(key.wholeMatch(of: Exposition.sample) != nil, "\(line)")
                let suffixes = kinds[family] == "histogram" ? ["_bucket", "_sum", "_count"] : [""]
                let name = key.prefix { $0 != "{" }
                try #require(suffixes.contains { name == family + $0 }, "\(line)")
                let value = try #require(Exposition.number(line[line.index(after: space)...]))
                try #require(samples.updateValue(value, forKey: key) == nil, "twice: \(key)")
            }
        }
    }

    /// Safety: a regular expression without captured state is never changed.
    nonisolated(unsafe) private static let sample =
        /[a-zA-Z_:][a-zA-Z0-9_:]*(\{[a-zA-Z_][a-zA-Z0-9_]*="([^"\\]|\\[\\"n])*"(,[a-zA-Z_][a-zA-Z0-9_]*="([^"\\]|\\[\\"n])*")*\})?/

    private static func number(_ text: Substring) -> Double? {
        text == "+Inf" ? .infinity : text == "-Inf" ? -.infinity : Double(text)
    }
}

@Suite struct PrometheusTests {
    @Test func everyKindIsShownOnceInOrder() throws {
        let registry = PrometheusRegistry()
        registry.describe("b_total", "With \\ and\nnewline")
        registry.counter("b_total", [("y", "2"), ("x", "1")]).increment()
        registry.counter("b_total", [("x", "1"), ("y", "2")]).increment(by: 4)
        registry.counter("b_total", [("x", "0"), ("y", "2")]).increment()
        registry.counter("b_total", [("x", "0"), ("y", "2")]).increment(by: -1)
        registry.describe("a.seconds", "Seconds", bounds: [0.5])
        registry.histogram("a.seconds").recordNanoseconds(250_000_000)
        registry.collect { $0.single("g", .gauge, "A gauge", 2) }
        let text = String(decoding: registry.exposition(), as: UTF8.self)
        #expect(
            text == """
                # HELP a_seconds Seconds
                # TYPE a_seconds histogram
                a_seconds_bucket{le="0.5"} 1
                a_seconds_bucket{le="+Inf"} 1
                a_seconds_sum 0.25
                a_seconds_count 1
                # HELP b_total With \\\\ and\\nnewline
                # TYPE b_total counter
                b_total{x="0",y="2"} 1
                b_total{x="1",y="2"} 5
                # HELP g A gauge
                # TYPE g gauge
                g 2

                """)
    }

    @Test func aLabelValueCannotEndItsLine() throws {
        let registry = PrometheusRegistry()
        registry.counter("c_total", [("1 x", "a\"} 1\nforged 2\\")]).increment()
        let read = try Exposition(registry.exposition())
        #expect(read.samples == [#"c_total{_1_x="a\"} 1\nforged 2\\"}"#: 1])
    }

    @Test func aHistogramCountsEachValueInItsBucketAndAllAbove() throws {
        let registry = PrometheusRegistry()
        let timer = registry.histogram("t_seconds")
        // Below the first bound, exactly on one, between two, and above the last.
        for nanoseconds in [1000, 1_000_000, 2_000_000, 400_000_000_000] as [Int64] {
            timer.recordNanoseconds(nanoseconds)
        }
        let read = try Exposition(registry.exposition())
        #expect(read.kinds == ["t_seconds": "histogram"])
        #expect(read.samples[#"t_seconds_bucket{le="0.0001"}"#] == 1)
        #expect(read.samples[#"t_seconds_bucket{le="0.0005"}"#] == 1)
        #expect(read.samples[#"t_seconds_bucket{le="0.001"}"#] == 2)
        #expect(read.samples[#"t_seconds_bucket{le="0.0025"}"#] == 3)
        #expect(read.samples[#"t_seconds_bucket{le="300"}"#] == 3)
        #expect(read.samples[#"t_seconds_bucket{le="+Inf"}"#] == 4)
        #expect(read.samples["t_seconds_count"] == 4)
        let sum = try #require(read.samples["t_seconds_sum"])
        #expect(abs(sum - 400.003001) < 1e-9)
        #expect(read.samples.count == PrometheusRegistry.durationBounds.count + 3)
    }

    @Test func aDuplicateNameOfAnotherKindIsNotShown() throws {
        let registry = PrometheusRegistry()
        registry.counter("x").increment()
        registry.histogram("x", [("a", "b")]).recordNanoseconds(7)
        #expect(try Exposition(registry.exposition()).samples == ["x": 1])
    }

    @Test(
        "The format follows Accept",
        arguments: [
            (nil, PrometheusText.Format.text), ("", .text), ("*/*", .text), ("text/plain", .text),
            ("application/openmetrics-text", .openMetrics),
            ("Application/OpenMetrics-Text; Version=1.0.0; Q=0.5 , */*;q=0.1", .openMetrics),
            ("application/openmetrics-text;q=0", .text),
            ("application/openmetrics-text;q=x", .text),
            ("application/openmetrics-text;q=0.3,text/plain;q=0.5", .text),
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
                    + "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
                .openMetrics
            ),
        ])
    func negotiation(accept: String?, format: PrometheusText.Format) {
        #expect(PrometheusText.Format(accept: accept) == format)
    }

    @Test func openMetricsHasExamples() throws {
        let registry = PrometheusRegistry()
        registry.describe("t_seconds", "A \"quoted\" text", bounds: [0.5, 1])
        registry.describe("n_total", "Number")
        registry.counter("n_total").increment()
        registry.counter("other").increment()
        let histogram = registry.histogram("t_seconds", [("a", "b")])
        let trace = String(repeating: "ab", count: 16)
        histogram.recordNanoseconds(250_000_000)
        histogram.recordNanoseconds(750_000_000, trace: "first")
        histogram.recordNanoseconds(1_000_000_000, trace: trace)
        let lines = String(decoding: registry.exposition(.openMetrics), as: UTF8.self)
            .split(separator: "\n").map(String.init)
        let bucket = try #require(
            lines.first { $0.hasPrefix(#"t_seconds_bucket{a="b",le="1.0"} 3"#) })
        let parts = bucket.split(separator: " ")
        #expect(parts[2...3] == ["#", "{trace_id=\"\(trace)\"}"])
        #expect(parts[4] == "1")
        #expect(abs(try #require(Double(parts[5])) - Double(SystemClock.seconds())) < 3600)
        #expect(
            lines.filter { $0 != bucket } == [
                "# HELP n Number", "# TYPE n counter", "n_total 1", "# HELP other other",
                "# TYPE other unknown", "other 1", #"# HELP t_seconds A \"quoted\" text"#,
                "# TYPE t_seconds histogram", #"t_seconds_bucket{a="b",le="0.5"} 1"#,
                #"t_seconds_bucket{a="b",le="+Inf"} 3"#, #"t_seconds_sum{a="b"} 2"#,
                #"t_seconds_count{a="b"} 3"#, "# EOF",
            ])
        let plain = try Exposition(registry.exposition())
        #expect(plain.samples[#"t_seconds_bucket{a="b",le="1"}"#] == 3)
    }

    @Test func threadsLoseNoCount() async throws {
        let registry = PrometheusRegistry()
        let timer = registry.histogram("t")
        await withTaskGroup { group in
            for _ in 0..<4 {
                group.addTask { for _ in 0..<10_000 { timer.recordNanoseconds(1_000_000_000) } }
            }
        }
        let read = try Exposition(registry.exposition())
        #expect(read.samples["t_count"] == 40_000)
        #expect(read.samples["t_sum"] == 40_000)
    }
}

@Suite struct GatewayMetricsTests {
    @Test func requestsAreCountedByOperationAndClass() throws {
        let registry = PrometheusRegistry()
        let observer = GatewayObserver(
            accessLog: nil, metrics: RequestMetrics(registry, buckets: ["photos"]))
        observer.finished(record())
        observer.finished(record(status: 499))
        let other = record(status: 404)
        other.operation = nil
        observer.finished(other)
        for kind in RequestedAccess.Kind.allCases {
            let own = record(status: 503)
            own.operation = kind
            observer.finished(own)
        }
        let samples = try Exposition(registry.exposition()).samples
        func count(_ family: String, _ more: String) -> Double? {
            samples["sluice_\(family){bucket=\"photos\",\(more)}"]
        }
        #expect(count("requests_total", #"operation="get",status="2xx""#) == 1)
        #expect(count("requests_total", #"operation="get",status="4xx""#) == 1)
        #expect(count("requests_total", #"operation="none",status="4xx""#) == 1)
        for kind in RequestedAccess.Kind.allCases {
            #expect(count("requests_total", "operation=\"\(kind)\",status=\"5xx\"") == 1)
        }
        #expect(count("request_body_bytes_total", #"operation="get""#) == 21)
        #expect(count("response_body_bytes_total", #"operation="get""#) == 3072)
        #expect(count("request_duration_seconds_count", #"operation="get""#) == 3)
    }

    @Test func bucketsAreBounded() throws {
        let registry = PrometheusRegistry()
        let names = (0..<RequestMetrics.maximumBuckets + 2).map { "b\($0)" }
        let metrics = RequestMetrics(registry, buckets: names)
        for bucket in names + [nil, "unknown"] {
            let one = record()
            one.bucket = bucket
            metrics.count(one)
        }
        let samples = try Exposition(registry.exposition()).samples
        func count(_ bucket: String) -> Double? {
            samples["sluice_requests_total{bucket=\"\(bucket)\",operation=\"get\",status=\"2xx\"}"]
        }
        #expect(count("b0") == 1 && count(names[RequestMetrics.maximumBuckets - 1]) == 1)
        #expect(count("more") == 2 && count("none") == 2)
        #expect(count(names[RequestMetrics.maximumBuckets]) == nil)
    }

    @Test func serverAndProcessAreShownAtScrapeTime() throws {
        let registry = PrometheusRegistry()
        registry.addServer(ServerStatistics(), operators: ServerStatistics())
        registry.addProcess(BuildInfo(version: "1.2.3", date: "2026-01-31"))
        let sink = LogSink(descriptor: 2, format: .json, capacity: 0)
        sink.append("lost")
        registry.addLog(sink)
        sink.close()
        let read = try Exposition(registry.exposition())
        for kind in LimitKind.allCases {
            #expect(read.samples["sluice_limit_hits_total{limit=\"\(kind)\"}"] == 0)
        }
        #expect(read.samples["sluice_connections_open"] == 0)
        for object in LiveObject.allCases {
            for listener in ["public", "operator"] {
                let labels = "listener=\"\(listener)\",object=\"\(object.rawValue)\""
                #expect(read.samples["sluice_live_objects{\(labels)}"] == 0)
            }
        }
        #expect(read.samples["sluice_log_lines_dropped_total"] == 1)
        let swift = BuildInfo(version: "").swift
        let build = "version=\"1.2.3\",swift=\"\(swift)\",commit=\"unknown\",date=\"2026-01-31\""
        #expect(read.samples["sluice_build_info{\(build)}"] == 1)
        #expect(try #require(read.samples["process_resident_memory_bytes"]) > 1_000_000)
        #expect(try #require(read.samples["process_open_fds"]) >= 3)
        #expect(try #require(read.samples["process_max_fds"]) >= 3)
        #expect(try #require(read.samples["process_cpu_seconds_total"]) > 0)
        let started = try #require(read.samples["process_start_time_seconds"])
        #expect(abs(started - Double(SystemClock.seconds())) < 3600)
        for (name, kind) in read.kinds { #expect(name.hasSuffix("_total") == (kind == "counter")) }
    }
}
