import COpenSSL
import Foundation
import Glibc

/// A certificate with its key, made for a test.
///
/// Safety: OpenSSL's objects may be used by any thread once they are set up.
final class TestIdentity: @unchecked Sendable {
    /// For 127.0.0.1; its own authority.
    static let shared = TestIdentity("IP:127.0.0.1", isAuthority: true)

    private let certificate: OpaquePointer
    private let key: OpaquePointer
    /// PEM files.
    let path, keyPath: String

    private static let directory: URL = {
        let directory = FileManager.default.temporaryDirectory.appending(
            path: "sluice-certificates-\(getpid())")
        try! FileManager.default.createDirectory(at: directory, withIntermediateDirectories: true)
        atexit { try? FileManager.default.removeItem(at: TestIdentity.directory) }
        return directory
    }()

    /// - Parameters:
    ///   - names: The subject alternative names, such as `DNS:localhost,IP:127.0.0.1`; nil for none.
    ///   - validity: Its beginning and end, in seconds from now.
    ///   - issuer: nil for a self-signed certificate.
    init(
        _ names: String?, commonName: String = "test", isAuthority: Bool = false,
        validity: (from: Int, to: Int) = (-3600, 86_400), issuer: TestIdentity? = nil
    ) {
        key = sluice_EVP_EC_gen("P-256")!
        certificate = X509_new()!
        X509_set_version(certificate, 2)
        ASN1_INTEGER_set_int64(X509_get_serialNumber(certificate), .random(in: 1...(1 << 60)))
        X509_gmtime_adj(X509_getm_notBefore(certificate), validity.from)
        X509_gmtime_adj(X509_getm_notAfter(certificate), validity.to)
        X509_set_pubkey(certificate, key)
        let name = X509_get_subject_name(certificate)
        X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, commonName, -1, -1, 0)
        X509_set_issuer_name(
            certificate, issuer.map { X509_get_subject_name($0.certificate) } ?? name)
        for (kind, value) in [
            (NID_subject_alt_name, names),
            (NID_basic_constraints, isAuthority ? "critical,CA:TRUE" : nil),
        ] {
            guard let value else { continue }
            let field = X509V3_EXT_conf_nid(nil, nil, kind, value)
            X509_add_ext(certificate, field, -1)
            X509_EXTENSION_free(field)
        }
        precondition(X509_sign(certificate, issuer?.key ?? key, EVP_sha256()) > 0)
        let file = TestIdentity.directory.appending(path: UUID().uuidString).path
        (path, keyPath) = (file + ".pem", file + ".key")
        let files = (BIO_new_file(path, "w"), BIO_new_file(keyPath, "w"))
        PEM_write_bio_X509(files.0, certificate)
        PEM_write_bio_PrivateKey(files.1, key, nil, nil, 0, nil, nil)
        BIO_free(files.0)
        BIO_free(files.1)
    }

    deinit {
        X509_free(certificate)
        EVP_PKEY_free(key)
    }

    /// A PEM file with this authority's revocation list.
    /// - Parameter ends: In seconds from now.
    func revocations(_ revoked: TestIdentity..., ends: Int = 3600) -> String {
        let list = X509_CRL_new()!
        defer { X509_CRL_free(list) }
        X509_CRL_set_version(list, 1)
        X509_CRL_set_issuer_name(list, X509_get_subject_name(certificate))
        let (begin, end) = (X509_gmtime_adj(nil, -7200), X509_gmtime_adj(nil, ends))
        X509_CRL_set1_lastUpdate(list, begin)
        X509_CRL_set1_nextUpdate(list, end)
        for identity in revoked {
            let entry = X509_REVOKED_new()
            X509_REVOKED_set_serialNumber(entry, X509_get_serialNumber(identity.certificate))
            X509_REVOKED_set_revocationDate(entry, begin)
            X509_CRL_add0_revoked(list, entry)
        }
        ASN1_TIME_free(begin)
        ASN1_TIME_free(end)
        precondition(X509_CRL_sign(list, key, EVP_sha256()) > 0)
        let path = TestIdentity.directory.appending(path: UUID().uuidString + ".crl").path
        let file = BIO_new_file(path, "w")
        PEM_write_bio_X509_CRL(file, list)
        BIO_free(file)
        return path
    }

    /// Sends this authority's certificate with that of a server.
    func extend(_ context: OpaquePointer) {
        precondition(SSL_CTX_ctrl(context, SSL_CTRL_CHAIN_CERT, 1, .init(certificate)) == 1)
    }

    /// A server's context, which the caller releases.
    func context(_ change: (OpaquePointer) -> Void = { _ in }) -> OpaquePointer {
        let context = SSL_CTX_new(TLS_server_method())!
        precondition(SSL_CTX_use_certificate(context, certificate) == 1)
        precondition(SSL_CTX_use_PrivateKey(context, key) == 1)
        change(context)
        return context
    }
}

