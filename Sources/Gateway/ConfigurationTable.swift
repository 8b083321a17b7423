import HTTPServer

extension Configuration {
    private static let second: UInt64 = 1_000_000_000
    private static let times = 10_000_000...UInt64(86_400) * second
    private static let gibibyte = 1 << 30

    /// Every key but those of a bucket, in the order they are printed.
    public static let settings: [Setting<Configuration>] =
        [
            .address(
                "listen.http", \.http,
                "HTTP/2 with prior knowledge and HTTP/1.1, in clear text."),
            .address(
                "listen.https.address", \.https.address,
                "TLS with ALPN h2 and http/1.1; null is off."),
            .path(
                "listen.https.certificate", \.https.certificate, or: HTTPS.selfSigned,
                "PEM chain; 'self-signed' makes a throw-away certificate at start."),
            .path(
                "listen.https.key", \.https.key,
                "PEM key of the certificate. Both files are read again when they change."),
        ] + clientSettings + [
            .address(
                "listen.operator", \.operatorAddress,
                "/livez /readyz /metrics /version."),
            .integer(
                "threads", 0...256, \.threads,
                "Event loops; 0 takes the processors the process may use."),
            .integer(
                "fileThreads", 1...64, \.fileThreads,
                "Threads for file work that may wait for a disk."),
            .path(
                "rules", \.rules, or: Configuration.openToAll,
                "A file of Security Rules; 'none' opens every bucket to everybody who reaches the listeners."
            ),
            .path(
                "shadowRules", \.shadowRules,
                "Rules on trial: asked beside those, never enforced; differences are counted and logged."
            ),
            .choice(
                "log.level", ["trace", "debug", "info", "notice", "warning", "error", "critical"],
                \.logLevel, "The least severe message that is logged."),
            .choice(
                "log.format", ["auto", "text", "json"], \.logFormat,
                "'auto' is text on a terminal and JSON otherwise."),
            .flag("log.access", \.logsAccess, "Whether each request is logged in a line."),
            .flag("log.denials", \.logsDenials, "Whether each denial is logged with its reason."),
            .integer(
                "log.allowedSample", 0...1_000_000, \.allowedSample,
                "One of so many allowed decisions is logged; 0 is none."),
            .list(
                "cors.origins", "origins such as https://app.example, or \"*\"", \.corsOrigins,
                "Pages of these origins may call; none is off.", check: originFault),
            .duration(
                "cors.maximumAge", 0...86_400 * second, \.corsMaximumAge,
                "How long a browser may keep the answer to a preflight."),
            .list(
                "cors.exposedHeaders", "field names, or \"*\"", \.corsExposedHeaders,
                "Response fields that pages may read."),
        ] + linkSettings + connectionSettings + streamSettings + upstreamSettings

    /// What is wrong with an origin: browsers send a scheme, a host and perhaps a port (RFC 6454, section 6.2).
    private static func originFault(_ text: String) -> String? {
        if text == "*" { return nil }
        let host = ["https://", "http://"].first(where: text.hasPrefix).map {
            text.dropFirst($0.count)
        }
        if let host, !host.isEmpty, !host.contains(where: { "/?# ".contains($0) }) { return nil }
        return "expected an origin such as https://app.example, or \"*\", found '\(text)'"
    }

    private static let connectionSettings: [Setting<Configuration>] = [
        .integer(
            "limits.connections", 1...1_000_000, \.limits.connections,
            "Open connections of each loop; over it new ones are closed."),
        .bytes(
            "limits.headerBytes", 1024...1 << 20, \.limits.headerBytes,
            "A header block, 32 bytes a field included; over it 431."),
        .integer(
            "limits.headerFields", 8...10_000, \.limits.headerFields,
            "Fields of a header block; over it 431."),
        .bytes(
            "limits.targetBytes", 64...1 << 20, \.limits.targetBytes,
            "A request target; over it 414."),
        .bytes(
            "limits.chunkLineBytes", 64...1 << 20, \.limits.chunkLineBytes,
            "A chunk's line, or all trailers, of an HTTP/1.1 body; over it 400."),
        .duration(
            "limits.handshakeTimeout", times, \.limits.handshakeTimeout,
            "For a TLS handshake and a connection's first bytes."),
        .duration(
            "limits.headerTimeout", times, \.limits.headerTimeout,
            "From the first byte of a header block to its end; over it 408 or GOAWAY."),
        .duration(
            "limits.idleTimeout", times, \.limits.idleTimeout,
            "A connection without a request is closed after it."),
        .duration(
            "limits.progressInterval", times, \.limits.progressInterval,
            "The interval of minimumProgress."),
        .bytes(
            "limits.minimumProgress", 0...UInt64(gibibyte), \.limits.minimumProgress,
            "What a body must move in each progressInterval while it is the peer's turn."),
        .duration(
            "limits.unwantedBodyTimeout", times, \.limits.unwantedBodyTimeout,
            "A stream answered before its request's body ended stays open; over it RST_STREAM."),
        .duration(
            "limits.drainTimeout", times, \.limits.drainTimeout,
            "For open requests to end after SIGTERM; then connections are cut."),
    ]

