import Gateway
import HTTPClient
import System
import Wire

/// Where spans are sent by OTLP/HTTP.
public struct TraceConfiguration: Sendable, Equatable {
    /// The URL of a collector; nil if no spans are recorded.
    public var endpoint: String?
    /// The sampling rate of traces that begin here, 0 to 1.
    public var sampleRatio = 1.0
    /// `service.name` of the spans; nil is ``defaultServiceName``.
    public var serviceName: String? = defaultServiceName
    static let defaultServiceName = "sluice"
    /// A file with a field of each request on each line, `name: value`.
    public var headers: String?
    /// A file with the authorities of the collector's certificate; nil for the system's.
    public var certificateAuthorities: String?

    static let settings: [Setting<Configuration>] = [
        .url(
            "telemetry.traces.endpoint", \.traces.endpoint,
            "Collector that gets spans by OTLP/HTTP in protobuf; without a path, at /v1/traces. null records no spans."
        ),
        .fraction(
            "telemetry.traces.sampleRatio", \.traces.sampleRatio,
            "Share of the traces that begin here that is recorded; a caller's traceparent decides for its own trace."
        ),
        .text(
            "telemetry.traces.serviceName", \.traces.serviceName,
            "service.name of the spans; null is 'sluice'."),
        .path(
            "telemetry.traces.headers", \.traces.headers,
            "File of fields for the collector, such as 'authorization: Bearer ...', one on each line."),
        .path(
            "telemetry.traces.certificateAuthorities", \.traces.certificateAuthorities,
            "PEM file of the authorities that may sign the collector's certificate; null for the system's."),
    ]
}

extension TraceConfiguration {
    /// The fields of the file ``headers``, with names in lower case.
    func fields() throws(FieldFile.Malformed) -> HeaderFields {
        try headers.map { (file) throws(FieldFile.Malformed) in try FieldFile.read(file) } ?? HeaderFields()
    }

    /// The exporter's settings; nil if no spans are recorded.
    /// - Throws: An error if the file of fields can't be used.
    public func exporterSettings() throws -> TraceExporter.Settings? {
        guard let endpoint, let (origin, path) = Origin.cut(endpoint) else { return nil }
        return TraceExporter.Settings(
            origin: origin, target: path == "/" ? "/v1/traces" : path, sampleRatio: sampleRatio,
            serviceName: serviceName ?? TraceConfiguration.defaultServiceName, fields: try fields(),
            certificateAuthorities: certificateAuthorities)
    }
}

extension ConfigurationReader {
    /// Checks the files for the collector.
    mutating func checkTraces() {
        if let file = result.traces.certificateAuthorities {
            checkFile(file, "telemetry.traces.certificateAuthorities")
        }
        do throws(FieldFile.Malformed) { _ = try result.traces.fields() } catch {
            report(
                SettingError(message: "'telemetry.traces.headers': \(error)"),
                at: "telemetry.traces.headers")
        }
    }
}
