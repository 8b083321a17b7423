import OpenSSL
import System

/// The TLS context of an upstream. All loops share it, so a session of one loop can be resumed on another; only a new
/// connection takes a lock. The files are read again when they change, so a renewed certificate needs no restart.
final class UpstreamTLS: Sendable {
    private struct Loaded {
        let context: TLSClientContext
        let stamps: [FileStamp]
    }
    private let settings: TLSClientSettings
    private let loaded = Lock<Loaded?>(nil)

    init(_ settings: UpstreamSettings) {
        self.settings = TLSClientSettings(
            host: settings.origin.host, authorities: settings.certificateAuthorities, revocations: settings.revocations,
            certificate: settings.clientCertificate, key: settings.clientKey)
    }

    /// The context for a new connection.
    /// - Throws: ``TLSError`` naming the file that can't be read or used.
    func context() throws(TLSError) -> TLSClientContext {
        let files = [
            settings.authorities, settings.revocations, settings.certificate, settings.key,
        ]
        let stamps = files.compactMap { $0.map { FileStamp($0) } }
        return try loaded.withLock { (loaded) throws(TLSError) in
            if let loaded, loaded.stamps == stamps { return loaded.context }
            let context = try TLSClientContext(settings)
            loaded = Loaded(context: context, stamps: stamps)
            return context
        }
    }
}
