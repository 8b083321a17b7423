import ArgumentParser
import Wire

/// The options of every verb: the gateway and the caller.
package struct ConnectionOptions: ParsableArguments {
    @Option(
        help: ArgumentHelp(
            "The gateway (default: SLUICE_URL, or http://127.0.0.1:8080).", valueName: "url"))
    /// The gateway's address.
    package var url: String?

    @Option(
        help: ArgumentHelp(
            """
            The bucket of plain paths (default: SLUICE_BUCKET). Without it a plain path begins with its bucket.
            """, valueName: "name"))
    /// The bucket of plain paths.
    package var bucket: String?

    @Option(
        help: ArgumentHelp(
            """
            A file with the token, read again for each request (default: SLUICE_TOKEN_FILE; SLUICE_TOKEN is the \
            token itself).
            """, valueName: "file"),
        completion: .file())
    /// The path of the token.
    package var tokenFile: String?

    @Option(
        name: .customLong("header"),
        help: ArgumentHelp("Another header field of each request. Repeatable.", valueName: "name: value"))
    /// `NAME: VALUE`.
    package var headers: [String] = []

    @Option(
        help: ArgumentHelp(
            "A file of certificate authorities (PEM) instead of the system's.", valueName: "file"),
        completion: .file())
    /// The path of the authorities.
    package var cacert: String?

    @Option(
        help: ArgumentHelp("A client certificate (PEM).", valueName: "file"), completion: .file())
    /// The path of the certificate.
    package var cert: String?

    @Option(
        help: ArgumentHelp(
            "The key of the client certificate (PEM; default: in the same file).", valueName: "file"
        ), completion: .file())
    /// The path of its key.
    package var key: String?

    @Option(
        help: ArgumentHelp(
            "For how long a request is tried again without any progress.", valueName: "seconds"))
    /// Seconds.
    package var retryTime = 30

    package init() {}

    /// - Throws: `ValidationError` for values that do not fit together.
    package func validate() throws {
        if !(0...86_400).contains(retryTime) {
            throw ValidationError("--retry-time is a number of seconds from 0 to 86400.")
        }
        if key != nil, cert == nil { throw ValidationError("--key requires --cert.") }
        for header in headers where !header.utf8.contains(UInt8(ascii: ":")) {
            // It may be a secret.
            throw ValidationError("--header expects 'NAME: VALUE', with a colon.")
        }
    }
}

/// The options of the output.
package struct OutputOptions: ParsableArguments {
    @Flag(help: "Print one JSON object per line.")
    /// Whether to print JSON.
    package var json = false

    @Flag(name: .shortAndLong, help: "Print errors only.")
    /// Whether to print errors only.
    package var quiet = false

    package init() {}
}

/// The options of verbs that transfer objects.
package struct TransferOptions: ParsableArguments {
    @Option(
        name: .shortAndLong,
        help: "How many objects, or parts of large files, are transferred at a time (1 to 64).")
    /// From 1 to 64.
    package var jobs = 4

    /// Options that several verbs have.
    @OptionGroup package var output: OutputOptions

    package init() {}

    /// - Throws: `ValidationError` for values that do not fit together.
    package func validate() throws {
        if !(1...64).contains(jobs) { throw ValidationError("--jobs is from 1 to 64.") }
    }
}

/// The option of verbs that take folders.
package struct RecursiveOption: ParsableArguments {
    @Flag(
        name: [.customShort("R"), .customShort("r"), .long],
        help: "Take folders with everything in them.")
    /// Whether a folder includes everything below it.
    package var recursive = false

    package init() {}
}

/// Properties of new objects.
package struct PropertyOptions: ParsableArguments {
    @Option(
        help: ArgumentHelp(
            "The media type (default: by the name's extension).", valueName: "type"))
    /// `TYPE/SUBTYPE`.
    package var contentType: String?

    @Option(help: ArgumentHelp("How long caches may keep the object.", valueName: "value"))
    /// The value of the field.
    package var cacheControl: String?

    @Option(
        name: .customLong("meta"),
        help: ArgumentHelp("A pair of custom metadata. Repeatable.", valueName: "key=value"))
    /// `KEY=VALUE`.
    package var pairs: [String] = []

    package init() {}

    /// - Throws: `ValidationError` for values that do not fit together.
    package func validate() throws {
        for pair in pairs where !pair.utf8.contains(UInt8(ascii: "=")) {
            throw ValidationError("--meta expects KEY=VALUE, not '\(pair)'.")
        }
    }
}
