import ArgumentParser
import Gateway
import Wire

/// `sluice cache`: the read cache of a running gateway.
struct CacheCommand: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "cache",
        abstract: "The read cache: show it, forget versions of objects, empty it.",
        subcommands: [ShowCache.self, ForgetCached.self, PurgeCache.self])
}

/// `sluice cache show`: shows what the cache has and does.
private struct ShowCache: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "show", abstract: "Show the read cache of a running gateway.",
        discussion: """
            HITS were served without a request to the service, VALIDATED after the service had confirmed the version; \
            MISSES had to be read from the service, also in part. Exit status: 0, or 1 if the gateway can't be asked or \
            has no cache.

            Examples:
              sluice cache show
              sluice cache show --json | jq '.buckets[] | {bucket, requests}'
            """)

    @OptionGroup var listener: OperatorListener

    @Flag(help: "Print the response of the gateway, which is JSON.")
    var json = false

    func run() throws {
        let body = try listener.call("GET", "/cache")
        if json { return print(String(decoding: body, as: UTF8.self), terminator: "") }
        guard let cache = try? JSONReader.parse(body), let buckets = cache["buckets"]?.elements else {
            throw OperatorListener.Failure(description: "the response is not a gateway's")
        }
        func number(_ key: String) -> Int64 { cache[key]?.integer ?? 0 }
        let cause = cache["cause"]?.text.map { ": \($0)" } ?? ""
        print(VisibleText.escaped("state: \(cache["state"]?.text ?? "")\(cause)"))
        print("size: \(number("size")) of \(number("limit")) bytes, \(number("slices")) slices")
        print("fills: \(number("fills")) running")
        if buckets.isEmpty { return print("no bucket is cached") }
        var rows = [
            [
                "BUCKET", "HITS", "VALIDATED", "MISSES", "STALE", "BYPASSED", "BYTES FROM CACHE", "FROM SERVICE",
                "OBJECTS",
            ]
        ]
        for bucket in buckets {
            func count(_ results: String...) -> String {
                "\(results.map { bucket["requests"]?[$0]?.integer ?? 0 }.reduce(0, +))"
            }
            func number(_ key: String) -> String { "\(bucket[key]?.integer ?? 0)" }
            rows.append([
                bucket["bucket"]?.text ?? "", count("hit"), count("validated"), count("miss", "partial", "replaced"),
                count("stale"), count("bypass"), number("bytesFromCache"), number("bytesFromService"),
                number("knownObjects"),
            ])
        }
        printTable(rows)
    }
}

/// `sluice cache forget`: forgets which versions are current.
private struct ForgetCached: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "forget", abstract: "Make the next read of a bucket's objects ask the service.",
        discussion: """
            The gateway forgets which version of an object is current; bytes on disk are kept, and served again if the \
            service confirms their version. Each gateway has a cache of its own. Exit status: 0, or 1 if the gateway \
            can't be asked, has no cache, or does not cache the bucket.

            Examples:
              sluice cache forget photos
              sluice cache forget photos holiday/beach.jpg
            """)

    @OptionGroup var listener: OperatorListener

    @Argument(help: "The bucket.")
    var bucket: String

    @Argument(help: "The name of one object; without it, all objects.")
    var name: String?

    func validate() throws {
        if BucketName(bucket) == nil { throw ValidationError("'\(bucket)' is no bucket's name.") }
        if name?.isEmpty == true { throw ValidationError("An object's name is not empty.") }
    }

    func run() throws {
        let query = "bucket=\(bucket)" + (name.map { "&name=\(PercentEncoding.encodeSegment($0))" } ?? "")
        _ = try listener.call("POST", "/cache/forget?\(query)")
        print(VisibleText.escaped("forgot \(name.map { "\(bucket)/\($0)" } ?? bucket)"))
    }
}

/// `sluice cache purge`: empties the cache.
private struct PurgeCache: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "purge", abstract: "Remove everything from the read cache of a running gateway.",
        discussion: """
            Running downloads continue. Exit status: 0, or 1 if the gateway can't be asked or has no cache.

            Example:
              sluice cache purge --token /etc/sluice/operator.token
            """)

    @OptionGroup var listener: OperatorListener

    func run() throws {
        _ = try listener.call("POST", "/cache/purge")
        print("purged")
    }
}
