import Glibc

/// What must fit together in the keys of stores.
extension ConfigurationReader {
    mutating func checkStores() {
        for bucket in result.buckets {
            let path = "buckets.\(bucket.name)"
            let isRead = broken.allSatisfy { $0 != path && !$0.hasPrefix(path + ".") }
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
                if !isDefault { reportUseless("firestore.\(key)", "without 'firestore.project'") }
            }
        }
        checkGoogle(result.firestore.endpoint, result.firestore.credentials, "firestore")
    }

    /// What is wrong with the choice of a store.
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
            for key in bucket.given(in: "tls") {
                reportUseless("\(path).\(key)", "for a directory")
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
            reportUseless(first, "with '\(path).credentials'")
        }
        if s3.profile != nil,
            s3.credentials == Configuration.anonymous || !given.isEmpty
        {
            reportUseless("\(path).profile", "without a file of profiles")
        }
    }

    /// Tokens of Google are not sent in clear text: whoever sees one may use it.
    private mutating func checkGoogle(_ endpoint: String?, _ credentials: String, _ path: String) {
        checkFile(credentials, path + ".credentials")
        guard let endpoint, endpoint.hasPrefix("http:"), credentials != Configuration.anonymous
        else { return }
        report(
            SettingError(
                message:
                    "'\(path).endpoint' is in clear text, which takes 'credentials: anonymous': whoever sees a "
                    + "token may use it"),
            at: "\(path).endpoint")
    }

    private mutating func checkTLS(
        of bucket: Configuration.Bucket, _ endpoint: String?, _ path: String
    ) {
        let tls = bucket.tls
        if let endpoint, endpoint.hasPrefix("http:") {
            for key in bucket.given(in: "tls") {
                reportUseless("\(path).\(key)", "with an endpoint in clear text")
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
        for (key, file) in pair + [("certificateAuthorities", tls.certificateAuthorities)] {
            if let file { checkFile(file, "\(path).tls.\(key)") }
        }
    }

    private mutating func checkFile(_ file: String, _ path: String) {
        guard file.hasPrefix("/"), let reason = Self.whyUnreadable(file) else { return }
        report(SettingError(message: "'\(path)': \(file) can't be read: \(reason)"), at: path)
    }

    private mutating func reportUseless(_ path: String, _ why: String) {
        report(SettingError(message: "'\(path)' is of no use \(why)"), at: path)
    }

    // MARK: Directories

    /// Two buckets in one directory would overwrite each other's index. In the cloud several may share one: each
    /// request is decided there.
    private mutating func checkDirectories() {
        let places = result.buckets.compactMap { bucket in
            bucket.directory.map { (bucket.name, Self.resolved($0)) }
        }
        for (index, (name, path)) in places.enumerated() {
            for (other, otherPath) in places[..<index] {
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

    /// The path without symbolic links, as far as it exists.
    private static func resolved(_ path: String) -> String {
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
