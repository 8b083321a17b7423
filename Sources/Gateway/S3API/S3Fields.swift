import Buckets
import HTTPServer
import System
import Wire

/// The header fields of uploads and copies.
enum S3Fields {
    /// Fields that ask for something that no bucket has.
    private static let unsupported: [StaticString] = [
        "x-amz-server-side-encryption-customer-algorithm", "x-amz-server-side-encryption-customer-key",
        "x-amz-server-side-encryption", "x-amz-server-side-encryption-aws-kms-key-id",
        "x-amz-object-lock-mode", "x-amz-object-lock-retain-until-date", "x-amz-object-lock-legal-hold",
        "x-amz-website-redirect-location", "x-amz-write-offset-bytes", "x-amz-tagging",
        "x-amz-copy-source-server-side-encryption-customer-algorithm",
        "x-amz-grant-read", "x-amz-grant-write", "x-amz-grant-read-acp", "x-amz-grant-write-acp",
        "x-amz-grant-full-control",
    ]

    /// - Throws: ``Problem``: `NotImplemented`, or `AccessControlListNotSupported` for another list than the default.
    static func check(_ fields: HeaderFields) throws(Problem) {
        guard fields.contains(where: { $0.starts(with: "x-amz-".utf8) }) else { return }
        for name in unsupported where fields.contains(name) { throw S3Error.notImplemented }
        if let list = fields["x-amz-acl"], list != "private", list != "bucket-owner-full-control" {
            throw S3Error.bad("AccessControlListNotSupported", "The bucket does not allow ACLs")
        }
    }
}

extension ObjectAttributes {
    /// Parses the properties of an uploaded object.
    /// - Throws: ``Problem``: `MetadataTooLarge`, or `InvalidArgument`.
    init(s3 context: RequestContext) throws(Problem) {
        try self.init(s3: context.s3.fields)
    }

    init(s3 fields: HeaderFields) throws(Problem) {
        self.init()
        for (field, value) in fields.all(withPrefix: "") { try takeS3(field, value) }
        guard customMetadata.byteCount <= ObjectAttributes.maximumCustomBytes else {
            throw S3Error.bad("MetadataTooLarge", "Your metadata headers exceed the maximum allowed metadata size")
        }
        if contentType == nil { contentType = "binary/octet-stream" }
        let checksum = try S3Checksums.declared(fields)
        let properties = S3Properties(checksum: checksum, expires: fields.list("expires"))
        if properties != S3Properties() { system.s3 = properties }
    }

    private mutating func takeS3(_ field: String, _ value: [UInt8]) throws(Problem) {
        switch field {
        case "content-type": try ObjectAttributes.extend(&contentType, value, "Content-Type")
        case "content-disposition":
            try ObjectAttributes.extend(&contentDisposition, value, "Content-Disposition")
        case "cache-control": try ObjectAttributes.extend(&cacheControl, value, "Cache-Control")
        case "content-language": try ObjectAttributes.extend(&contentLanguage, value, "Content-Language")
        case "content-encoding":
            // `aws-chunked` is about the request, not about the object.
            let rest = value.split(separator: UInt8(ascii: ",")).map { ASCII.trimmed($0) }.filter {
                !ASCII.isEqual($0.span, ignoringCase: "aws-chunked")
            }
            for coding in rest { try ObjectAttributes.extend(&contentEncoding, Array(coding), "Content-Encoding") }
        default:
            let prefix = "x-amz-meta-"
            guard field.hasPrefix(prefix) else { return }
            let key = BytewiseString(String(field.dropFirst(prefix.utf8.count)))
            let text = ObjectAttributes.metadataText(value)
            try ObjectAttributes.checkPair(key.text, text)
            // Fields of one name are joined, as S3 does.
            customMetadata[key] = customMetadata[key].map { "\($0),\(text)" } ?? text
        }
    }

