import Wire

/// A label: a valid name, and a value.
public struct PrometheusLabel: Sendable, Hashable, Comparable {
    let name: String
    let value: String

    /// Creates a label. Characters that are not allowed in its name become `_`.
    public init(_ name: String, _ value: String) {
        self.name = PrometheusText.name(name, isLabel: true)
        self.value = value
    }

    public static func < (left: PrometheusLabel, right: PrometheusLabel) -> Bool {
        (left.name, left.value) < (right.name, right.value)
    }
}

/// Writes the Prometheus text exposition format, version 0.0.4.
public struct PrometheusText {
    /// The media type of the output.
    public static let contentType = "text/plain; version=0.0.4; charset=utf-8"

    /// The type of a metric family.
    public enum Kind: String, Sendable {
        case counter, gauge, histogram
    }

    private(set) var bytes: [UInt8] = []

    init() { bytes.reserveCapacity(16 * 1024) }

    /// Begins a family with its HELP and TYPE lines. All of its samples must be written before the next family.
    public mutating func family(_ name: String, _ kind: Kind, _ help: String) {
        append("# HELP \(name) ")
        escape(help, quote: false)
        append("\n# TYPE \(name) \(kind.rawValue)\n")
    }

    /// Writes a sample of the current family.
    public mutating func sample(_ name: String, _ labels: [PrometheusLabel] = [], _ value: Double) {
        sample(name, labels, text: PrometheusText.number(value))
    }

    /// Writes a sample of the current family.
    public mutating func sample(
        _ name: String, _ labels: [PrometheusLabel] = [], _ value: some BinaryInteger
    ) {
        sample(name, labels, text: String(value))
    }

    /// Writes a family with one sample.
    public mutating func single(
        _ name: String, _ kind: Kind, _ help: String, _ value: some BinaryInteger
    ) {
        family(name, kind, help)
        sample(name, [], value)
    }

    private mutating func sample(_ name: String, _ labels: [PrometheusLabel], text: String) {
        append(name)
        for (index, label) in labels.enumerated() {
            append(index == 0 ? "{" : ",")
            append(label.name)
            append("=\"")
            escape(label.value, quote: true)
            append("\"")
        }
        if !labels.isEmpty { append("}") }
        append(" \(text)\n")
    }

    private mutating func append(_ text: String) { bytes.append(contentsOf: text.utf8) }

    private mutating func escape(_ text: String, quote: Bool) {
        for byte in text.utf8 {
            switch byte {
            case UInt8(ascii: "\\"): append("\\\\")
            case UInt8(ascii: "\n"): append("\\n")
            case UInt8(ascii: "\"") where quote: append("\\\"")
            default: bytes.append(byte)
            }
        }
    }

    /// A number in the syntax of Prometheus.
    static func number(_ value: Double) -> String {
        if value.isNaN { return "NaN" }
        if value.isInfinite { return value < 0 ? "-Inf" : "+Inf" }
        if value == value.rounded(), abs(value) < 1e15 { return String(Int64(value)) }
        return value.description
    }

    /// Makes a valid name: `[a-zA-Z_:][a-zA-Z0-9_:]*`, without colons for a label.
    static func name(_ text: String, isLabel: Bool = false) -> String {
        var name: [UInt8] = []
        for byte in text.utf8 {
            switch byte {
            case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "A")...UInt8(ascii: "Z"),
                UInt8(ascii: "_"):
                name.append(byte)
            case UInt8(ascii: ":") where !isLabel: name.append(byte)
            case UInt8(ascii: "0")...UInt8(ascii: "9"):
                if name.isEmpty { name.append(UInt8(ascii: "_")) }
                name.append(byte)
            default: name.append(UInt8(ascii: "_"))
            }
        }
        return name.isEmpty ? "_" : String(decoding: name, as: UTF8.self)
    }
}
