import OpenSSL
import Wire

/// The text of a request that a signature covers, built for verification. The path and the host stand apart, so that
/// other readings of them can be tried without building it again.
struct CanonicalS3Request {
    private let method: String
    /// The path in canonical form.
    let path: [UInt8]
    /// Everything after the path. The host's value is at ``host``.
    private var rest: [UInt8] = []
    private var host = 0..<0

    /// The maximum length of ``text`` in an error, in bytes.
    static let maximumShown = 8 * 1024

    /// - Parameter isRedacted: Whether the session token's value is replaced, for an error.
    init(_ request: S3SignedRequest, _ query: S3Query, _ claim: SignatureClaim, isRedacted: Bool = false) {
        method = request.method
        var path: [UInt8] = []
        path.reserveCapacity(request.target.path.count + 32)
        path.append(canonical: request.target.path.span, slash: true, plus: false)
        self.path = path
        rest.reserveCapacity(1024 + request.target.bytes.count - request.target.path.count)
        rest.append(0x0a)
        query.append(to: &rest, isRedacted: isRedacted)
        rest.append(0x0a)
        append(request, claim.signedNames, isRedacted: isRedacted)
        rest.append(0x0a)
        rest += claim.signedNames.text
        rest.append(0x0a)
        rest += claim.payloadHash
    }

    /// Appends the signed fields, a line each. A field that is absent is empty.
    private mutating func append(_ request: S3SignedRequest, _ signed: SignedNames, isRedacted: Bool) {
        signed.text.withUnsafeBufferPointer { text in
            for range in signed.names {
                let name = UnsafeBufferPointer(rebasing: text[range])
                rest += name
                rest.append(UInt8(ascii: ":"))
                if name.matches("host") {
                    let start = rest.count
                    rest.append(request.authority ?? "")
                    host = start..<rest.count
                } else if isRedacted, name.matches("x-amz-security-token") {
                    rest.append("REDACTED")
                } else {
                    append(request.fields, name)
                }
                rest.append(0x0a)
            }
        }
    }

    private mutating func append(_ fields: HeaderFields, _ wanted: UnsafeBufferPointer<UInt8>) {
        fields.read { reader in
            var isFirst = true
            while let (name, value) = reader.next() {
                guard name.count == wanted.count, name.elementsEqual(wanted) else { continue }
                if !isFirst { rest.append(UInt8(ascii: ",")) }
                isFirst = false
                rest.append(trimmed: value)
            }
        }
    }

    /// The SHA-256 of the text.
    /// - Parameters:
    ///   - path: Instead of the canonical one.
    ///   - host: Instead of the received one.
    func hash(path: Span<UInt8>, host other: String? = nil) -> [UInt8] {
        var digest = ResumableDigest(.sha256)
        digest.update(method.utf8.span.bytes)
        digest.update(CanonicalS3Request.lineEnd.span.bytes)
        digest.update(path.bytes)
        let rest = rest.span.bytes
        if let other {
            digest.update(rest.extracting(0..<host.lowerBound))
            digest.update(other.utf8.span.bytes)
            digest.update(rest.extracting(host.upperBound...))
        } else {
            digest.update(rest)
        }
        return digest.value
    }

    private static let lineEnd: [UInt8] = [0x0a]

    /// The text, for an error.
    var text: String {
        let bytes = Array(method.utf8) + CanonicalS3Request.lineEnd + path + rest
        return String(decoding: bytes.prefix(CanonicalS3Request.maximumShown), as: UTF8.self)
    }
}