    /// A value in UTF-8; other bytes are Latin-1.
    private static func metadataText(_ value: [UInt8]) -> String {
        let bytes = Array(ASCII.trimmed(value[...]))
        return String(validating: bytes, as: UTF8.self)
            ?? String(String.UnicodeScalarView(bytes.map { Unicode.Scalar($0) }))
    }
}

extension UploadRequest {
    /// Parses an upload in one request.
    convenience init(s3 context: RequestContext, _ name: ObjectName, _ bucket: Bucket) throws(Problem) {
        try S3Fields.check(context.s3.fields)
        let content = try S3Content(context, maximum: bucket.maximumObjectSize)
        self.init(
            try ObjectAttributes(s3: context), content.digests, size: content.size, context.s3Conditions,
            body: content.body)
    }
}

/// The body of a request that has bytes of an object: its size, its digests and its framing.
struct S3Content {
    /// In bytes; nil if the body is chunked and its length is not declared.
    let size: UInt64?
    let digests: ExpectedDigests
    /// nil if the request's body is the content.
    let body: (any UploadBody)?
    /// The algorithm of the client's checksum.
    let checksum: ChecksumAlgorithm?

    /// - Parameter maximum: The maximum size in bytes.
    /// - Throws: ``Problem`` for a missing or too large length, or a malformed digest.
    init(_ context: RequestContext, maximum: UInt64) throws(Problem) {
        let head = context.exchange.head
        var digests = try ExpectedDigests(s3: context)
        context.s3.checksum = try S3Checksums.declared(context.s3.fields)
        let announced = try S3Checksums.announced(context.s3.fields)
        if announced != nil, context.s3.checksum != nil {
            throw S3Error.invalidRequest("Expecting a single x-amz-checksum- header or trailer.")
        }
        checksum = context.s3.checksum?.algorithm ?? announced
        if case .streaming(let streaming) = context.s3.authentication.payload {
            let body = try S3ChunkedContent(streaming, context)
            digests.trailer = body.algorithm
            self.body = body
            size = body.decodedLength
        } else {
            body = nil
            size = head.hasBody ? head.contentLength : 0
            if !head.hasBody, context.exchange.version != .http2, !head.fields.contains("content-length") {
                throw S3Error.noLength
            }
        }
        if let size, size > maximum {
            throw Problem(
                .payloadTooLarge, "Your proposed upload exceeds the maximum allowed size",
                dialect: DialectError(
                    status: 400, code: "EntityTooLarge", members: [("MaxSizeAllowed", "\(maximum)")]))
        }
        self.digests = digests
    }
}

/// An `aws-chunked` body whose checksum may follow the bytes. Confined to the request's loop.
private final class S3ChunkedContent: UploadBody {
    private let body: AWSChunkedBody
    private let request: S3Request
    /// The algorithm of the checksum that follows; nil if none does.
    let algorithm: ChecksumAlgorithm?
    private(set) var trailer: ExpectedDigests?
    private(set) var checksum: S3Properties.Checksum?

    init(_ streaming: S3Streaming, _ context: RequestContext) throws(Problem) {
        request = context.s3
        algorithm = streaming.hasTrailer ? try S3Checksums.announced(context.s3.fields) : nil
        body = try AWSChunkedBody(streaming, context.exchange)
    }

    var decodedLength: UInt64 { body.decodedLength }

    func receive(into sink: any ByteSink, limit: UInt64) async throws(BodyError) {
        try await body.receive(into: sink, limit: limit)
        guard let algorithm else { return }
        let name = "x-amz-checksum-\(algorithm.rawValue)"
        do throws(Problem) {
            guard let text = body.trailers.first(where: { BytewiseString.areEqual($0.name, name) })?.value else {
                throw S3Error.bad(
                    "MalformedTrailerError", "The request contained trailing data that was not well-formed")
            }
            let checksum = try S3Checksums.checksum(algorithm.rawValue, text.utf8)
            var digests = ExpectedDigests()
            digests.take(checksum)
            trailer = digests
            self.checksum = checksum
            request.checksum = checksum
        } catch {
            throw .sink(error)
        }
    }

    func stop() { body.stop() }
}
