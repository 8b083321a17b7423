import Gateway
import HTTPServer
import Wire

extension Configuration {
    private static let second: UInt64 = 1_000_000_000
    private static let times = 10_000_000...UInt64(86_400) * second
    private static let gibibyte = 1 << 30

    /// The keys outside of named entries, in the order in which they are printed.
    public static let settings: [Setting<Configuration>] =
        [
            .address(
                "listen.http", \.http,
                "Address of the listener without TLS: HTTP/1.1, and HTTP/2 with prior knowledge."),
            .address(
                "listen.https.address", \.https.address,
                "Address of the TLS listener, with ALPN h2 and http/1.1."),
            .path(
                "listen.https.certificate", \.https.certificate, or: HTTPS.selfSigned,
                "PEM file with the certificate chain; 'self-signed' makes a temporary certificate at start."),
            .path(
                "listen.https.key", \.https.key,
                "PEM file with the certificate's key. Both files are reloaded when they change."),
        ] + clientSettings + S3Configuration.listeners + [
            .address(
                "listen.operator", \.operatorAddress,
                "Address of the operator endpoints: /livez, /readyz, /metrics and /version."),
            ConsoleConfiguration.listener,
            .path(
                "listen.operatorToken", \.operatorToken,
                "File with the token that changes there need (uploads, webhooks, the read cache), at least 16 characters; null "
                    + "needs none."
            ),
            .mode(
                "listen.socketMode", \.socketMode,
                "Permissions of the listeners that are Unix domain sockets."),
            .list(
                "listen.trustedProxies", "addresses, ranges such as 10.0.0.0/8, or unix", \.trustedProxies,
                "Proxies that say who the client is, by X-Forwarded-For, Forwarded or the PROXY protocol; 'unix' is "
                    + "any process at a Unix domain socket.",
                check: proxyFault),
            .choice(
                "listen.forwardedField", TrustedProxies.Field.allCases.map(\.rawValue), \.forwardedField,
                "The field in which they name it; 'auto' is either, and X-Forwarded-For where both name different clients."
            ),
            .integer(
                "threads", 0...256, \.threads,
                "Number of event loops; 0 is one for each available processor."),
            .integer(
                "fileThreads", 1...64, \.fileThreads,
                "Number of threads for blocking file operations."),
            .path(
                "rules", \.rules, or: Configuration.openToAll,
                "A file of Security Rules; 'none' opens every bucket to everybody who can reach the listeners."),
            .path(
                "shadowRules", \.shadowRules,
                "Shadow rules: evaluated beside the rules but never enforced; differences are counted and logged."),
            .choice(
                "log.level", ["trace", "debug", "info", "notice", "warning", "error", "critical"],
                \.logLevel, "The least severe level that is logged."),
            .choice(
                "log.format", ["auto", "text", "json"], \.logFormat,
                "'auto' is text on a terminal and JSON otherwise."),
            .flag("log.access", \.logsAccess, "Whether each request is logged."),
            .flag("log.denials", \.logsDenials, "Whether each denial is logged with its reason."),
            .integer(
                "log.allowedSample", 0...1_000_000, \.allowedSample,
                "One in this many allowed decisions is logged; 0 logs none."),
            .list(
                "cors.origins", "origins such as https://app.example, or \"*\"", \.corsOrigins,
                "Origins whose pages may call the gateway from a browser; an empty list switches CORS off.",
                check: originFault),
            .duration(
                "cors.maximumAge", 0...86_400 * second, \.corsMaximumAge,
                "How long a browser may cache the response to a preflight request."),
            .list(
                "cors.exposedHeaders", "field names, or \"*\"", \.corsExposedHeaders,
                "Response fields that pages may read."),
        ] + TraceConfiguration.settings + linkSettings + UploadConfiguration.settings
        + FirebaseConfiguration.settings + S3Configuration.settings + ConsoleConfiguration.settings
        + EventConfiguration.settings + CacheConfiguration.settings + connectionSettings
        + streamSettings
        + upstreamSettings

    /// Why a text is not an origin: browsers send a scheme, a host and perhaps a port (RFC 6454, section 6.2).
    private static func originFault(_ text: String) -> String? {
        if text == "*" { return nil }
        let host = ["https://", "http://"].first(where: text.hasPrefix).map {
            text.dropFirst($0.count)
        }
        if let host, !host.isEmpty, !host.contains(where: { "/?# ".contains($0) }) { return nil }
        return "expected an origin such as https://app.example, or \"*\", found '\(text)'"
    }

