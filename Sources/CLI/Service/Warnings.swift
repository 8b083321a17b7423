import Configuration
import Gateway
import Glibc
import Logging
import OpenSSL
import System
import Telemetry
import Wire

extension Configuration {
    /// The files that hold secrets.
    private var secretFiles: [String] {
        var settings = [
            https.key, operatorToken, links.keys, uploads.keys, s3.keys, s3.sessionKeys, firestore.credentials,
            traces.headers,
            fileWithSecret,
        ]
        for bucket in buckets {
            settings += [bucket.tls.clientKey, bucket.gcs.credentials, bucket.s3.credentials]
        }
        for sink in events { settings += [sink.keys, sink.headers, sink.tls.clientKey] }
        // A setting without a file has another word, such as `default`.
        let paths = settings.compactMap(\.self).filter { $0.utf8.first == UInt8(ascii: "/") }
        return Set(paths.map { BytewiseString($0) }).sorted().map(\.text)
    }

    /// The files with secrets that every user of this machine can read. Those of a group are its administrator's choice.
    var exposedFiles: [String] {
        secretFiles.filter { path in
            var status = stat()
            return stat(path, &status) == 0 && status.st_mode & S_IROTH != 0
        }
    }
}

extension TLSContext {
    /// The seconds before the end in which an expiry is near: a sixth of the certificate's life, at most 14 days.
    private static func notice(_ begin: Int64, _ end: Int64) -> Int64 {
        min(14 * 86_400, (end - begin) / 6)
    }

    /// Why the certificate can't be used, or will soon not be; nil if it is valid for a while.
    /// - Parameter now: Seconds since 1970.
    func expiryWarning(now: Int64 = SystemClock.seconds()) -> String? {
        guard let (begin, end) = validity else { return nil }
        if now > end { return "the certificate has expired on \(TLSContext.text(end))" }
        if now < begin { return "the certificate is not valid before \(TLSContext.text(begin))" }
        guard end - now < TLSContext.notice(begin, end) else { return nil }
        return "the certificate expires soon, on \(TLSContext.text(end))"
    }

    fileprivate static func text(_ seconds: Int64) -> String {
        HTTPDate.rfc3339(milliseconds: seconds * 1000)
    }
}

extension Service {
    /// Warns of secrets that others can read.
    func warnOfFiles() {
        for path in started.exposedFiles {
            logger.warning(
                "every user can read a file that only its owner should read",
                metadata: ["path": "\(path)"])
        }
        warnOfExpiry()
    }

    /// Warns of a certificate that has expired or will expire soon, once of each. Called again and again.
    func warnOfExpiry() {
        let news = expiryWarning.withLock { last -> String? in
            let warning = credentials?.current.expiryWarning()
            defer { last = warning }
            return last == warning ? nil : warning
        }
        guard let warning = news else { return }
        logger.warning("certificate", metadata: ["finding": "\(warning)"])
    }

    /// Shows until when the certificate is valid.
    func showCertificate(in registry: PrometheusRegistry, _ health: Health) {
        let expiry: @Sendable () -> String? = { [credentials] in
            credentials?.current.validity.map { "valid until \(TLSContext.text($0.end))" }
        }
        health.addNote("certificates", detail: expiry) { [credentials, certificateFailure] in
            certificateFailure.withLock { $0 } ?? credentials?.current.expiryWarning()
        }
        guard let credentials else { return }
        registry.collect { text in
            guard let end = credentials.current.validity?.end else { return }
            text.single(
                "sluice_certificate_expiry_timestamp_seconds", .gauge,
                "The last second in which the TLS certificate is valid, since the Unix epoch.", Int(end))
        }
    }

    /// Logs each change of readiness with its reason. It is checked twice a second, so that a line comes within one.
    func watchHealth(_ health: Health, on loop: EventLoop) {
        health.onChange { [logger] report in
            let failures = report.results.compactMap { result in
                result.failure.map { "\(result.name): \($0)" }
            }
            if failures.isEmpty {
                logger.info("ready")
            } else {
                logger.error("not ready", metadata: ["cause": "\(failures.joined(separator: "; "))"])
            }
        }
        repeated(every: 500_000_000, on: loop) { Task { await health.watch() } }
    }
}
