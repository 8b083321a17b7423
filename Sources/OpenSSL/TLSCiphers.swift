import COpenSSL
import COpenSSLSetup
import Synchronization

/// The implementation of AES-GCM for TLS.
public enum TLSCiphers {
    /// An implementation.
    public enum Implementation: String, Sendable {
        case openSSL = "openssl"
        /// Intel's library IPsec MB, which uses instructions for vectors of 64 bytes where OpenSSL does not (before 3.1).
        case ipsecMB = "ipsec-mb"
    }
    private static let isUsed = Atomic<Bool>(false)

    /// The implementation in use; nil before the first context of TLS.
    public static var inUse: Implementation? {
        guard isUsed.load(ordering: .relaxed) else { return nil }
        return sluice_wide_gcm() == nil ? .openSSL : .ipsecMB
    }

    /// A context without settings that prefers the fastest implementation.
    static func context(_ method: OpaquePointer?) throws(TLSError) -> OpaquePointer {
        isUsed.store(true, ordering: .relaxed)
        guard let new = SSL_CTX_new_ex(nil, sluice_wide_gcm(), method) else {
            throw TLSError("SSL_CTX_new_ex")
        }
        return new
    }
}
