import System
import Telemetry
import Wire

/// The metrics of upload sessions.
final class UploadStatistics: Sendable {
    /// How a session ended.
    enum End: String, CaseIterable, Sendable { case finished, cancelled, expired, refused }
    /// The result of an append.
    enum AppendResult: String, CaseIterable, Sendable {
        /// Its whole body is durable.
        case stored
        /// A part of its body may be durable.
        case cut
        /// A newer request stopped it, or its offset was wrong.
        case conflict
        /// None of its bytes count.
        case refused
    }
    private struct Key: Hashable {
        var bucket: BytewiseString
        var dialect: UploadDialect
        var result: BytewiseString
    }
    private struct State {
        var ends: [Key: UInt64] = [:]
        var appends: [Key: UInt64] = [:]
        var takeovers: [BytewiseString: UInt64] = [:]
    }
    private let state = Lock(State())

    func ended(_ entry: UploadLedger.Entry, _ end: End) {
        let key = Key(
            bucket: BytewiseString(entry.bucket), dialect: entry.dialect, result: BytewiseString(end.rawValue))
        state.withLock { $0.ends[key, default: 0] += 1 }
    }

    func appended(_ bucket: String, _ dialect: UploadDialect, _ result: AppendResult) {
        let key = Key(
            bucket: BytewiseString(bucket), dialect: dialect,
            result: BytewiseString(result.rawValue))
        state.withLock { $0.appends[key, default: 0] += 1 }
    }

    /// Counts a session of another process that was continued here.
    func takenOver(_ bucket: String) {
        state.withLock { $0.takeovers[BytewiseString(bucket), default: 0] += 1 }
    }

    fileprivate func write(
        _ buckets: [BytewiseString], _ ledger: UploadLedger, to text: inout PrometheusText
    ) {
        let state = state.withLock { $0 }
        func label(_ bucket: BytewiseString) -> PrometheusLabel {
            PrometheusLabel("bucket", bucket.text)
        }
        text.family("sluice_uploads_open", .gauge, "Open upload sessions that are known here.")
        for bucket in buckets {
            text.sample("sluice_uploads_open", [label(bucket)], ledger.usage(of: bucket).sessions)
        }
        text.family(
            "sluice_uploads_staged_bytes", .gauge,
            "Their bytes: those declared, or those received where none were declared.")
        for bucket in buckets {
            text.sample("sluice_uploads_staged_bytes", [label(bucket)], ledger.usage(of: bucket).bytes)
        }
        func results(
            _ name: String, _ help: String, _ counts: [Key: UInt64], _ label: String,
            _ results: [String]
        ) {
            text.family(name, .counter, help)
            for bucket in buckets {
                for dialect in UploadDialect.allCases {
                    for result in results {
                        let key = Key(bucket: bucket, dialect: dialect, result: BytewiseString(result))
                        let labels = [
                            PrometheusLabel("bucket", bucket.text),
                            PrometheusLabel("dialect", dialect.name),
                            PrometheusLabel(label, result),
                        ]
                        text.sample(name, labels, counts[key] ?? 0)
                    }
                }
            }
        }
        results(
            "sluice_uploads_total", "Upload sessions that have ended.", state.ends, "end", End.allCases.map(\.rawValue))
        results(
            "sluice_upload_appends_total", "Appends to upload sessions.", state.appends, "result",
            AppendResult.allCases.map(\.rawValue))
        text.family(
            "sluice_upload_takeovers_total", .counter, "Upload sessions of another process that were continued here.")
        for bucket in buckets {
            text.sample("sluice_upload_takeovers_total", [label(bucket)], state.takeovers[bucket] ?? 0)
        }
    }
}

extension PrometheusRegistry {
    /// Adds the gauges of upload sessions by bucket.
    public func addUploads(_ uploads: Uploads, _ buckets: [BytewiseString]) {
        let buckets = buckets.sorted()
        collect { uploads.statistics.write(buckets, uploads.ledger, to: &$0) }
    }
}