    private static func proxyFault(_ text: String) -> String? {
        if TrustedProxies([text]) != nil { return nil }
        return "expected an address, a range such as 10.0.0.0/8 or 2001:db8::/32 without bits after its length, "
            + "or unix, found '\(text)'"
    }

    private static let connectionSettings: [Setting<Configuration>] = [
        .integer(
            "limits.connections", 1...1_000_000, \.limits.connections,
            "Open connections of each event loop; more are closed at once."),
        .integer(
            "limits.connectionsPerAddress", 1...1_000_000, \.limits.connectionsPerAddress,
            "The same from one address (IPv6: one /64 network). Trusted proxies have no such limit."),
        .integer(
            "limits.waitingPerProxy", 1...1_000_000, \.limits.waitingPerProxy,
            "Connections of each event loop from one trusted proxy that wait for a PROXY header or another first byte."
        ),
        .bytes(
            "limits.headerBytes", 1024...1 << 20, \.limits.headerBytes,
            "Size of a header block, with 32 bytes added for each field; over it status 431."),
        .integer(
            "limits.headerFields", 8...10_000, \.limits.headerFields, "Fields of a header block; over it status 431."),
        .bytes(
            "limits.targetBytes", 64...1 << 20, \.limits.targetBytes,
            "Length of a request target; over it status 414."),
        .bytes(
            "limits.chunkLineBytes", 64...1 << 20, \.limits.chunkLineBytes,
            "Length of a chunk-size line, or of all trailers, of an HTTP/1.1 body; over it status 400."),
        .duration(
            "limits.handshakeTimeout", times, \.limits.handshakeTimeout,
            "Time limit for a TLS handshake, and for the first bytes of a connection."),
        .duration(
            "limits.headerTimeout", times, \.limits.headerTimeout,
            "Time limit from the first byte of a header block to its end; over it status 408, or "
                + "GOAWAY with HTTP/2."),
        .duration(
            "limits.idleTimeout", times, \.limits.idleTimeout,
            "How long a connection without open requests is kept."),
        .duration(
            "limits.progressInterval", times, \.limits.progressInterval,
            "The interval for minimumProgress."),
        .bytes(
            "limits.minimumProgress", 0...UInt64(gibibyte), \.limits.minimumProgress,
            "Bytes of a body that must be transferred in each progressInterval while the gateway "
                + "waits for the peer."),
        .duration(
            "limits.unwantedBodyTimeout", times, \.limits.unwantedBodyTimeout,
            "How long a stream stays open for the rest of the request body after its response was "
                + "sent; then RST_STREAM."),
        .duration(
            "limits.lingerTimeout", times, \.limits.lingerTimeout,
            "How long a closing connection discards what the peer still sends after the last response."),
        .duration(
            "limits.lingerInterval", times, \.limits.lingerInterval,
            "Such a connection is closed earlier if nothing arrives for this time."),
        .duration(
            "limits.drainDelay", 0...3600 * second, \.drainDelay,
            "How long new connections and requests are still served after SIGTERM, while the gateway reports that it "
                + "is not ready."),
        .duration(
            "limits.drainTimeout", times, \.limits.drainTimeout,
            "How long open requests may take after drainDelay; then their connections are closed."),
    ]