    private static let streamSettings: [Setting<Configuration>] = [
        .integer(
            "limits.concurrentStreams", 1...10_000, \.limits.concurrentStreams,
            "Streams of a connection, also those whose work goes on; over it REFUSED_STREAM."),
        .integer(
            "limits.requestsPerTurn", 1...10_000, \.limits.requestsPerTurn,
            "Requests a connection may start in one turn of its loop."),
        .integer(
            "limits.resetBurst", 1...1_000_000, \.limits.resetBurst,
            "RST_STREAM frames received at once; over it GOAWAY ENHANCE_YOUR_CALM."),
        .integer(
            "limits.sentResetBurst", 1...1_000_000, \.limits.sentResetBurst,
            "RST_STREAM frames the peer makes us send at once; over it GOAWAY."),
        .integer(
            "limits.resetsPerSecond", 1...1_000_000, \.limits.resetsPerSecond,
            "By how much both bursts recover in a second."),
        .integer(
            "limits.continuations", 1...1000, \.limits.continuations,
            "CONTINUATION frames of a header block; over it GOAWAY."),
        .integer(
            "limits.controlFrameBurst", 1...10_000_000, \.limits.controlFrameBurst,
            "PING, SETTINGS, PRIORITY, WINDOW_UPDATE and unknown frames at once; over it GOAWAY."),
        .integer(
            "limits.controlFramesPerSecond", 1...10_000_000, \.limits.controlFramesPerSecond,
            "By how much that burst recovers in a second."),
        .integer(
            "limits.emptyFrames", 1...10_000, \.limits.emptyFrames,
            "Empty DATA, HEADERS or CONTINUATION frames in a row; over it GOAWAY."),
        .integer(
            "limits.queuedControlFrames", 16...100_000, \.limits.queuedControlFrames,
            "Frames that wait because the peer does not read; over it the connection ends."),
        .bytes(
            "limits.receiveBudget", 1 << 16...gibibyte, \.limits.receiveBudget,
            "Bytes of request bodies that may wait in memory, for each loop."),
        .bytes(
            "limits.initialWindow", 1024...1 << 24, \.limits.initialWindow,
            "The receive window a stream begins with."),
        .bytes(
            "limits.maximumWindow", 1024...1 << 26, \.limits.maximumWindow,
            "The receive window a stream can grow to."),
    ]
}

extension Configuration.Bucket: ConfigurationEntry {
    static let section = "buckets"
    static var all: WritableKeyPath<Configuration, [Self]> { \.buckets }
    static let example = "{ directory: { path: ./data/photos } }"

    static func fault(ofName name: String) -> String? {
        if BucketName(name) != nil { return nil }
        return
            "'\(name)' can't be a bucket's name: it has 1 to 222 of a-z, 0-9, '-', '_' and '.', and begins and ends "
            + "with a letter or digit"
    }

    /// Every key of a bucket, below `buckets.NAME`.
    public static let settings: [Setting<Configuration.Bucket>] =
        storeSettings + [
            .path(
                "rules", \.rules, or: Configuration.openToAll,
                "A file of Security Rules; 'none' opens this bucket to everybody who reaches the listeners."
            ),
            .path("shadowRules", \.shadowRules, "Rules on trial for this bucket."),
            .bytes(
                "maximumObjectSize", 1...UInt64(1) << 50, \.maximumObjectSize,
                "The most bytes of an uploaded object; over it 413."),
            .list(
                "paths.allowed", "patterns with * and **", \.allowedPaths,
                "Names must match one of them; none allows all.", check: patternFault),
            .list(
                "paths.denied", "patterns with * and **", \.deniedPaths,
                "Names must match none of them.", check: patternFault),
            .integer(
                "paths.maximumDepth", 0...1024, \.maximumDepth, "Segments of a name; 0 is no limit."
            ),
            .flag(
                "paths.refuseDiscouraged", \.refusesDiscouraged,
                "Whether names with # [ ] * ? are refused."),
        ]
    /// What is wrong with a pattern of names.
    private static func patternFault(_ text: String) -> String? {
        do throws(PathRules.PatternError) {
            _ = try PathRules(allowed: [text], denied: [])
            return nil
        } catch {
            return "\(error)"
        }
    }
}