/// Limits the versions of TLS.
func limit(_ context: OpaquePointer, to version: Int32) {
    // Old versions need the lowest level of security.
    SSL_CTX_set_cipher_list(context, "DEFAULT:@SECLEVEL=0")
    SSL_CTX_ctrl(context, SSL_CTRL_SET_MIN_PROTO_VERSION, Int(version), nil)
    SSL_CTX_ctrl(context, SSL_CTRL_SET_MAX_PROTO_VERSION, Int(version), nil)
}

/// The server's side of TLS.
extension Peer {
    /// Whether the client has resumed a session.
    var isResumed: Bool { SSL_session_reused(tls) == 1 }

    /// The name of SNI.
    var serverName: String? {
        SSL_get_servername(tls, TLSEXT_NAMETYPE_host_name).map { String(cString: $0) }
    }

    /// The number of bytes in the next record.
    func record() -> Int {
        var buffer = [UInt8](repeating: 0, count: 65_536)
        return Int(SSL_read(tls, &buffer, Int32(buffer.count)))
    }

    /// Sends another ticket of TLS 1.3; false where the client is gone.
    @discardableResult
    func sendTicket() -> Bool {
        SSL_new_session_ticket(tls) == 1 && SSL_do_handshake(tls) == 1
    }

    /// Sends a key update of TLS 1.3, and asks for one.
    @discardableResult
    func updateKeys() -> Bool {
        SSL_key_update(tls, SSL_KEY_UPDATE_REQUESTED) == 1 && SSL_do_handshake(tls) == 1
    }

    /// Asks for a renegotiation of TLS 1.2; whether the client agreed.
    func renegotiate() -> Bool {
        guard SSL_renegotiate(tls) == 1, SSL_do_handshake(tls) == 1 else { return false }
        // The answer arrives with the next read: a refusal, or after a handshake the next request.
        var byte: UInt8 = 0
        return SSL_read(tls, &byte, 1) > 0
    }

    /// Passes bytes between this connection and a local port until one of both ends.
    func relay(to port: UInt16) {
        let other = socket(AF_INET, Int32(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue), 0)
        var address = sockaddr_in()
        address.sin_family = sa_family_t(AF_INET)
        address.sin_port = port.bigEndian
        address.sin_addr.s_addr = UInt32(0x7f00_0001).bigEndian
        let size = socklen_t(MemoryLayout<sockaddr_in>.size)
        let failed = withUnsafePointer(to: &address) {
            $0.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                Glibc.connect(other, $0, size)
            }
        }
        guard failed == 0 else { return }
        defer { Glibc.close(other) }
        var ends = [
            pollfd(fd: descriptor, events: Int16(POLLIN), revents: 0),
            pollfd(fd: other, events: Int16(POLLIN), revents: 0),
        ]
        var buffer = [UInt8](repeating: 0, count: 65_536)
        while poll(&ends, 2, -1) > 0 {
            for (from, to) in [(0, 1), (1, 0)] where ends[from].revents != 0 {
                let count = recv(ends[from].fd, &buffer, buffer.count, 0)
                guard count > 0,
                    Glibc.send(ends[to].fd, buffer, count, Int32(MSG_NOSIGNAL)) == count
                else { return }
            }
        }
    }
}
