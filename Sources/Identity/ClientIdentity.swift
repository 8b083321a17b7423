import OpenSSL
import SecurityRules
import Wire

/// Who a client is by its verified certificate: made once for each connection.
public final class ClientIdentity: Sendable {
    /// What of a certificate is the uid.
    public enum Name: String, Sendable, CaseIterable {
        /// The one URI of its subject alternative name, of the scheme `spiffe` (SPIFFE X.509-SVID, section 2).
        case spiffe
        /// The first DNS name.
        case dns
        /// The subject as RFC 2253 writes it.
        case subject
    }
    /// The caller; a failure where the certificate has no such name.
    public let principal: Result<Principal, CredentialError>
    /// `request.auth.token.certificate`.
    public let certificate: Value
    /// For the log.
    public let subject: String
    /// Seconds since 1970 from which on it does not count any more.
    public let notAfter: Int64

    public init(_ certificate: PeerCertificate, uid name: Name, group: String) {
        let value = Value.map([
            "subject": .string(certificate.subject), "issuer": .string(certificate.issuer),
            "serial": .string(Hexadecimal.encode(certificate.serial)),
            "fingerprint": .string(Hexadecimal.encode(certificate.fingerprint)),
            "uris": .list(certificate.uris.map(Value.string)),
            "dns": .list(certificate.dnsNames.map(Value.string)),
        ])
        self.certificate = value
        subject = certificate.subject
        notAfter = certificate.notAfter
        if let uid = ClientIdentity.uid(certificate, name) {
            principal = .success(
                Principal(
                    kind: .certificate, uid: uid, claims: ["certificate": value],
                    source: "certificate",
                    group: group, expires: certificate.notAfter))
        } else {
            principal = .failure(
                CredentialError(
                    .malformed,
                    "the certificate of \(certificate.subject) has no \(name.rawValue) name"))
        }
    }

    private static func uid(_ certificate: PeerCertificate, _ name: Name) -> String? {
        switch name {
        case .spiffe:
            guard certificate.uris.count == 1, let uri = certificate.uris.first,
                uri.hasPrefix("spiffe://"), Principal.uidBytes.contains(uri.utf8.count)
            else { return nil }
            return uri
        case .dns: return certificate.dnsNames.first
        case .subject: return certificate.subject.isEmpty ? nil : certificate.subject
        }
    }
}
