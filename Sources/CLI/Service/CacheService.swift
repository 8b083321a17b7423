import Buckets
import Configuration
import Gateway
import Logging
import System
import Telemetry
import Wire

extension Configuration {
    /// The read cache, whose disk is opened in the background; nil if it is switched off.
    func readCache(_ pool: BlockingPool, _ logger: Logger) -> ReadCache? {
        guard let settings = cache.settings else { return nil }
        return ReadCache(settings, pool: pool) { state, cause in
            var metadata: Logger.Metadata = ["state": "\(state.rawValue)", "directory": "\(settings.directory)"]
            if let cause { metadata["cause"] = "\(cause)" }
            switch state {
            case .opening, .open: logger.info("read cache", metadata: metadata)
            case .full, .broken: logger.warning("read cache", metadata: metadata)
            }
        }
    }
}

extension Service {
    /// Shows the read cache, if there is one: its metrics, and a note while its disk is not in use.
    func showCache(in registry: PrometheusRegistry, _ health: Health) {
        guard let cache else { return }
        registry.addCache(cache)
        health.addNote("cache") { cache.note }
    }
}
