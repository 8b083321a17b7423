import Configuration
import Gateway
import Glibc
import System
import Telemetry
import Wire

extension Service {
    /// Shows readiness, the last reload, and the free space of directories.
    func showState(in registry: PrometheusRegistry, _ health: Health) {
        let directories = started.buckets.compactMap { bucket in
            bucket.directory.map { (name: bucket.name, path: $0) }
        }
        registry.collect { [configurationFailure, configurationTime] text in
            text.single(
                "sluice_ready", .gauge, "Whether no readiness check failed when they last ran.",
                health.isReady ? 1 : 0)
            text.single(
                "sluice_draining", .gauge, "Whether the process is about to end.",
                health.isDraining ? 1 : 0)
            text.single(
                "sluice_configuration_current", .gauge,
                "Whether the last reload of the configuration succeeded.",
                configurationFailure.withLock { $0 } == nil ? 1 : 0)
            text.single(
                "sluice_configuration_timestamp_seconds", .gauge,
                "When the configuration in effect was read, since the Unix epoch.",
                configurationTime.withLock { $0 })
            if directories.isEmpty { return }
            text.family(
                "sluice_directory_free_bytes", .gauge,
                "Space of a directory's file system that the process can use.")
            for directory in directories {
                var status = statvfs()
                guard statvfs(directory.path, &status) == 0 else { continue }
                text.sample(
                    "sluice_directory_free_bytes", [PrometheusLabel("bucket", directory.name)],
                    UInt64(status.f_bavail) * UInt64(status.f_frsize))
            }
        }
    }
}