    private static let streamSettings: [Setting<Configuration>] = [
        .integer(
            "limits.concurrentStreams", 1...10_000, \.limits.concurrentStreams,
            "Open streams of a connection, and closed ones whose work has not ended; over it REFUSED_STREAM."),
        .integer(
            "limits.requestsPerTurn", 1...10_000, \.limits.requestsPerTurn,
            "Requests that a connection may start in one iteration of its event loop."),
        .duration(
            "limits.turnBudget", 1_000_000...second, \.limits.turnBudget,
            "Time budget of one iteration of an event loop; over it divisible work waits for the next iteration."),
        .integer(
            "limits.resetBurst", 1...1_000_000, \.limits.resetBurst,
            "RST_STREAM frames received in a burst; over it GOAWAY with ENHANCE_YOUR_CALM."),
        .integer(
            "limits.sentResetBurst", 1...1_000_000, \.limits.sentResetBurst,
            "RST_STREAM frames that the peer makes the gateway send in a burst; over it GOAWAY."),
        .integer(
            "limits.resetsPerSecond", 1...1_000_000, \.limits.resetsPerSecond,
            "Frames per second by which both bursts are refilled."),
        .integer(
            "limits.continuations", 1...1000, \.limits.continuations,
            "CONTINUATION frames of one header block; over it GOAWAY."),
        .integer(
            "limits.controlFrameBurst", 1...10_000_000, \.limits.controlFrameBurst,
            "PING, SETTINGS, PRIORITY, WINDOW_UPDATE and unknown frames in a burst; over it GOAWAY."),
        .integer(
            "limits.controlFramesPerSecond", 1...10_000_000, \.limits.controlFramesPerSecond,
            "Frames per second by which that burst is refilled."),
        .integer(
            "limits.emptyFrames", 1...10_000, \.limits.emptyFrames,
            "Empty DATA, HEADERS or CONTINUATION frames in a row; over it GOAWAY."),
        .integer(
            "limits.queuedControlFrames", 16...100_000, \.limits.queuedControlFrames,
            "Control frames queued for a peer that does not read; over it the connection is closed."),
        .bytes(
            "limits.receiveBudget", 1 << 16...gibibyte, \.limits.receiveBudget,
            "Bytes of request bodies that are held in memory, for each event loop."),
        .bytes(
            "limits.initialWindow", 1024...1 << 24, \.limits.initialWindow,
            "Initial receive window of a stream."),
        .bytes(
            "limits.maximumWindow", 1024...1 << 26, \.limits.maximumWindow,
            "Maximum receive window of a stream. Only a long path needs more than 1 MiB."),
    ]
}

extension Configuration.Bucket: ConfigurationEntry {
    static let section = "buckets"
    static var all: WritableKeyPath<Configuration, [Self]> { \.buckets }
    static let example = "{ directory: { path: ./data/photos } }"

    static func fault(ofName name: String) -> String? {
        if BucketName(name) != nil { return nil }
        return "'\(name)' can't be a bucket's name: it has 1 to 222 of a-z, 0-9, '-', '_' and '.', and begins and ends "
            + "with a letter or digit"
    }

    /// The keys of a bucket, below `buckets.NAME`.
    public static let settings: [Setting<Configuration.Bucket>] =
        storeSettings + [
            .path(
                "rules", \.rules, or: Configuration.openToAll,
                "A file of Security Rules; 'none' opens this bucket to everybody who can reach the listeners."),
            .path("shadowRules", \.shadowRules, "Shadow rules of this bucket."),
            .bytes(
                "maximumObjectSize", 1...UInt64(1) << 50, \.maximumObjectSize,
                "Maximum size of an uploaded object; over it status 413."),
            .bytes(
                "maximumStagedBytes", 1...UInt64(1) << 50, \.maximumStagedBytes,
                "Maximum size of all uploads that are not committed yet; over it status 503."),
            .bytes(
                "maximumStagedBytesPerCaller", 1...UInt64(1) << 50, \.maximumStagedBytesPerCaller,
                "The same for one caller; over it status 429. Anonymous callers are keyed by address."),
            .bytes(
                "stagedBytes", 0...UInt64(1) << 50, \.stagedBytes,
                "Maximum size of all open upload sessions of the bucket; over it status 507. 0 is no limit."),
            .flag(
                "firebase", \.firebase,
                "Whether this bucket speaks the Firebase Storage protocol; null is the top-level key."),
            .list(
                "paths.allowed", "patterns with * and **", \.allowedPaths,
                "A name must match one of these patterns; an empty list allows all names.",
                check: patternFault),
            .list(
                "paths.denied", "patterns with * and **", \.deniedPaths,
                "A name must match none of these patterns.", check: patternFault),
            .integer(
                "paths.maximumDepth", 0...1024, \.maximumDepth,
                "Maximum number of segments of a name; 0 is no limit."
            ),
            .flag(
                "paths.refuseDiscouraged", \.rejectsDiscouraged,
                "Whether names with # [ ] * ? are rejected."),
        ] + BucketCache.settings

    /// Why a text is not a valid name pattern; nil if it is.
    static func patternFault(_ text: String) -> String? {
        do throws(PathRules.PatternError) {
            _ = try PathRules(allowed: [text], denied: [])
            return nil
        } catch {
            return "\(error)"
        }
    }
}
