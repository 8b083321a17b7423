import Buckets
import Configuration
import Gateway
import Glibc
import OpenSSL
import System
import Telemetry
import Wire

extension Service {
    /// Shows readiness, the last reload, and the space of directories.
    func showState(in registry: PrometheusRegistry, _ health: Health) {
        showSpace(in: registry)
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
                "When the configuration in effect was read, since the Unix epoch.", configurationTime.withLock { $0 })
            text.family("sluice_openssl_info", .gauge, "The loaded OpenSSL; always 1.")
            text.sample("sluice_openssl_info", [PrometheusLabel("version", TLSLibrary.version)], 1)
            if TLSLibrary.isInUse {
                text.family("sluice_tls_info", .gauge, "What computes AES-GCM for TLS; always 1.")
                text.sample("sluice_tls_info", [PrometheusLabel("aes_gcm", "openssl")], 1)
            }
        }
    }

    /// Shows the space of the file systems of directories, as of at most 10 s ago.
    private func showSpace(in registry: PrometheusRegistry) {
        let directories = started.buckets.compactMap { bucket in
            bucket.directory.map { (bucket: bucket.name, path: $0) }
        }
        if directories.isEmpty { return }
        @Sendable func measure() -> [Space] {
            directories.compactMap { Space(bucket: $0.bucket, path: $0.path) }
        }
        let spaces = Lock(measure())
        repeated(every: 10_000_000_000, on: loop) { [pool] in
            // A file system that does not respond must hold up neither a loop nor a scrape.
            pool.submit {
                let now = measure()
                spaces.withLock { $0 = now }
            }
        }
        registry.collect { [stores] text in
            let spaces = spaces.withLock { $0 }
            func family(_ name: String, _ help: String, _ value: (Space) -> UInt64) {
                text.family(name, .gauge, help)
                for space in spaces {
                    text.sample(name, [PrometheusLabel("bucket", space.bucket)], value(space))
                }
            }
            func usage(_ name: String, _ help: String, _ value: (DirectoryUsage) -> Int64) {
                text.family(name, .gauge, help)
                for (bucket, _) in directories {
                    let driver = stores.drivers[BytewiseString(bucket)] as? DirectoryBucket
                    guard let usage = driver?.usage else { continue }
                    text.sample(name, [PrometheusLabel("bucket", bucket)], value(usage))
                }
            }
            usage("sluice_directory_objects", "Objects in a directory.", \.objects)
            usage(
                "sluice_directory_object_bytes",
                "Bytes of the contents of a directory's objects.", \.bytes)
            family(
                "sluice_directory_free_bytes",
                "Space of a directory's file system that the process can use.", \.free)
            family(
                "sluice_directory_size_bytes", "Size of a directory's file system.", \.size)
        }
    }
}

/// The space of the file system of a bucket's directory, in bytes.
private struct Space: Sendable {
    let bucket: String
    let free: UInt64
    let size: UInt64

    /// The file system's own report; nil if there is none.
    init?(bucket: String, path: String) {
        var status = statvfs()
        guard statvfs(path, &status) == 0 else { return nil }
        self.bucket = bucket
        free = UInt64(status.f_bavail) * UInt64(status.f_frsize)
        size = UInt64(status.f_blocks) * UInt64(status.f_frsize)
    }
}
