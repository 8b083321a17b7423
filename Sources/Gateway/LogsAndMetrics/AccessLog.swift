import Glibc
import HTTPServer
import System
import Telemetry

/// Writes one line for each request, whether it succeeded, was denied, failed or lost its connection.
///
/// A JSON line has one object with the keys `time`, `level`, `request`, `peer`, `principal`, `group`, `method`, `path`,
/// `operation`, `s3_operation`, `bucket`, `status`, `duration_ms`, `upstream_ms`, `cache`, `bytes_in`, `bytes_out`, `protocol`, `tls`, `host`, `user_agent`,
/// `ignored_forwarding`, `caller_request`, `trace`, `code`, `cause`. Keys that do not apply are absent. `level` is `warning` for 4xx other than 404, 412
/// and 416 and for rejected requests, `error` for other 5xx and for responses that the gateway aborted after the status
/// had been sent, and otherwise `info`. A text line has the same values, the first ones in columns.
public struct AccessLog: RequestObserver {
    private let sink: LogSink

    /// Logs to `sink`, in its format.
    public init(_ sink: LogSink) { self.sink = sink }

    public func finished(_ record: RequestRecord) {
        var line = LogLine()
        switch sink.format {
        case .json: AccessLog.writeJSON(record, &line)
        case .text(let colour): AccessLog.writeText(record, colour, &line)
        }
        sink.append(line)
    }

    /// - Parameter time: When the request ended.
    package static func writeJSON(
        _ record: RequestRecord, _ line: inout LogLine, at time: timespec = SystemClock.time()
    ) {
        line.raw("{\"time\":\"")
        line.time(time)
        switch record.statusClass {
        case 5: line.raw("\",\"level\":\"error\",\"request\":")
        case 4 where !record.isUsual: line.raw("\",\"level\":\"warning\",\"request\":")
        default: line.raw("\",\"level\":\"info\",\"request\":")
        }
        line.quoted(record.requestId)
        line.raw(",\"peer\":\"")
        line.address(record.peer)
        line.raw("\"")
        if let principal = record.principal {
            line.field(",\"principal\":", quoted: principal)
            line.field(",\"group\":", quoted: record.group)
        }
        line.field(",\"method\":", quoted: record.method)
        line.field(",\"path\":", quoted: record.path)
        if let operation = record.operation {
            line.raw(",\"operation\":\"")
            line.word(operation.rawValue)
            line.raw("\"")
        }
        if let name = record.protocolOperation {
            line.raw(",\"s3_operation\":\"")
            line.word(name)
            line.raw("\"")
        }
        line.field(",\"bucket\":", quoted: record.bucket)
        line.raw(",\"status\":")
        line.number(UInt64(max(0, record.status)))
        line.raw(",\"duration_ms\":")
        line.milliseconds(record.durationNanoseconds)
        if let waited = record.trace?.waited {
            line.raw(",\"upstream_ms\":")
            line.milliseconds(waited)
        }
        if let cache = record.cache {
            line.raw(",\"cache\":\"")
            line.word(cache.result.rawValue)
            line.raw("\"")
        }
        line.raw(",\"bytes_in\":")
        line.number(record.bytesIn)
        line.raw(",\"bytes_out\":")
        line.number(record.bytesOut)
        line.raw(",\"protocol\":\"")
        line.raw(record.version.label)
        line.raw(record.isSecure ? "\",\"tls\":true" : "\",\"tls\":false")
        line.field(",\"host\":", quoted: record.origin.host)
        line.field(",\"user_agent\":", quoted: record.origin.userAgent)
        line.field(",\"ignored_forwarding\":", quoted: record.origin.ignoredForwarding)
        line.field(",\"caller_request\":", quoted: record.origin.requestId)
        line.field(",\"trace\":", quoted: record.trace?.context?.traceID)
        line.field(",\"code\":", quoted: record.errorCode)
        line.field(",\"cause\":", quoted: record.cause)
        line.raw("}")
    }

    static func writeText(_ record: RequestRecord, _ colour: Bool, _ line: inout LogLine) {
        line.now()
        line.byte(UInt8(ascii: " "))
        if colour { line.raw(AccessLog.colour(record.statusClass)) }
        line.number(UInt64(max(0, record.status)), width: 3)
        if colour { line.raw("\u{1b}[0m") }
        line.byte(UInt8(ascii: " "))
        var start = line.count
        line.word(record.method)
        line.pad(from: start, to: 7)
        line.milliseconds(record.durationNanoseconds, width: 6)
        line.raw("ms in ")
        line.number(record.bytesIn, width: 8)
        line.raw(" out ")
        line.number(record.bytesOut, width: 8)
        line.byte(UInt8(ascii: " "))
        start = line.count
        line.address(record.peer)
        line.pad(from: start, to: 21)
        line.byte(UInt8(ascii: " "))
        start = line.count
        line.raw(record.version.label)
        if record.isSecure { line.raw("+TLS") }
        line.pad(from: start, to: 12)
        line.byte(UInt8(ascii: " "))
        start = line.count
        line.word(record.operation?.rawValue ?? "-")
        line.pad(from: start, to: 7)
        line.word(record.path)
        line.field(" s3=", word: record.protocolOperation)
        line.field(" bucket=", word: record.bucket)
        line.field(" principal=", word: record.principal)
        line.raw(" request=")
        line.word(record.requestId)
        line.field(" caller_request=", word: record.origin.requestId)
        if let waited = record.trace?.waited {
            line.raw(" upstream=")
            line.milliseconds(waited)
            line.raw("ms")
        }
        line.field(" cache=", word: record.cache?.result.rawValue)
        line.field(" trace=", word: record.trace?.context?.traceID)
        line.field(" code=", word: record.errorCode)
        line.field(" cause=", quoted: record.cause)
        line.field(" host=", word: record.origin.host)
        line.field(" user_agent=", word: record.origin.userAgent)
        line.field(" ignored_forwarding=", quoted: record.origin.ignoredForwarding)
    }

    private static func colour(_ statusClass: Int) -> StaticString {
        switch statusClass {
        case 5: "\u{1b}[31m"
        case 4: "\u{1b}[33m"
        case 3: "\u{1b}[36m"
        default: "\u{1b}[32m"
        }
    }
}

extension LogLine {
    /// Appends a name and a word, if there is one.
    fileprivate mutating func field(_ name: StaticString, word text: String?) {
        guard let text else { return }
        raw(name)
        word(text)
    }

    /// Appends a name and a text in quotes, if there is one.
    fileprivate mutating func field(_ name: StaticString, quoted text: String?) {
        guard let text else { return }
        raw(name)
        quoted(text)
    }

    /// Appends an address from the kernel. Text that is not an address is left out.
    fileprivate mutating func address(_ address: String) {
        let span = address.utf8.span
        for index in span.indices {
            switch span[index] {
            case UInt8(ascii: "0")...UInt8(ascii: ":"), UInt8(ascii: "a")...UInt8(ascii: "z"),
                UInt8(ascii: "A")...UInt8(ascii: "["), UInt8(ascii: "]"), UInt8(ascii: "."), UInt8(ascii: "%"):
                continue
            default: return
            }
        }
        copy(span, 0..<span.count)
    }
}

extension HTTPVersion {
    /// The version's name, without allocating a string.
    fileprivate var label: StaticString {
        switch self {
        case .http1_0: "HTTP/1.0"
        case .http1_1: "HTTP/1.1"
        case .http2: "HTTP/2"
        }
    }
}
