import Configuration
import Gateway
import HTTPServer
import Identity
import Logging
import OpenSSL
import System
import Wire

extension Configuration {
    /// The access keys of S3 clients.
    /// - Throws: An error with the file's name.
    func accessKeys() throws -> AccessKeys {
        try s3.keys.map { try TextFile.read($0, as: AccessKeys.init(text:)) } ?? AccessKeys()
    }

    /// The keys of temporary credentials; nil if none are configured.
    /// - Throws: An error with the file's name.
    func s3SessionKeys() throws -> S3SessionKeys? {
        try s3.sessionKeys.map { try TextFile.read($0, as: S3SessionKeys.init(text:)) }
    }

    /// Verifies the signatures of S3 clients; nil if they are not served.
    /// - Throws: An error with the name of a key file.
    func s3Verifier(_ authenticator: Authenticator) throws -> S3Verifier? {
        guard s3.isOn else { return nil }
        return S3Verifier(
            region: s3.region, keys: try accessKeys(), sessionKeys: try s3SessionKeys() ?? .random(),
            isConfigured: { $0.kind == .certificate || authenticator.isConfigured($0) })
    }
}

extension Service {
    func respondS3(_ exchange: Exchange) async {
        await gateway.withLock { $0 }.respond(exchange, isForS3: true)
    }

    func reloadS3Keys() {
        s3Files.look()
        guard let verifier = callers.withLock({ $0.s3 }) else { return }
        do {
            let (keys, sessionKeys) = (try started.accessKeys(), try started.s3SessionKeys())
            verifier.replace(keys)
            if let sessionKeys { verifier.replace(sessionKeys) }
            s3Failure.withLock { $0 = nil }
            logger.info("S3 keys loaded", metadata: ["count": "\(keys.count)"])
        } catch {
            s3Failure.withLock { $0 = "\(error)" }
            logger.error("S3 keys not loaded; the last good ones stay", metadata: ["cause": "\(error)"])
        }
    }
}
