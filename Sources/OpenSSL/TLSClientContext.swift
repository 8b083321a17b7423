import COpenSSL
import Glibc
import Wire

/// The settings of TLS connections to one server.
public struct TLSClientSettings: Sendable, Equatable {
    /// The name or address that the server's certificate must have.
    public var host: String
    /// A PEM file with the trusted certificates; nil for the system's.
    public var authorities: String?
    /// A PEM file with one revocation list for every authority of a chain. A missing or expired list causes the server
    /// to be rejected. nil: revocation is not checked.
    public var revocations: String?
    /// A PEM file with the client's certificate chain; nil for none.
    public var certificate: String?
    /// A PEM file with the key of that certificate.
    public var key: String?

    public init(
        host: String, authorities: String? = nil, revocations: String? = nil,
        certificate: String? = nil, key: String? = nil
    ) {
        self.host = host
        self.authorities = authorities
        self.revocations = revocations
        self.certificate = certificate
        self.key = key
    }
}

/// The client side of TLS with one server: 1.2 and 1.3, verification of the server, and resumable sessions.
///
/// The server's chain must lead to a trusted certificate, and its certificate must be valid now and have the host as a
/// subject alternative name (RFC 9525). The common name and wildcards within a label are not accepted.
///
/// Safety: an `SSL_CTX` is not changed after `init` and has an atomic reference count. The sessions have a lock.
public final class TLSClientContext: @unchecked Sendable {
    let pointer: OpaquePointer
    /// The host without a final dot, as in certificates and SNI.
    let host: String
    /// Whether the host is an address, which is not sent as SNI (RFC 6066, section 3).
    let isAddress: Bool
    /// Sessions to resume, newest last. Encoded, because OpenSSL changes a session when its connection ends.
    private let sessions = CryptoLock<[[UInt8]]>([])
    private static let maximumSessions = 16
    /// The maximum size of an encoded session, including the server's certificate.
    private static let maximumSessionBytes = 16 * 1024

    /// Reads the files.
    /// - Throws: ``TLSError`` naming the file that can't be read or used.
    public init(_ settings: TLSClientSettings) throws(TLSError) {
        host = settings.host.hasSuffix(".") ? String(settings.host.dropLast()) : settings.host
        let address = a2i_IPADDRESS(host)
        isAddress = address != nil
        ASN1_OCTET_STRING_free(address)
        clearErrors()
        pointer = try TLSLibrary.context(TLS_client_method())
        _ = sluice_SSL_CTX_set_min_proto_version(pointer, TLS1_2_VERSION)
        SSL_CTX_set_options(pointer, sluice_SSL_CLIENT_OPTIONS())
        _ = sluice_SSL_CTX_set_mode(pointer, Int(SSL_MODE_ENABLE_PARTIAL_WRITE) | Int(SSL_MODE_RELEASE_BUFFERS))
        // The size of two records of 16 KiB with their overhead. This halves the reads for a body.
        SSL_CTX_set_default_read_buffer_len(pointer, 33 * 1024)
        preferAES128(in: pointer)
        // A key with a passphrase is rejected: there is no prompt for it.
        SSL_CTX_set_default_passwd_cb(pointer) { _, _, _, _ in 0 }
        try verifyServer(settings)
        if let certificate = settings.certificate {
            try present(certificate, key: settings.key ?? certificate)
        }
        // Resuming a session would not check revocation again.
        if settings.revocations == nil { keepSessions() }
    }

    deinit {
        SSL_CTX_set_ex_data(pointer, 0, nil)
        SSL_CTX_free(pointer)
    }

