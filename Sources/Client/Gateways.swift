import ClientCommands
import Foundation
import SluiceStorage
import Synchronization
import Wire

/// The gateways of one command, and the credentials for each.
///
/// The credential, the certificate and other fields belong to one gateway: that of `--url` or `SLUICE_URL`, otherwise that of
/// the first argument. Another gateway gets `SLUICE_OTHER_TOKEN` only.
final class Gateways: Sendable {
    /// The gateway of plain paths.
    let url: String
    /// The bucket of plain paths; nil if they begin with their bucket.
    let bucket: String?

    /// ``url`` of the one command of this process.
    static let plain = Mutex<String?>(nil)

    private let options: ConnectionOptions
    /// Bytes of one request: those of all jobs together are 16 MiB at most.
    let pieceSize: Int64
    private let known = Mutex<(primary: String?, storages: [BytewiseString: Storage])>((nil, [:]))

    /// - Parameter jobs: How many objects are transferred at a time.
    init(_ options: ConnectionOptions, jobs: Int = 1) throws {
        self.options = options
        let variable = Gateways.variable("SLUICE_URL")
        let url = options.url ?? variable
        self.url = url ?? "http://127.0.0.1:8080"
        bucket = options.bucket ?? Gateways.variable("SLUICE_BUCKET")
        pieceSize = min(8 << 20, (16 << 20) / Int64(jobs))
        known.withLock { $0.primary = url.map(Gateways.trimmed) }
        guard Storage.isGateway(self.url) else {
            throw ClientError(
                .usage,
                "'\(VisibleText.withoutSecrets(self.url))' is not the URL of a gateway. Write http://HOST:PORT or https://HOST, by --url or SLUICE_URL."
            )
        }
        let trimmed = Gateways.trimmed(self.url)
        Gateways.plain.withLock { $0 = trimmed }
        let files = [
            ("--cacert", options.cacert), ("--cert", options.cert), ("--key", options.key),
        ]
        for case (let option, let path?) in files where access(path, R_OK) != 0 {
            throw ClientError("\(option) \(path)", errno)
        }
    }

    static func variable(_ name: String) -> String? {
        let value = getenv(name).map { String(cString: $0) }
        return value?.isEmpty == false ? value : nil
    }

    private static func trimmed(_ url: String) -> String {
        var url = url
        while url.hasSuffix("/") { url.removeLast() }
        return url
    }

    /// The bucket of a gateway.
    func storage(_ url: String, _ bucket: String) -> Storage {
        let url = Gateways.trimmed(url)
        let key = BytewiseString("\(url) \(bucket)")
        return known.withLock { known in
            if let storage = known.storages[key] { return storage }
            let primary = known.primary ?? url
            known.primary = primary
            let storage = Storage(url: url, bucket: bucket)
            configure(storage, isPrimary: url == primary)
            known.storages[key] = storage
            return storage
        }
    }

    private func configure(_ storage: Storage, isPrimary: Bool) {
        let time = TimeInterval(options.retryTime)
        storage.maxUploadRetryTime = time
        storage.maxDownloadRetryTime = time
        storage.maxOperationRetryTime = time
        storage.uploadChunkSizeBytes = pieceSize
        storage.credentials = credentials(isPrimary: isPrimary)
        var configuration = StorageConfiguration()
        configuration.certificateAuthorities = options.cacert.map { URL(fileURLWithPath: $0) }
        if isPrimary {
            configuration.clientCertificate = options.cert.map { URL(fileURLWithPath: $0) }
            configuration.clientKey = options.key.map { URL(fileURLWithPath: $0) }
            for header in options.headers {
                let colon = header.utf8.firstIndex(of: UInt8(ascii: ":")) ?? header.endIndex
                let value = header[colon...].dropFirst().trimmingCharacters(in: .whitespaces)
                configuration.headerFields[String(header[..<colon])] = value
            }
        }
        storage.configuration = configuration
    }

    private func credentials(isPrimary: Bool) -> StorageCredentials {
        let prefix = isPrimary ? "SLUICE" : "SLUICE_OTHER"
        if isPrimary, let file = options.tokenFile {
            return .file(URL(fileURLWithPath: file))
        }
        if let token = Gateways.variable("\(prefix)_TOKEN") { return .token(token) }
        if let file = Gateways.variable("\(prefix)_TOKEN_FILE") {
            return .file(URL(fileURLWithPath: file))
        }
        return .none
    }
}
