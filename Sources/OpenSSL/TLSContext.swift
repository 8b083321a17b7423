import COpenSSL
import Glibc
import Synchronization
import Wire

/// A failure of OpenSSL, with the reasons in its error queue.
public struct TLSError: Error, Equatable, CustomStringConvertible {
    public let description: String

    init(_ what: String) {
        var reasons: [String] = []
        while case let code = ERR_get_error(), code != 0 {
            if sluice_system_error(code) > 0 {
                reasons.append(String(cString: strerror(sluice_system_error(code))))
            } else if sluice_repeats_system_error(code) == 0 {
                reasons.append(ERR_reason_error_string(code).map { String(cString: $0) } ?? "error \(code)")
            }
        }
        description = reasons.isEmpty ? what : "\(what): \(reasons.joined(separator: "; "))"
    }

    /// An error with a known reason; clears OpenSSL's queue.
    init(exactly description: String) {
        clearErrors()
        self.description = description
    }
}

/// How client certificates are verified.
public struct ClientVerification: Sendable, Equatable {
    /// A PEM file with the authorities.
    public var authorities: String
    /// Whether a client without a certificate is rejected. An invalid certificate is always rejected.
    public var isRequired: Bool
    /// A PEM file with one revocation list for every authority of a chain. A missing or expired list causes the
    /// certificates it covers to be rejected. nil: revocation is not checked.
    public var revocations: String?

    public init(authorities: String, isRequired: Bool, revocations: String? = nil) {
        self.authorities = authorities
        self.isRequired = isRequired
        self.revocations = revocations
    }
}

/// A server's certificate, key and TLS settings: TLS 1.2 and 1.3, ALPN `h2` before `http/1.1`.
///
/// Safety: an `SSL_CTX` is not changed after `init`, and OpenSSL counts references to it atomically.
public final class TLSContext: @unchecked Sendable {
    let pointer: OpaquePointer

    /// Reads a PEM certificate chain, its key, and the files for verifying client certificates.
    /// - Throws: ``TLSError`` naming the file that can't be read or used.
    public convenience init(
        certificateFile: String, keyFile: String, clients: ClientVerification? = nil
    ) throws(TLSError) {
        try self.init()
        guard SSL_CTX_use_certificate_chain_file(pointer, certificateFile) == 1 else {
            throw TLSError("certificate \(certificateFile)")
        }
        guard SSL_CTX_use_PrivateKey_file(pointer, keyFile, SSL_FILETYPE_PEM) == 1 else {
            throw TLSError("key \(keyFile)")
        }
        guard SSL_CTX_check_private_key(pointer) == 1 else {
            throw TLSError("key \(keyFile) is not the key of certificate \(certificateFile)")
        }
        if let clients { try verify(clients) }
    }

    /// Asks clients for certificates. Disables resumption, so that each connection is verified anew.
    private func verify(_ clients: ClientVerification) throws(TLSError) {
        guard SSL_CTX_load_verify_file(pointer, clients.authorities) == 1,
            let names = SSL_load_client_CA_file(clients.authorities)
        else { throw TLSError("certificate authorities \(clients.authorities)") }
        SSL_CTX_set_client_CA_list(pointer, names)
        if let file = clients.revocations { try checkRevocation(by: file, in: pointer) }
        let mode = SSL_VERIFY_PEER | (clients.isRequired ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0)
        SSL_CTX_set_verify(pointer, mode, nil)
        SSL_CTX_set_verify_depth(pointer, 8)
        SSL_CTX_set_num_tickets(pointer, 0)
        SSL_CTX_set_options(pointer, sluice_SSL_OP_NO_TICKET())
    }

