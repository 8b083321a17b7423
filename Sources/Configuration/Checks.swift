import Gateway
import Glibc
import SecurityRules
import Wire

/// Cross-field validation.
extension ConfigurationReader {
    mutating func check() {
        checkHTTPS()
        checkListeners()
        checkBuckets()
        checkStores()
        checkRules()
        checkCallers()
        checkS3()
        checkConsole()
        checkEvents()
        checkCache()
        checkLimits()
        checkTraces()
    }

    /// Reports an error at the last of `keys` that is overridden, or else at the first of `keys` that the file has, or
    /// else at the first of `others`. Reports nothing if one of the values could not be read: that error is already
    /// reported.
    mutating func report(
        _ error: SettingError, at keys: String..., otherwise others: [String] = []
    ) {
        guard broken.isDisjoint(with: keys) else { return }
        let found = keys.compactMap { origins[$0] }
        let blamed = found.last { $0.isOverride } ?? found.first
        report(error, blamed ?? others.compactMap { origins[$0] }.first)
    }

    private mutating func checkHTTPS() {
        let https = result.https
        let isSelfSigned = https.certificate == Configuration.HTTPS.selfSigned
        for (name, file) in [("certificate", https.certificate), ("key", https.key)] {
            let path = "listen.https.\(name)"
            switch (https.address ?? result.s3.https, file) {
            case (nil, nil): break
            case (nil, _):
                report(
                    SettingError(message: "'\(path)' requires 'listen.https.address'"),
                    at: path)
            case (_, nil) where isSelfSigned: break
            case (_, nil):
                let hint = name == "key" ? "" : "; 'self-signed' makes a throw-away one"
                report(
                    SettingError(message: "'\(path)' is missing: HTTPS needs it\(hint)"),
                    at: "listen.https.address", "listen.s3.https", otherwise: ["listen.https"])
            case (_, _) where isSelfSigned:
                if name == "certificate" { break }
                report(
                    SettingError(
                        message: "'\(path)' can't be combined with a self-signed certificate"),
                    at: path)
            case (_, let file?):
                guard let reason = Self.whyUnreadable(file) else { break }
                report(SettingError(message: "'\(path)': \(file) can't be read: \(reason)"), at: path)
            }
        }
    }

    static func whyUnreadable(_ file: String) -> String? {
        let descriptor = open(file, O_RDONLY | O_CLOEXEC)
        guard descriptor >= 0 else { return String(cString: strerror(errno)) }
        defer { close(descriptor) }
        var status = stat()
        guard fstat(descriptor, &status) == 0, status.st_mode & S_IFMT != S_IFREG else {
            return nil
        }
        return "not a file"
    }

    private mutating func checkListeners() {
        if result.http == nil, result.https.address == nil, result.s3.http == nil, result.s3.https == nil {
            report(
                SettingError(
                    message:
                        "nothing is served: 'listen.http' and 'listen.https.address' are both off"),
                at: "listen.http", "listen.https.address", otherwise: ["listen"])
        }
        let all = [
            ("listen.http", result.http), ("listen.https.address", result.https.address),
            ("listen.operator", result.operatorAddress), ("listen.s3.http", result.s3.http),
            ("listen.s3.https", result.s3.https), ("listen.console", result.console.address),
        ]
        let parsed = all.compactMap { key, text in
            text.flatMap { ListenAddress($0) }.map { (key, $0) }
        }
        for (index, (key, address)) in parsed.enumerated() {
            for (earlier, other) in parsed[..<index] where address.overlaps(other) {
                report(SettingError(message: "'\(earlier)' and '\(key)' listen on the same address"), at: earlier, key)
            }
        }
    }

    private mutating func checkBuckets() {
        if result.buckets.isEmpty, broken.isDisjoint(with: ["", "buckets"]) {
            report(
                SettingError(
                    message:
                        "no bucket: 'buckets: { NAME: { directory: { path: PATH } } }' is missing"),
                at: "buckets")
        }
        for bucket in result.buckets {
            let path = "buckets.\(bucket.name)"
            guard broken.isDisjoint(with: ["", path]) else { continue }
            if bucket.rules == nil, result.rules == nil,
                broken.isDisjoint(with: ["rules", path + ".rules"])
            {
                report(
                    SettingError(
                        message: "bucket '\(bucket.name)' has no rules, so it is not served; 'rules: none' serves "
                            + "it with everything open: whoever reaches the listeners can read, list, replace and "
                            + "delete all of it"), at: path)
            }
        }
    }

    private mutating func checkRules() {
        let files =
            [("rules", result.rules), ("shadowRules", result.shadowRules)]
            + result.buckets.flatMap { bucket in
                let path = "buckets.\(bucket.name)"
                return [
                    ("\(path).rules", bucket.rules), ("\(path).shadowRules", bucket.shadowRules),
                ]
            }
        for (key, file) in files {
            guard let file, file != Configuration.openToAll else { continue }
            do throws(RulesFileError) { _ = try Ruleset.load(file: file) } catch {
                report(SettingError(message: "'\(key)': \(error)"), at: key)
            }
        }
    }

    private mutating func checkLimits() {
        let limits = result.limits
        func order(_ small: String, _ smallValue: Int, _ large: String, _ largeValue: Int) {
            guard smallValue > largeValue else { return }
            let units = Units.bytes
            report(
                SettingError(
                    message:
                        "'limits.\(small)' (\(units.text(UInt64(smallValue)))) is larger than "
                        + "'limits.\(large)' (\(units.text(UInt64(largeValue))))"),
                at: "limits.\(small)", "limits.\(large)")
        }
        let upstream = result.upstream
        if upstream.retryDelay > upstream.maximumRetryDelay {
            let text = Units.durations.text
            report(
                SettingError(
                    message:
                        "'upstream.retryDelay' (\(text(upstream.retryDelay))) is larger than "
                        + "'upstream.maximumRetryDelay' (\(text(upstream.maximumRetryDelay)))"),
                at: "upstream.retryDelay", "upstream.maximumRetryDelay")
        }
        order("initialWindow", limits.initialWindow, "maximumWindow", limits.maximumWindow)
        order("initialWindow", limits.initialWindow, "receiveBudget", limits.receiveBudget)
    }
}
