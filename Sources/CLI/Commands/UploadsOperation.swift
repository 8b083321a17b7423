import ArgumentParser
import Gateway
import Glibc
import HTTPClient
import SecurityRules
import System
import Wire

/// `sluice uploads ls`: lists open upload sessions.
struct ListUploads: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "ls", abstract: "List the open upload sessions of a running gateway.",
        discussion: """
            Shows each session's ID, bucket, protocol, caller, received and declared bytes, age, and the time until it \
            expires. The ID is for 'sluice uploads cancel'; the session's URL can't be derived from it. At most 1000 \
            sessions are shown. Exit status: 0, or 1 if the gateway can't be asked, or a store fails.

            Examples:
              sluice uploads ls
              sluice uploads ls --bucket photos --json | jq '[.uploads[].offset] | add'
              sluice uploads ls --operator http://gateway.internal:9090
            """)

    @OptionGroup var listener: OperatorListener

    @Option(help: "Only the sessions of this bucket.")
    var bucket: String?

    @Flag(help: "Print the response of the gateway, which is JSON.")
    var json = false

    func run() throws {
        if let bucket, BucketName(bucket) == nil {
            throw ValidationError("'\(bucket)' is no bucket's name.")
        }
        let body = try listener.call("GET", "/uploads" + (bucket.map { "?bucket=\($0)" } ?? ""))
        if json { return print(String(decoding: body, as: UTF8.self), terminator: "") }
        guard let response = try? JSONReader.parse(body),
            let uploads = response["uploads"]?.elements
        else { throw OperatorListener.Failure(description: "the response is not a gateway's") }
        var rows = [["ID", "BUCKET", "PROTOCOL", "CALLER", "RECEIVED", "LENGTH", "AGE", "EXPIRES"]]
        for upload in uploads {
            func text(_ key: String) -> String { upload[key]?.text ?? "" }
            func number(_ key: String) -> String { upload[key]?.integer.map { "\($0)" } ?? "-" }
            rows.append([
                text("id"), text("bucket"), text("protocol"),
                "\(text("group")):\(text("caller"))", number("offset"), number("length"),
                "\(number("ageSeconds"))s", text("expires"),
            ])
        }
        printTable(rows)
        let failures = response["failures"]?.elements ?? []
        for failure in failures {
            complain("\(failure["bucket"]?.text ?? ""): \(failure["detail"]?.text ?? "")")
        }
        if !failures.isEmpty { throw ExitCode(1) }
        if response["isComplete"] == .boolean(false) {
            complain("There are more: the first 1000 are shown.")
        }
    }
}

/// `sluice uploads cancel`: cancels an upload session.
struct CancelUpload: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "cancel", abstract: "Cancel an open upload session of a running gateway.",
        discussion: """
            Its bytes are removed before the command returns. An object that was finished stays. Exit status: 0, or 1 \
            if there is no such session or the gateway can't be asked.

            Example:
              sluice uploads cancel 3f2a9c01d4e5b6a7c8d9
            """)

    @OptionGroup var listener: OperatorListener

    @Argument(help: "The session's ID, from 'sluice uploads ls'.")
    var id: String

    func run() throws {
        guard Hexadecimal.decode(Array(id.utf8)) != nil else {
            throw ValidationError("'\(id)' is no session's ID.")
        }
        _ = try listener.call("DELETE", "/uploads?id=\(id)")
        print("cancelled \(id)")
    }
}

/// `sluice uploads sweep`: removes expired upload sessions.
struct SweepUploads: ParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "sweep", abstract: "Remove the expired upload sessions of a running gateway now.",
        discussion: """
            The gateway does so by itself every uploads.sweepInterval. Exit status: 0, or 1 if the gateway can't be \
            asked, or a store fails.

            Example:
              sluice uploads sweep --json
            """)

    @OptionGroup var listener: OperatorListener

    @Flag(help: "Print the response of the gateway, which is JSON.")
    var json = false

    func run() throws {
        let body = try listener.call("POST", "/uploads/sweep")
        if json { return print(String(decoding: body, as: UTF8.self), terminator: "") }
        guard case .object(let buckets) = (try? JSONReader.parse(body))?["removed"] else {
            throw OperatorListener.Failure(description: "the response is not a gateway's")
        }
        printTable(
            [["BUCKET", "REMOVED"]] + buckets.map { [$0.key, "\($0.value.integer ?? 0)"] })
    }
}

/// Prints rows in columns of equal width.
func printTable(_ rows: [[String]]) {
    let rows = rows.map { $0.map { VisibleText.escaped($0) } }
    let widths = rows[0].indices.map { column in rows.map { $0[column].count }.max() ?? 0 }
    for row in rows {
        let cells = zip(row, widths).map { text, width in
            text + String(repeating: " ", count: width - text.count)
        }
        let line = cells.joined(separator: "  ")
        print(String(line.reversed().drop { $0 == " " }.reversed()))
    }
}

/// The operator's listener of a running gateway, for commands.
struct OperatorListener: ParsableArguments {
    /// Why the gateway rejected the request.
    struct Failure: Error, CustomStringConvertible {
        let description: String
    }

    @Option(
        name: .customLong("operator"),
        help: "The URL of the gateway's operator listener (listen.operator).")
    var url = "http://127.0.0.1:9090"

    @Option(
        name: .customLong("token"),
        help: "A file with the gateway's token for changes (listen.operatorToken).",
        completion: .file())
    var tokenFile: String?

    func validate() throws {
        guard Origin(url) != nil else {
            throw ValidationError("--operator expects a URL such as http://127.0.0.1:9090.")
        }
    }

    /// Sends a request and returns the response's body.
    /// - Throws: ``ExitCode`` with status 1 after a line to standard error, for everything but status 200.
    func call(_ method: StaticString, _ target: String) throws -> [UInt8] {
        signal(SIGPIPE, SIG_IGN)
        guard let origin = Origin(url) else { throw ExitCode(1) }
        var fields = HeaderFields()
        do {
            if let token = try tokenFile.map(OperatorToken.read) {
                fields.append("authorization", "Bearer \(token)")
            }
        } catch {
            complain("\(error)")
            throw ExitCode(1)
        }
        let loop = try EventLoop()
        let outcome = Lock<Result<CollectedResponse, ClientError>?>(nil)
        Task(executorPreference: loop) {
            var settings = UpstreamSettings(name: "operator", origin: origin)
            settings.attempts = 1
            settings.firstByteTimeout = 600_000_000_000
            let upstream = Upstream(settings)
            let result: Result<CollectedResponse, ClientError>
            do throws(ClientError) {
                let request = ClientRequest(method, target, fields: fields)
                result = .success(try await upstream.call(request, limit: 16 << 20))
            } catch {
                result = .failure(error)
            }
            outcome.withLock { $0 = result }
            loop.stop()
        }
        loop.run()
        switch outcome.withLock({ $0 }) {
        case .success(let response) where response.status == 200: return response.body
        case .success(let response):
            let detail = (try? JSONReader.parse(response.body))?["detail"]?.text
            complain("\(url): status \(response.status): \(detail ?? "not a gateway's response")")
        case .failure(let error): complain("\(url): \(error)")
        case nil: complain("\(url): no response")
        }
        throw ExitCode(1)
    }
}
