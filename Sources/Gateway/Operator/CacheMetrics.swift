import Buckets
import Telemetry
import Wire

extension PrometheusRegistry {
    /// Adds the metrics of the read cache.
    public func addCache(_ cache: ReadCache) {
        collect { cache.report.write(to: &$0) }
    }
}

extension ReadCache.Report {
    func write(to text: inout PrometheusText) {
        writeBuckets(to: &text)
        text.single("sluice_cache_size_bytes", .gauge, "Bytes of the read cache on disk.", size)
        text.single("sluice_cache_slices", .gauge, "Slices of objects in the read cache.", slices)
        text.single("sluice_cache_fills", .gauge, "Reads from services that fill the read cache now.", fills)
        text.single(
            "sluice_cache_joined_fills_total", .counter,
            "Reads that waited for a fill of another request instead of asking the service.", joinedFills)
        text.family("sluice_cache_evicted_slices_total", .counter, "Slices that left the read cache.")
        for (cause, count) in evicted {
            text.sample("sluice_cache_evicted_slices_total", [PrometheusLabel("cause", cause)], count)
        }
        text.single("sluice_cache_written_bytes_total", .counter, "Bytes written to the read cache.", writtenBytes)
        text.family("sluice_cache_state", .gauge, "1 for the state of the read cache's disk.")
        for state in ReadCache.DiskState.allCases {
            let labels = [PrometheusLabel("state", state.rawValue)]
            text.sample("sluice_cache_state", labels, state == self.state ? 1 : 0)
        }
    }

    private func writeBuckets(to text: inout PrometheusText) {
        func family(
            _ name: String, _ help: String, _ label: String, _ values: (Bucket) -> [(String, Int)]
        ) {
            text.family(name, .counter, help)
            for bucket in buckets {
                for (value, count) in values(bucket) {
                    text.sample(name, [PrometheusLabel("bucket", bucket.name), PrometheusLabel(label, value)], count)
                }
            }
        }
        family("sluice_cache_requests_total", "Reads of cached buckets.", "result", \.results)
        family("sluice_cache_bytes_total", "Bytes of objects by where they came from.", "source") {
            [("cache", $0.bytesFromCache), ("service", $0.bytesFromService)]
        }
        family(
            "sluice_cache_asks_total",
            "Requests for an object's metadata: sent to the service, or shared with another.",
            "shared"
        ) { [("false", $0.asks), ("true", $0.sharedAsks)] }
        text.family("sluice_cache_saved_requests_total", .counter, "Requests that were not sent to the service.")
        for bucket in buckets {
            text.sample(
                "sluice_cache_saved_requests_total", [PrometheusLabel("bucket", bucket.name)], bucket.savedRequests)
        }
    }
}
