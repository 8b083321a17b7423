import Buckets
import HTTPServer
import OpenSSL
import Wire

extension ExpectedDigests {
    /// The digests of a body, from `Content-MD5`, `x-amz-checksum-…` and the hash that the signature covers.
    /// - Throws: ``Problem``: `InvalidDigest`, or `InvalidRequest` for more than one checksum or an unknown one.
    /// - Parameter ignoresChecksum: Whether the checksum is not the body's.
    init(s3 context: RequestContext, ignoresChecksum: Bool = false) throws(Problem) {
        self.init()
        for text in context.s3.fields.values("content-md5") { try take(md5: text) }
        if case .sha256(let hash) = context.s3.authentication.payload { payload = hash }
        guard !ignoresChecksum, let checksum = try S3Checksums.declared(context.s3.fields) else { return }
        take(checksum)
    }

    /// - Throws: ``Problem`` with `InvalidDigest`.
    mutating func take(md5 text: String) throws(Problem) {
        guard let digest = Base64.decode(Array(text.utf8)[...]), digest.count == 16, md5 == nil || md5 == digest
        else { throw S3Error.bad("InvalidDigest", "The Content-MD5 you specified is not valid.") }
        md5 = digest
    }

    mutating func take(_ checksum: S3Properties.Checksum) {
        if let digest = checksum.algorithm.digest {
            others[digest] = checksum.value
        } else {
            crc32c = checksum.value.reduce(0) { $0 << 8 | UInt32($1) }
        }
    }
}

/// The checksums of S3 in header fields and trailers.
enum S3Checksums {
    private static let known = "crc32, crc32c, crc64nvme, sha1, sha256"
    private static let prefix = "x-amz-checksum-"

    /// The checksum in the header.
    /// - Parameter ofParts: Whether the number of parts may follow the value, as in `BASE64-3`.
    /// - Throws: ``Problem`` with `InvalidRequest`.
    static func declared(_ fields: HeaderFields, ofParts: Bool = false) throws(Problem) -> S3Properties.Checksum? {
        var found: S3Properties.Checksum?
        for (suffix, value) in fields.all(withPrefix: prefix) where !["mode", "algorithm", "type"].contains(suffix) {
            if found != nil {
                throw S3Error.invalidRequest(
                    "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.")
            }
            let end = ofParts ? value.firstIndex(of: UInt8(ascii: "-")) ?? value.endIndex : value.endIndex
            found = try checksum(suffix, value[..<end])
        }
        return found
    }

    /// Parses a value of base64.
    /// - Parameter name: The part of the field's name after the prefix.
    static func checksum(_ name: String, _ value: some Collection<UInt8>) throws(Problem) -> S3Properties.Checksum {
        guard let algorithm = ChecksumAlgorithm(rawValue: name) else {
            throw S3Error.invalidRequest("The algorithm '\(name.prefix(32))' is not supported: use \(known).")
        }
        guard let bytes = Base64.decode(Array(value)[...]), bytes.count == algorithm.size else {
            throw S3Error.invalidRequest("Value for \(prefix)\(name) header is invalid.")
        }
        return S3Properties.Checksum(algorithm, bytes)
    }

    /// The algorithm of the checksum that `x-amz-trailer` announces; nil if it announces none.
    /// - Throws: ``Problem`` with `InvalidRequest`.
    static func announced(_ fields: HeaderFields) throws(Problem) -> ChecksumAlgorithm? {
        guard let text = fields.list("x-amz-trailer") else { return nil }
        let names = text.split(separator: ",").map { $0.filter { $0 != " " }.asciiLowercased() }
        let checksums = names.filter { $0.hasPrefix(prefix) }
        guard let first = checksums.first else { return nil }
        guard checksums.count == 1,
            let algorithm = ChecksumAlgorithm(rawValue: String(first.dropFirst(prefix.utf8.count)))
        else { throw S3Error.invalidRequest("x-amz-trailer announces one checksum of \(known).") }
        if let sdk = fields["x-amz-sdk-checksum-algorithm"],
            !BytewiseString.areEqual(sdk.asciiLowercased(), algorithm.rawValue)
        {
            throw S3Error.invalidRequest(
                "The value specified in the x-amz-trailer header is not the one in x-amz-sdk-checksum-algorithm.")
        }
        return algorithm
    }
}

/// The digests that a small body must have.
struct S3BodyDigests {
    private let expected: ExpectedDigests

    /// - Parameter isOfObject: Whether the checksum in the header is the object's, not the body's.
    init(_ context: RequestContext, isOfObject: Bool = false) throws(Problem) {
        expected = try ExpectedDigests(s3: context, ignoresChecksum: isOfObject)
    }

    /// Whether the client has sent another digest than the hash that the signature covers.
    var isPresent: Bool { expected.md5 != nil || expected.crc32c != nil || !expected.others.isEmpty }

    /// - Throws: ``Problem`` with `BadDigest` or `XAmzContentSHA256Mismatch`.
    func verify(_ body: [UInt8]) throws(Problem) {
        let md5 = Digest(.md5)
        md5.update(body.span.bytes)
        var crc32c = CRC32C()
        crc32c.update(body.span.bytes)
        var facts = ContentFacts(size: UInt64(body.count), md5: md5.finish(), crc32c: crc32c.value)
        for algorithm in expected.algorithms {
            var digest = RunningDigest(algorithm)
            digest.update(body.span.bytes)
            facts.digests[algorithm] = digest.finish()
        }
        try expected.verify(facts, "nothing was done")
    }
}