    /// Creates a key and a certificate for `localhost` for tests, valid for 30 days and kept in memory only.
    /// - Throws: ``TLSError`` if OpenSSL fails.
    public static func selfSigned(clients: ClientVerification? = nil) throws(TLSError) -> TLSContext {
        let context = try TLSContext()
        if let clients { try context.verify(clients) }
        guard let key = sluice_EVP_EC_gen("P-256"), let certificate = X509_new() else {
            throw TLSError("self-signed certificate")
        }
        defer {
            EVP_PKEY_free(key)
            X509_free(certificate)
        }
        X509_set_version(certificate, 2)
        var serial: Int64 = 0
        RAND_bytes(&serial, 7)
        ASN1_INTEGER_set_int64(X509_get_serialNumber(certificate), serial)
        X509_gmtime_adj(X509_getm_notBefore(certificate), -3600)
        X509_gmtime_adj(X509_getm_notAfter(certificate), 30 * 86_400)
        X509_set_pubkey(certificate, key)
        let name = X509_get_subject_name(certificate)
        X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, "localhost", -1, -1, 0)
        X509_set_issuer_name(certificate, name)
        let subjects = "DNS:localhost,IP:127.0.0.1,IP:::1"
        if let names = X509V3_EXT_conf_nid(nil, nil, NID_subject_alt_name, subjects) {
            X509_add_ext(certificate, names, -1)
            X509_EXTENSION_free(names)
        }
        guard X509_sign(certificate, key, EVP_sha256()) > 0, SSL_CTX_use_certificate(context.pointer, certificate) == 1,
            SSL_CTX_use_PrivateKey(context.pointer, key) == 1
        else { throw TLSError("self-signed certificate") }
        return context
    }

    private init() throws(TLSError) {
        pointer = try TLSLibrary.context(TLS_server_method())
        _ = sluice_SSL_CTX_set_min_proto_version(pointer, TLS1_2_VERSION)
        SSL_CTX_set_options(pointer, sluice_SSL_OPTIONS())
        _ = sluice_SSL_CTX_set_mode(
            pointer,
            Int(SSL_MODE_ENABLE_PARTIAL_WRITE) | Int(SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER)
                | Int(SSL_MODE_RELEASE_BUFFERS))
        SSL_CTX_set_cipher_list(pointer, "ECDHE+AESGCM+AES128:ECDHE+AESGCM:ECDHE+CHACHA20")
        preferAES128(in: pointer)
        _ = sluice_SSL_CTX_set_session_cache_off(pointer)
        SSL_CTX_set_num_tickets(pointer, 1)
        // Two records of 16 KiB with their overhead, which halves the reads for a body.
        SSL_CTX_set_default_read_buffer_len(pointer, 33 * 1024)
        // A key with a passphrase is rejected: there is no prompt for it.
        SSL_CTX_set_default_passwd_cb(pointer) { _, _, _, _ in 0 }
        SSL_CTX_set_alpn_select_cb(pointer, selectProtocol, nil)
    }

    /// The first and last second of the certificate's validity, since 1970; nil if they can't be read.
    public var validity: (begin: Int64, end: Int64)? {
        guard let certificate = SSL_CTX_get0_certificate(pointer),
            let begin = PeerCertificate.seconds(X509_get0_notBefore(certificate)),
            let end = PeerCertificate.seconds(X509_get0_notAfter(certificate))
        else { return nil }
        return (begin, end)
    }

    deinit { SSL_CTX_free(pointer) }
}

/// Prefers AES-128-GCM among the TLS 1.3 ciphers that OpenSSL's configuration allows, without other changes. OpenSSL
/// prefers AES-256-GCM, which takes 14 rounds instead of 10.
func preferAES128(in context: OpaquePointer) {
    let preferred = "TLS_AES_128_GCM_SHA256"
    var names: [String] = []
    while let cipher = sluice_cipher(context, Int32(names.count)),
        // The TLS 1.3 ciphers come first.
        SSL_CIPHER_get_protocol_id(cipher) >> 8 == 0x13, let name = SSL_CIPHER_get_name(cipher)
    { names.append(String(cString: name)) }
    guard let index = names.firstIndex(where: { $0 == preferred }) else { return }
    names.insert(names.remove(at: index), at: 0)
    SSL_CTX_set_ciphersuites(context, names.joined(separator: ":"))
}

/// Reads a PEM file with revocation lists. `context` then accepts a chain only if there is a current list for each of
/// its authorities, and none contains the certificate (RFC 5280, section 6.3).
func checkRevocation(by file: String, in context: OpaquePointer) throws(TLSError) {
    let store = SSL_CTX_get_cert_store(context)
    guard let lookup = X509_STORE_add_lookup(store, X509_LOOKUP_file()),
        X509_load_crl_file(lookup, file, X509_FILETYPE_PEM) > 0
    else { throw TLSError("revocation lists \(file)") }
    X509_STORE_set_flags(store, UInt(X509_V_FLAG_CRL_CHECK | X509_V_FLAG_CRL_CHECK_ALL))
}

/// Selects `h2`, otherwise `http/1.1`. A client that offers neither is rejected (RFC 7301, section 3.2).
private func selectProtocol(
    _ session: OpaquePointer?, _ out: UnsafeMutablePointer<UnsafePointer<UInt8>?>?,
    _ outLength: UnsafeMutablePointer<UInt8>?, _ offered: UnsafePointer<UInt8>?, _ length: UInt32,
    _ argument: UnsafeMutableRawPointer?
) -> Int32 {
    guard let offered, let out, let outLength else { return SSL_TLSEXT_ERR_ALERT_FATAL }
    for wanted in ["h2", "http/1.1"] as [StaticString] {
        var offset = 0
        while offset < Int(length) {
            let count = Int(offered[offset])
            guard offset + 1 + count <= Int(length) else { return SSL_TLSEXT_ERR_ALERT_FATAL }
            if count == wanted.utf8CodeUnitCount,
                memcmp(offered + offset + 1, wanted.utf8Start, count) == 0
            {
                out.pointee = offered + offset + 1
                outLength.pointee = UInt8(count)
                return SSL_TLSEXT_ERR_OK
            }
            offset += 1 + count
        }
    }
    return SSL_TLSEXT_ERR_ALERT_FATAL
}

/// The context for new connections, which is replaced when certificates change.
public final class TLSCredentials: Sendable {
    private let context: CryptoLock<TLSContext>
    private let replacements = Atomic<Int>(0)

    public init(_ context: TLSContext) { self.context = CryptoLock(context) }

    /// The context for the next connection. Open connections keep their own.
    public var current: TLSContext {
        get { context.withLock { $0 } }
        set {
            context.withLock { $0 = newValue }
            replacements.add(1, ordering: .releasing)
        }
    }

    /// Increases after each change of ``current``. A reader that stores both must read the version first.
    public var version: Int { replacements.load(ordering: .acquiring) }
}