    private func verifyServer(_ settings: TLSClientSettings) throws(TLSError) {
        if let authorities = settings.authorities {
            guard SSL_CTX_load_verify_file(pointer, authorities) == 1 else {
                throw TLSError("certificate authorities \(authorities)")
            }
        } else {
            trustSystem()
        }
        let parameters = SSL_CTX_get0_param(pointer)
        X509_VERIFY_PARAM_set_hostflags(
            parameters, UInt32(X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT))
        let isSet =
            isAddress
            ? X509_VERIFY_PARAM_set1_ip_asc(parameters, host)
            : X509_VERIFY_PARAM_set1_host(parameters, host, host.utf8.count)
        guard isSet == 1 else { throw TLSError("the host name \(host)") }
        if let file = settings.revocations {
            try checkRevocation(by: file, in: pointer)
        } else {
            // Any trusted certificate ends a chain, so a file may contain only an intermediate authority. With
            // revocation, a chain must end with a root: nobody else could have revoked the intermediate.
            X509_VERIFY_PARAM_set_flags(parameters, UInt(X509_V_FLAG_PARTIAL_CHAIN))
        }
        SSL_CTX_set_verify(pointer, SSL_VERIFY_PEER, nil)
    }

    /// Trusts the system's authorities. In a directory with hashed links, OpenSSL finds the authority it needs; reading
    /// the file of all authorities takes 50 ms and a megabyte, so it is used only without such links.
    private func trustSystem() {
        SSL_CTX_set_default_verify_dir(pointer)
        if getenv("SSL_CERT_FILE") != nil || !TLSClientContext.hasHashedLinks() {
            SSL_CTX_set_default_verify_file(pointer)
        }
        clearErrors()
    }

    private static func hasHashedLinks() -> Bool {
        guard let directory = opendir(X509_get_default_cert_dir()) else { return false }
        defer { closedir(directory) }
        while let entry = readdir(directory) {
            // Eight hexadecimal digits and a number.
            let name = withUnsafeBytes(of: entry.pointee.d_name) {
                $0.prefix { $0 != 0 }.map { $0 }
            }
            if name.count == 10, name[8...].elementsEqual(".0".utf8) { return true }
        }
        return false
    }

    private func present(_ certificate: String, key: String) throws(TLSError) {
        guard SSL_CTX_use_certificate_chain_file(pointer, certificate) == 1 else {
            throw TLSError("client certificate \(certificate)")
        }
        guard SSL_CTX_use_PrivateKey_file(pointer, key, SSL_FILETYPE_PEM) == 1 else {
            throw TLSError("client key \(key)")
        }
    }

    // MARK: Sessions

    /// A connection retains its context, so the callback always finds it.
    private func keepSessions() {
        _ = sluice_SSL_CTX_keep_client_sessions(pointer)
        SSL_CTX_set_ex_data(pointer, 0, Unmanaged.passUnretained(self).toOpaque())
        SSL_CTX_sess_set_new_cb(pointer) { connection, session in
            if let session, let owner = SSL_CTX_get_ex_data(SSL_get_SSL_CTX(connection), 0) {
                Unmanaged<TLSClientContext>.fromOpaque(owner).takeUnretainedValue().keep(session)
            }
            // The callback retains no reference.
            return 0
        }
    }

    private func keep(_ session: OpaquePointer) {
        let size = i2d_SSL_SESSION(session, nil)
        guard size > 0, size <= TLSClientContext.maximumSessionBytes else { return }
        let encoded = [UInt8](unsafeUninitializedCapacity: Int(size)) { buffer, count in
            var end = buffer.baseAddress
            count = Int(max(0, i2d_SSL_SESSION(session, &end)))
        }
        sessions.withLock { sessions in
            if sessions.count == TLSClientContext.maximumSessions { sessions.removeFirst() }
            sessions.append(encoded)
        }
    }

    /// A session to resume, which the caller releases. A TLS 1.3 session is used once, so that connections can't be
    /// linked (RFC 8446, appendix C.4). The server is not verified again, so a session expires with its certificate.
    func session() -> OpaquePointer? {
        while let encoded = sessions.withLock({ $0.popLast() }) {
            let session = encoded.withUnsafeBufferPointer { bytes in
                var start = bytes.baseAddress
                return d2i_SSL_SESSION(nil, &start, bytes.count)
            }
            guard let session, let certificate = SSL_SESSION_get0_peer(session),
                X509_cmp_current_time(X509_get0_notAfter(certificate)) > 0
            else {
                SSL_SESSION_free(session)
                continue
            }
            if SSL_SESSION_get_protocol_version(session) < TLS1_3_VERSION {
                sessions.withLock { $0.append(encoded) }
            }
            return session
        }
        return nil
    }
}
