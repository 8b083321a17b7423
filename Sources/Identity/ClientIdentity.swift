import OpenSSL
import Wire

/// The identity in a client's verified certificate. Created once for each connection.
public final class ClientIdentity: Sendable {
    /// The field of a certificate that is the uid.
    public enum Name: String, Sendable, CaseIterable {
        /// The only URI of its subject alternative name, with the scheme `spiffe` (SPIFFE X.509-SVID, section 2).
        case spiffe
        /// The first DNS name.
        case dns
        /// The subject in the format of RFC 2253.
        case subject
    }
    /// The caller; a failure if the certificate has no such name.
    public let principal: Result<Principal, CredentialError>
    package let certificate: PeerCertificate
    /// The certificate as presented to an authorization policy.
    package let derived = DerivedValue()
    /// For the log.
    public let subject: String
    /// The end of its validity, in seconds since 1970.
    public let notAfter: Int64

    public init(_ certificate: PeerCertificate, uid name: Name, group: String) {
        self.certificate = certificate
        subject = certificate.subject
        notAfter = certificate.notAfter
        if let uid = ClientIdentity.uid(certificate, name) {
            principal = .success(
                Principal(
                    kind: .certificate, uid: uid, certificate: certificate, source: "certificate",
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
            guard certificate.uris.count == 1, !certificate.hasHiddenURI,
                !certificate.isAuthority, isSPIFFE(certificate.uris[0])
            else { return nil }
            return certificate.uris[0]
        case .dns: return certificate.dnsNames.first.flatMap(ofBytes)
        case .subject: return ofBytes(certificate.subject)
        }
    }

    private static func ofBytes(_ name: String) -> String? {
        Principal.uidBytes.contains(name.utf8.count) ? name : nil
    }

    /// Whether a URI is a SPIFFE ID (SPIFFE-ID, section 2), in which no part has two spellings.
    private static func isSPIFFE(_ uri: String) -> Bool {
        let scheme = "spiffe://"
        guard uri.hasPrefix(scheme), Principal.uidBytes.contains(uri.utf8.count) else {
            return false
        }
        let parts = uri.utf8.dropFirst(scheme.utf8.count).split(
            separator: UInt8(ascii: "/"), omittingEmptySubsequences: false)
        return (1...255).contains(parts[0].count) && parts[0].allSatisfy { isSPIFFE($0) && ASCII.lowercased($0) == $0 }
            && parts.dropFirst().allSatisfy { segment in
                !segment.isEmpty && segment.allSatisfy(isSPIFFE)
                    && !segment.elementsEqual(".".utf8) && !segment.elementsEqual("..".utf8)
            }
    }

    private static func isSPIFFE(_ byte: UInt8) -> Bool {
        ASCII.isLetter(byte) || ASCII.isDigit(byte) || [0x2d, 0x2e, 0x5f].contains(byte)
    }
}
