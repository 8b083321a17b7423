import COpenSSL
import COpenSSLSetup
import Synchronization

/// The library that implements TLS.
public enum TLSLibrary {
    private static let isUsed = Atomic<Bool>(false)

    /// The version of the loaded OpenSSL, such as `3.0.19`.
    public static var version: String { String(cString: OpenSSL_version(OPENSSL_VERSION_STRING)) }

    /// Whether there was a context of TLS.
    public static var isInUse: Bool { isUsed.load(ordering: .relaxed) }

    /// A context without settings.
    static func context(_ method: OpaquePointer?) throws(TLSError) -> OpaquePointer {
        isUsed.store(true, ordering: .relaxed)
        guard let new = SSL_CTX_new(method) else { throw TLSError("SSL_CTX_new") }
        return new
    }
}
