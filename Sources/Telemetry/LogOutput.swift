import Logging
import Wire

/// The swift-log backend. It writes all messages except access lines, in the same format and to the same sink.
///
/// Values whose metadata key looks like a secret's name are redacted. All other text is searched for secrets.
public struct LogOutput: LogHandler {
    public var metadata: Logger.Metadata = [:]
    public var metadataProvider: Logger.MetadataProvider?
    public var logLevel: Logger.Level
    private let label: String
    private let sink: LogSink

    /// Creates a handler for ``Logging/LoggingSystem/bootstrap(_:)``; several share one sink.
    public init(label: String, sink: LogSink, level: Logger.Level = .info) {
        self.label = label
        self.sink = sink
        self.logLevel = level
    }

    public subscript(metadataKey key: String) -> Logger.Metadata.Value? {
        get { metadata[key] }
        set { metadata[key] = newValue }
    }

    public func log(event: LogEvent) {
        var all = metadata
        if let provided = metadataProvider?.get() { all.merge(provided) { _, new in new } }
        if let own = event.metadata { all.merge(own) { _, new in new } }
        if let error = event.error { all["error"] = "\(error)" }
        var line = LogLine()
        switch sink.format {
        case .json: writeJSON(event, all, &line)
        case .text(let colour): writeText(event, all, colour, &line)
        }
        sink.append(line)
    }

    private func writeJSON(_ event: LogEvent, _ all: Logger.Metadata, _ line: inout LogLine) {
        line.raw("{\"time\":\"")
        line.now()
        line.raw("\",\"level\":")
        line.quoted(event.level.rawValue)
        line.raw(",\"logger\":")
        line.quoted(label)
        line.raw(",\"message\":")
        line.quoted(event.message.description)
        if !all.isEmpty {
            line.raw(",\"metadata\":")
            writeJSON(.dictionary(all), &line)
        }
        line.raw("}")
    }

    private func writeJSON(_ value: Logger.Metadata.Value, _ line: inout LogLine) {
        switch value {
        case .string(let text): line.quoted(text)
        case .stringConvertible(let value): line.quoted(value.description)
        case .array(let values):
            line.byte(UInt8(ascii: "["))
            for (index, value) in values.enumerated() {
                if index > 0 { line.byte(UInt8(ascii: ",")) }
                writeJSON(value, &line)
            }
            line.byte(UInt8(ascii: "]"))
        case .dictionary(let pairs):
            line.byte(UInt8(ascii: "{"))
            var isFirst = true
            for (key, value) in pairs.sorted(by: { $0.key < $1.key }) {
                if !isFirst { line.byte(UInt8(ascii: ",")) }
                isFirst = false
                line.quoted(key)
                line.byte(UInt8(ascii: ":"))
                writeJSON(LogRedaction.isSecret(name: key) ? LogOutput.redacted : value, &line)
            }
            line.byte(UInt8(ascii: "}"))
        }
    }

    private func writeText(
        _ event: LogEvent, _ all: Logger.Metadata, _ colour: Bool, _ line: inout LogLine
    ) {
        line.now()
        line.byte(UInt8(ascii: " "))
        if colour { line.raw(LogOutput.colour(event.level)) }
        let start = line.count
        line.word(event.level.rawValue)
        line.pad(from: start, to: 8)
        if colour { line.raw("\u{1b}[0m") }
        line.byte(UInt8(ascii: " "))
        line.quoted(event.message.description)
        line.raw(" logger=")
        line.word(label)
        var paragraphs: [(key: String, text: String)] = []
        for (key, value) in all.sorted(by: { $0.key < $1.key }) {
            let value = LogRedaction.isSecret(name: key) ? LogOutput.redacted : value
            var text: String?
            switch value {
            case .string(let string): text = string
            case .stringConvertible(let value): text = value.description
            case .array, .dictionary: break
            }
            if let text, text.utf8.contains(UInt8(ascii: "\n")) {
                paragraphs.append((key, text))
                continue
            }
            line.byte(UInt8(ascii: " "))
            line.word(key)
            line.byte(UInt8(ascii: "="))
            if let text { line.word(text) } else { writeJSON(value, &line) }
        }
        // Findings of rules and of the configuration have several lines, which point at the location of an error.
        for (key, text) in paragraphs {
            line.raw("\n  ")
            line.word(key)
            line.byte(UInt8(ascii: ":"))
            line.paragraph(text)
        }
    }

    private static var redacted: Logger.Metadata.Value { "\(LogRedaction.mark)" }

    private static func colour(_ level: Logger.Level) -> StaticString {
        switch level {
        case .trace, .debug: "\u{1b}[2m"
        case .info, .notice: "\u{1b}[36m"
        case .warning: "\u{1b}[33m"
        case .error, .critical: "\u{1b}[31m"
        }
    }
}
