import ClientCommands
import Foundation
import SluiceStorage
import Synchronization
import Wire

/// Writes to the standard streams.
enum Output {
    /// Writes everything. A reader that has gone ends the program, as SIGPIPE would.
    static func write(_ text: String, _ descriptor: Int32) {
        do {
            try write(Array(text.utf8), descriptor)
        } catch {
            // No terminal or program reads the report.
            if descriptor == STDERR_FILENO { return }
            line((error as? ClientError)?.message ?? "\(error)")
            exit(ClientStatus.local.rawValue)
        }
    }

    /// The same for bytes.
    /// - Throws: ``ClientError`` if they can't be written.
    static func write(_ bytes: [UInt8], _ descriptor: Int32) throws {
        do {
            try FileWriting.write(
                bytes, descriptor,
                descriptor == STDOUT_FILENO ? "standard output" : "standard error")
        } catch {
            if errno == EPIPE { _exit(128 + SIGPIPE) }
            throw error
        }
    }

    /// A line on standard error. Names in it do not control the terminal, and do not begin a line of their own.
    static func line(_ text: String) {
        write("sluice: " + VisibleText.escaped(text) + "\n", STDERR_FILENO)
    }

    /// A name for the output: unchanged for a program, without control characters for a terminal.
    static func shown(_ name: String) -> String {
        isatty(STDOUT_FILENO) == 1 ? VisibleText.escaped(name) : name
    }
}

/// The results of one command, as text, as JSON and as an exit status.
final class Report: Sendable {
    private struct State {
        var statuses: [ClientStatus] = []
        var isStopped = false
        var hasWarned = false
    }
    private let state = Mutex(State())
    private let isJSON: Bool
    /// nil if nothing is to be shown.
    let display: ProgressDisplay?

    /// - Parameters:
    ///   - json: Whether results are printed as JSON.
    ///   - quiet: Whether no progress is shown.
    init(json: Bool, quiet: Bool) {
        isJSON = json
        display = json || quiet || !ProgressDisplay.isWanted ? nil : ProgressDisplay()
    }

    /// Whether further transfers would fail like the last one.
    var isStopped: Bool { state.withLock { $0.isStopped } }

    var hasFailed: Bool { state.withLock { !$0.statuses.isEmpty } }

    /// Reports a failure, which does not end the others.
    func failed(_ error: ClientError, _ action: String, _ source: String, _ target: String? = nil) {
        // A cancellation after that is not a separate failure.
        if Interruption.isInterrupted { return }
        state.withLock { state in
            state.statuses.append(error.status)
            if error.isFinal { state.isStopped = true }
        }
        if let display {
            display.print(VisibleText.escaped("sluice: \(error.message)"))
        } else {
            Output.line(error.message)
        }
        guard isJSON else { return }
        var json = JSONWriter(reserving: 256)
        json.beginObject()
        json.member("action", action)
        json.member("source", source)
        if let target { json.member("target", target) }
        json.member("error", error.message)
        if let code = error.problemCode { json.member("code", code) }
        json.member("status", Int64(error.status.rawValue))
        json.endObject()
        print(json)
    }

    /// Runs `body` for each argument. The failure of one does not end the others.
    func each(
        _ arguments: [String], _ action: String, _ body: (String) async throws -> Void
    ) async throws {
        for argument in arguments {
            do {
                try await body(argument)
            } catch let error where !(error is Stopped) {
                let shown = VisibleText.withoutSecrets(argument)
                failed(ClientError(error, about: shown), action, shown)
            }
        }
    }

    /// Something that is left out, which is no failure.
    func warn(_ text: String) {
        if let display {
            display.print(VisibleText.escaped("sluice: \(text)"))
        } else {
            Output.line(text)
        }
    }

    /// The same, but only the first time.
    func warnOnce(_ text: String) {
        let isFirst = state.withLock { state in
            defer { state.hasWarned = true }
            return !state.hasWarned
        }
        if isFirst { warn(text) }
    }

    /// Reports what was done with one object, if that is wanted as JSON.
    func done(_ action: String, _ source: String, _ target: String? = nil, size: Int64? = nil) {
        guard isJSON else { return }
        var json = JSONWriter(reserving: 256)
        json.beginObject()
        json.member("action", action)
        json.member("source", source)
        if let target { json.member("target", target) }
        if let size { json.member("size", size) }
        json.endObject()
        print(json)
    }

    /// Whether lines of text are wanted.
    var isText: Bool { !isJSON }

    /// A line of text on standard output.
    func say(_ line: String) { Output.write(line + "\n", STDOUT_FILENO) }

    /// A line of JSON.
    func print(_ json: JSONWriter) {
        guard isJSON else { return }
        Output.write(String(decoding: json.bytes, as: UTF8.self) + "\n", STDOUT_FILENO)
    }

    /// Ends the command.
    /// - Returns: The exit status: the failures' status if all have the same.
    func end() -> Int32 {
        display?.end()
        let statuses = state.withLock { $0.statuses }
        guard let first = statuses.first else { return 0 }
        return statuses.allSatisfy { $0 == first } ? first.rawValue : ClientStatus.failure.rawValue
    }
}
