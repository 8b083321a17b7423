import Buckets
import Configuration
import Gateway
import Logging
import System
import Wire

extension Configuration {
    /// The keys for the tokens of upload sessions; nil if none are configured.
    /// - Throws: An error with the file's name.
    func uploadKeys() throws -> UploadKeys? {
        try uploads.keys.map { try TextFile.read($0, as: UploadKeys.init(text:)) }
    }
}

extension Service {
    /// The buckets whose stores have upload sessions.
    var sessionDrivers: [(name: String, driver: any SessionDriver)] {
        started.buckets.compactMap { bucket in
            (stores.drivers[bucket.name] as? any SessionDriver).map { (bucket.name, $0) }
        }
    }

    /// Counts the sessions of an earlier process, and removes expired ones from time to time.
    func startUploads(on loop: EventLoop) {
        if started.uploads.keys == nil, !sessionDrivers.isEmpty {
            logger.warning(
                "uploads.keys is not set: upload sessions end with this process, and are not found at others")
        }
        // Sessions in a service are counted as they are used: to read them all could take long.
        let local = sessionDrivers.filter { stores.upstreams[$0.name] == nil }
        Task(executorPreference: loop) { [uploads, logger] in
            for failure in await uploads.load(local) {
                logger.error("upload sessions not counted", metadata: ["cause": "\(failure)"])
            }
        }
        // A slow store does not make sweeps pile up.
        let isSweeping = Lock(false)
        repeated(every: started.uploads.sweepInterval, on: loop) { [self] in
            let isFree = isSweeping.withLock { isSweeping in
                defer { isSweeping = true }
                return !isSweeping
            }
            guard isFree else { return }
            Task(executorPreference: loop) { [self] in
                await sweepUploads()
                isSweeping.withLock { $0 = false }
            }
        }
    }

    /// Removes expired upload sessions of all buckets.
    private func sweepUploads() async {
        for (name, driver) in sessionDrivers {
            do throws(BucketError) {
                let count = try await uploads.sweep(name, driver)
                if count > 0 {
                    logger.info(
                        "expired upload sessions removed",
                        metadata: ["bucket": "\(name)", "sessions": "\(count)"])
                }
            } catch {
                logger.warning(
                    "expired upload sessions not removed",
                    metadata: ["bucket": "\(name)", "cause": "\(error)"])
            }
        }
    }

    func reloadUploadKeys() {
        uploadFiles.look()
        do {
            if let keys = try started.uploadKeys() { uploads.replace(keys) }
            uploadFailure.withLock { $0 = nil }
            logger.info("keys of uploads loaded")
        } catch {
            uploadFailure.withLock { $0 = "\(error)" }
            logger.error(
                "keys of uploads not loaded; the last good ones stay",
                metadata: ["cause": "\(error)"])
        }
    }
}
