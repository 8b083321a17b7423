import Glibc
import Wire

/// Cross-field validation of the keys of stores.
extension ConfigurationReader {
    mutating func checkStores() {
        for bucket in result.buckets {
            let path = "buckets.\(bucket.name)"
            let isRead = broken.allSatisfy { $0.text != path && !$0.text.hasPrefix(path + ".") }
            guard isRead, !broken.contains("") else { continue }
            if let message = Self.storeFault(of: bucket) {
                report(SettingError(message: message), at: path)
            } else {
                checkKeys(of: bucket, path)
            }
        }
        checkDirectories()
        if result.firestore.project == nil {
            for key in ["endpoint", "credentials"] where origins["firestore.\(key)"] != nil {
                let isDefault =
                    key == "endpoint"
                    ? result.firestore.endpoint == nil
                    : result.firestore.credentials == Configuration.defaultCredentials
                if !isDefault { reportUseless("firestore.\(key)", "requires 'firestore.project'") }
            }
        }
        checkGoogle(result.firestore.endpoint, result.firestore.credentials, "firestore")
    }

    /// Why a bucket's store is missing or ambiguous; nil if it has exactly one.
    private static func storeFault(of bucket: Configuration.Bucket) -> String? {
        let given = bucket.givenStores
        if given.count > 1 {
            let all = given.map { "'\($0)'" }.joined(separator: " and ")
            return "bucket '\(bucket.name)' has more than one store: \(all)"
        }
        guard bucket.store == nil else { return nil }
        let missing =
            given.isEmpty
            ? "one of 'directory: { path: PATH }', 'gcs: { bucket: NAME }' and 's3: { bucket: NAME }'"
            : "'\(given[0]).bucket'"
        return "bucket '\(bucket.name)' has no store: \(missing) is missing"
    }

    private mutating func checkKeys(of bucket: Configuration.Bucket, _ path: String) {
        switch bucket.store {
        case .gcs(let gcs):
            checkGoogle(gcs.endpoint, gcs.credentials, path + ".gcs")
            checkTLS(of: bucket, gcs.endpoint, path)
        case .s3(let s3):
            checkKeys(of: s3, path + ".s3")
            checkFile(s3.credentials, path + ".s3.credentials")
            checkTLS(of: bucket, s3.endpoint, path)
        case .directory, nil:
            for key in bucket.given(in: "tls") + bucket.given(in: "cache") {
                reportUseless("\(path).\(key)", "does not apply to a directory")
            }
        }
    }

    private mutating func checkKeys(of s3: Configuration.S3, _ path: String) {
        let keys = [("accessKeyId", s3.accessKeyID), ("secretAccessKey", s3.secretAccessKey)]
        let given = keys.filter { $0.1 != nil }.map { "\(path).\($0.0)" }
        if given.count == 1 {
            let missing = keys.first { $0.1 == nil }!.0
            report(SettingError(message: "'\(path).\(missing)' is missing"), at: given[0])
        } else if let first = given.first, s3.credentials != Configuration.defaultCredentials {
            reportUseless(first, "can't be combined with '\(path).credentials'")
        }
        if s3.profile != nil,
            s3.credentials == Configuration.anonymous || !given.isEmpty
        {
            reportUseless("\(path).profile", "requires a file of profiles")
        }
    }

    /// Requires TLS for endpoints that get Google tokens: anyone who sees a token can use it.
    private mutating func checkGoogle(_ endpoint: String?, _ credentials: String, _ path: String) {
        checkFile(credentials, path + ".credentials")
        guard let endpoint, endpoint.hasPrefix("http:"), credentials != Configuration.anonymous else { return }
        report(
            SettingError(
                message:
                    "'\(path).endpoint' without TLS requires 'credentials: anonymous': anybody who sees a "
                    + "token can use it"),
            at: "\(path).endpoint")
    }

    private mutating func checkTLS(
        of bucket: Configuration.Bucket, _ endpoint: String?, _ path: String
    ) {
        let tls = bucket.tls
        if let endpoint, endpoint.hasPrefix("http:") {
            for key in bucket.given(in: "tls") {
                reportUseless("\(path).\(key)", "does not apply to an endpoint without TLS")
            }
            return
        }
        let pair = [("clientCertificate", tls.clientCertificate), ("clientKey", tls.clientKey)]
        let given = pair.filter { $0.1 != nil }
        if given.count == 1, let missing = pair.first(where: { $0.1 == nil }) {
            report(
                SettingError(message: "'\(path).tls.\(missing.0)' is missing"),
                at: "\(path).tls.\(given[0].0)")
        }
        let verification = [
            ("certificateAuthorities", tls.certificateAuthorities), ("revoked", tls.revoked),
        ]
        for (key, file) in pair + verification {
            if let file { checkFile(file, "\(path).tls.\(key)") }
        }
    }

    /// Reports a file that can't be read, by the setting that names it.
    mutating func checkFile(_ file: String, _ path: String) {
        guard file.hasPrefix("/"), let reason = Self.whyUnreadable(file) else { return }
        report(SettingError(message: "'\(path)': \(file) can't be read: \(reason)"), at: path)
    }

    private mutating func reportUseless(_ path: String, _ why: String) {
        report(SettingError(message: "'\(path)' \(why)"), at: path)
    }

    // MARK: Directories

    /// Two buckets in one directory would overwrite each other's index. Several buckets may share one cloud bucket,
    /// because the service decides each request.
    private mutating func checkDirectories() {
        let directories = result.buckets.compactMap { bucket in
            bucket.directory.map { (bucket.name, Self.resolved($0)) }
        }
        for (index, (name, path)) in directories.enumerated() {
            for (other, otherPath) in directories[..<index] {
                let isInside = path.hasPrefix(otherPath + "/") || otherPath.hasPrefix(path + "/")
                guard path == otherPath || isInside else { continue }
                let relation =
                    path == otherPath
                    ? "have the same directory" : "have directories inside each other"
                report(
                    SettingError(message: "buckets '\(other)' and '\(name)' \(relation)"),
                    at: "buckets.\(other).directory.path", "buckets.\(name).directory.path")
            }
        }
    }

    /// The path with symbolic links resolved, as far as it exists.
    static func resolved(_ path: String) -> String {
        var head = path
        var tail = ""
        while head != "/" {
            if let real = realpath(head, nil) {
                defer { free(real) }
                return FilePath.normalized(String(cString: real) + tail)
            }
            tail = String(head[head.lastIndex(of: "/")!...]) + tail
            head = FilePath.directory(of: head)
        }
        return FilePath.normalized(tail)
    }
}
