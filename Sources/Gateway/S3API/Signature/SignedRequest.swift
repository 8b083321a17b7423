import Identity
import Wire

/// The parts of a request that a signature covers.
struct S3SignedRequest {
    /// The services whose name a credential's scope may have.
    struct Services: OptionSet {
        let rawValue: UInt8
        static let s3 = Services(rawValue: 1)
        static let sts = Services(rawValue: 2)
    }

    var method: String
    /// The path and query as received.
    var target: RequestTarget
    /// The host as received, with its port.
    var authority: String?
    var fields: HeaderFields
    /// The query of the target.
    var query: S3Query
    /// `X-Forwarded-Host` and `X-Forwarded-Port`; nil unless the peer is a trusted proxy.
    var forwardedHost: String?
    var forwardedPort: String?
    /// Whether the client's connection is encrypted.
    var isSecure = false
    var services = Services.s3
    /// Whether the URL was used before, so that it's worth keeping.
    var isRepeated = false
    /// SHA-256 of the body, for a service whose clients send no `x-amz-content-sha256`, such as STS. The body was
    /// received before the verification.
    var bodySHA256: [UInt8]?
}

/// The result of the authentication of a request.
struct S3Authentication {
    /// Who signed the request.
    enum Signer {
        /// There is no credential.
        case anonymous
        /// `Authorization` has a Bearer token, which is not verified yet.
        case bearer
        /// An access key of the key file.
        case accessKey(Principal)
        /// Temporary credentials.
        case session(SavedCaller)
    }

    var signer = Signer.anonymous
    /// The id of the key that signed; nil without a signature.
    var accessKeyID: String?
    /// Whether the signature is in the query.
    var isPresigned = false
    /// How the body is protected and framed.
    var payload = S3Payload.none
    /// The parameters of a presigned URL that act as fields: those whose name begins with `x-amz-`, in lower case,
    /// decoded, in order. Checksums are left out: SDKs put the checksum of an empty body into the URL of an upload.
    var hoisted: [(name: String, value: String)] = []
}

/// How a request's body is protected and framed.
enum S3Payload {
    /// Nothing is said about the body. Only without a signature.
    case none
    /// The signature does not cover the body.
    case unsigned
    /// The body has this SHA-256 (32 bytes).
    case sha256([UInt8])
    /// The body is `aws-chunked`.
    case streaming(S3Streaming)

    var isStreaming: Bool {
        if case .streaming = self { true } else { false }
    }
}

/// An `aws-chunked` body, as its request declares it.
struct S3Streaming {
    /// Verifies the signatures of chunks and trailers; nil if they have none.
    var signed: ChunkVerifier?
    /// Whether fields follow the last chunk.
    var hasTrailer: Bool
    /// The expected SHA-256 of the body before its decoding (32 bytes), if any.
    var bodySHA256: [UInt8]?
}

extension S3Payload {
    /// Finds the mode in the value of `x-amz-content-sha256`; nil if it is absent.
    /// - Parameters:
    ///   - verifier: Makes the verifier of the chunks; nil without a signature of the request.
    /// - Throws: ``Problem``: `InvalidRequest`, `NotImplemented`.
    init(
        _ value: Span<UInt8>?, _ fields: HeaderFields, verifier: (() -> ChunkVerifier)?
    ) throws(Problem) {
        // Some clients frame the body without saying so in the payload's hash.
        var framed = S3Streaming(hasTrailer: false)
        let isFramed = fields.contains("x-amz-decoded-content-length") && S3Payload.isChunked(fields)
        if isFramed { framed.hasTrailer = fields.contains("x-amz-trailer") }
        guard let value, !S3Payload.has(value, "UNSIGNED-PAYLOAD") else {
            let unframed = value == nil ? S3Payload.none : .unsigned
            self = isFramed ? .streaming(framed) : unframed
            return
        }
        if value.count == 64, let hash = Hexadecimal.decode(value) {
            framed.bodySHA256 = hash
            self = isFramed ? .streaming(framed) : .sha256(hash)
            return
        }
        if S3Payload.has(value, "STREAMING-UNSIGNED-PAYLOAD-TRAILER") {
            self = .streaming(S3Streaming(hasTrailer: true))
            return
        }
        let hasTrailer = S3Payload.has(value, "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER")
        if hasTrailer || S3Payload.has(value, "STREAMING-AWS4-HMAC-SHA256-PAYLOAD") {
            guard let verifier else {
                throw S3Error.invalidRequest("Chunks can only be signed in a request that is signed itself.")
            }
            guard hasTrailer || !fields.contains("x-amz-trailer") else {
                throw S3Error.invalidRequest("x-amz-trailer requires a payload with a trailer in x-amz-content-sha256.")
            }
            self = .streaming(S3Streaming(signed: verifier(), hasTrailer: hasTrailer))
            return
        }
        if ASCII.hasPrefix(value, "STREAMING-AWS4-ECDSA-") {
            throw S3Error.notImplemented
        }
        throw S3Error.invalidRequest(
            "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, STREAMING-UNSIGNED-PAYLOAD-TRAILER, "
                + "STREAMING-AWS4-HMAC-SHA256-PAYLOAD, STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER or a valid sha256 value."
        )
    }

    private static func has(_ value: Span<UInt8>, _ text: StaticString) -> Bool {
        value.count == text.utf8CodeUnitCount && ASCII.hasPrefix(value, text)
    }

    /// Whether `Content-Encoding` has `aws-chunked`.
    static func isChunked(_ fields: HeaderFields) -> Bool {
        guard let list = fields.list("content-encoding") else { return false }
        return list.split(separator: ",").contains {
            ASCII.isEqual(ASCII.trimmed(Array($0.utf8)[...]).span, ignoringCase: "aws-chunked")
        }
    }
}
