import COpenSSL
import Wire

/// The fields of a verified client certificate (RFC 5280). Names with a byte outside of visible ASCII are omitted, so
/// that no name can be mistaken for another.
public struct PeerCertificate: Sendable, Equatable {
    /// The subject in the format of RFC 2253, `CN=worker,O=Example`; empty if longer than 4095 bytes.
    public var subject: String
    public var issuer: String
    /// Big-endian.
    public var serial: [UInt8]
    /// From the subject alternative name.
    public var uris: [String] = []
    public var dnsNames: [String] = []
    /// Whether a URI was omitted.
    public var hasHiddenURI = false
    /// Whether the certificate may issue certificates.
    public var isAuthority: Bool
    /// The SHA-256 of the certificate.
    public var fingerprint: [UInt8]
    /// The end of validity in seconds since 1970: the earliest of the certificate and the authorities in its chain.
    public var notAfter: Int64

    /// - Parameter chain: The certificates from this one to the trusted authority.
    /// - Throws: ``TLSError`` if an end of validity can't be read, or if memory is exhausted.
    init(_ certificate: OpaquePointer, chain: OpaquePointer?) throws(TLSError) {
        guard let subject = PeerCertificate.text(X509_get_subject_name(certificate)),
            let issuer = PeerCertificate.text(X509_get_issuer_name(certificate)),
            let fingerprint = PeerCertificate.fingerprint(certificate),
            var end = PeerCertificate.seconds(X509_get0_notAfter(certificate))
        else { throw TLSError("the client's certificate") }
        var above: Int32 = 0
        while let authority = sluice_certificate(chain, above) {
            above += 1
            guard let seconds = PeerCertificate.seconds(X509_get0_notAfter(authority)) else {
                throw TLSError("a certificate above the client's")
            }
            end = min(end, seconds)
        }
        self.subject = subject
        self.issuer = issuer
        self.fingerprint = fingerprint
        notAfter = end
        serial = PeerCertificate.serial(certificate)
        isAuthority = X509_check_ca(certificate) != 0
        guard let names = X509_get_ext_d2i(certificate, NID_subject_alt_name, nil, nil) else {
            return
        }
        let list = OpaquePointer(names)
        defer { GENERAL_NAMES_free(list) }
        var index: Int32 = 0
        while let name = sluice_general_name(list, index) {
            index += 1
            guard let text = sluice_general_name_text(name) else { continue }
            let isURI = sluice_general_name_is_uri(name) == 1
            guard let visible = PeerCertificate.visible(text) else {
                hasHiddenURI = hasHiddenURI || isURI
                continue
            }
            if isURI { uris.append(visible) } else { dnsNames.append(visible) }
        }
    }

    private static func visible(_ text: UnsafePointer<ASN1_STRING>) -> String? {
        let bytes = UnsafeBufferPointer(start: ASN1_STRING_get0_data(text), count: Int(ASN1_STRING_length(text)))
        guard !bytes.isEmpty, bytes.allSatisfy({ (0x21...0x7e).contains($0) }) else { return nil }
        return String(decoding: bytes, as: UTF8.self)
    }

    private static func text(_ name: OpaquePointer?) -> String? {
        guard let name, let output = BIO_new(BIO_s_mem()) else { return nil }
        defer { BIO_free(output) }
        // OpenSSL escapes control characters and non-ASCII characters.
        guard sluice_X509_NAME_print(output, name) >= 0 else { return nil }
        var bytes = [UInt8](repeating: 0, count: 4096)
        let count = BIO_read(output, &bytes, Int32(bytes.count))
        // A longer subject is not used as a name.
        guard count < bytes.count else { return "" }
        return String(decoding: bytes[..<Int(max(0, count))], as: UTF8.self)
    }

    private static func serial(_ certificate: OpaquePointer) -> [UInt8] {
        guard let number = X509_get0_serialNumber(certificate) else { return [] }
        return Array(
            UnsafeBufferPointer(
                start: ASN1_STRING_get0_data(number), count: Int(ASN1_STRING_length(number))))
    }

    private static func fingerprint(_ certificate: OpaquePointer) -> [UInt8]? {
        var bytes = [UInt8](repeating: 0, count: 32)
        var count: UInt32 = 32
        return X509_digest(certificate, EVP_sha256(), &bytes, &count) == 1 ? bytes : nil
    }

    /// Seconds since 1970; nil if the time is malformed.
    static func seconds(_ time: UnsafePointer<ASN1_TIME>?) -> Int64? {
        guard let epoch = ASN1_TIME_set(nil, 0) else { return nil }
        defer { ASN1_TIME_free(epoch) }
        var days: Int32 = 0
        var seconds: Int32 = 0
        guard ASN1_TIME_diff(&days, &seconds, epoch, time) == 1 else { return nil }
        return Int64(days) * 86_400 + Int64(seconds)
    }
}
