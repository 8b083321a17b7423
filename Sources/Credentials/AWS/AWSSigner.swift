import OpenSSL
import System
import Wire

/// Signs requests with AWS Signature Version 4, in the `authorization` field.
///
/// The rules of S3 apply: a path is encoded once and never normalized, the payload's hash has its own field, and a
/// streamed body may be signed chunk by chunk.
package final class AWSSigner: Sendable {
    /// How the signature covers the body.
    package enum Payload: Sendable {
        /// With the hash of these bytes.
        case bytes([UInt8])
        /// Not at all: TLS protects it.
        case unsigned
        /// With `aws-chunked`: each chunk has its own signature.
        case chunks
        /// With a known hash, in hexadecimal.
        case hash(String)

        var text: String {
            switch self {
            case .bytes(let bytes): AWSSigner.hexDigest(bytes.span.bytes)
            case .unsigned: "UNSIGNED-PAYLOAD"
            case .chunks: "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
            case .hash(let hash): hash
            }
        }
    }

    private struct DayKey {
        var day: String
        var secret: String
        var key: [UInt8]
    }

    private let scope: String
    private let region: String
    private let service: String
    /// The signing key of the day.
    private let dayKey = Lock<DayKey?>(nil)

    /// - Parameter service: The name in the scope: `s3`, `sts`.
    package init(region: String, service: String = "s3") {
        self.region = region
        self.service = service
        scope = "/\(region)/\(service)/aws4_request"
    }

    /// Adds `x-amz-date`, `x-amz-content-sha256`, the session token and `authorization`, which signs all fields.
    /// - Parameters:
    ///   - target: The path and query as sent, percent-encoded.
    ///   - time: Seconds since 1970.
    /// - Returns: The signer of the body's chunks.
    @discardableResult
    package func sign(
        _ fields: inout HeaderFields, method: StaticString, target: String, host: String,
        payload: Payload, with credentials: AWSCredentials, time: Int64
    ) -> ChunkSigner {
        let stamp = AWSTime.stamp(time)
        let day = String(stamp.prefix(8))
        let hash = payload.text
        fields.append("x-amz-content-sha256", hash)
        fields.append("x-amz-date", stamp)
        if let token = credentials.sessionToken { fields.append("x-amz-security-token", token) }
        var canonical = CanonicalRequest(method: method, target: target)
        let names = canonical.append(fields, host: host)
        canonical.bytes += hash.utf8
        let key = key(day, credentials.secretKey)
        let hashed = AWSSigner.hexDigest(canonical.bytes.span.bytes)
        let message = "AWS4-HMAC-SHA256\n\(stamp)\n\(day)\(scope)\n\(hashed)"
        let signature = AWSSigner.signature(key, message)
        fields.append(
            "authorization",
            "AWS4-HMAC-SHA256 Credential=\(credentials.accessKey)/\(day)\(scope), "
                + "SignedHeaders=\(names), Signature=\(signature)")
        return ChunkSigner(key: key, stamp: stamp, scope: day + scope, seed: signature)
    }

    private func key(_ day: String, _ secret: String) -> [UInt8] {
        dayKey.withLock { kept in
            if let kept, kept.day == day, kept.secret == secret { return kept.key }
            var key = [UInt8]("AWS4\(secret)".utf8)
            for text in [day, region, service, "aws4_request"] {
                key = HMAC.sha256(key: key, Array(text.utf8).span.bytes)
            }
            kept = DayKey(day: day, secret: secret, key: key)
            return key
        }
    }

    static func signature(_ key: [UInt8], _ message: String) -> String {
        Hexadecimal.encode(HMAC.sha256(key: key, Array(message.utf8).span.bytes))
    }

    static func hexDigest(_ bytes: RawSpan) -> String {
        let digest = Digest(.sha256)
        digest.update(bytes)
        return Hexadecimal.encode(digest.finish())
    }
}

/// The text to sign, without the payload's hash at its end.
package struct CanonicalRequest {
    package var bytes: [UInt8] = []

    package init(method: StaticString, target: String) {
        bytes.reserveCapacity(1024)
        method.withUTF8Buffer { bytes += $0 }
        let question = target.utf8.firstIndex(of: UInt8(ascii: "?"))
        bytes.append(UInt8(ascii: "\n"))
        bytes += target.utf8[..<(question ?? target.utf8.endIndex)]
        bytes.append(UInt8(ascii: "\n"))
        if let question { append(query: target.utf8[target.utf8.index(after: question)...]) }
        bytes.append(UInt8(ascii: "\n"))
    }

    /// Appends the pairs, each with its `=`, ordered by encoded name and value.
    private mutating func append(query: Substring.UTF8View) {
        guard !query.isEmpty else { return }
        let pairs = query.split(separator: UInt8(ascii: "&"), omittingEmptySubsequences: false).map { pair in
            let parts = pair.split(
                separator: UInt8(ascii: "="), maxSplits: 1, omittingEmptySubsequences: false)
            return (name: Array(parts[0]), value: parts.count > 1 ? Array(parts[1]) : [])
        }.sorted {
            $0.name == $1.name
                ? $0.value.lexicographicallyPrecedes($1.value) : $0.name.lexicographicallyPrecedes($1.name)
        }
        for (index, pair) in pairs.enumerated() {
            if index > 0 { bytes.append(UInt8(ascii: "&")) }
            bytes += pair.name
            bytes.append(UInt8(ascii: "="))
            bytes += pair.value
        }
    }

    /// Adds all fields and the host in canonical form, and returns their names, joined by `;`.
    package mutating func append(_ fields: HeaderFields, host: String) -> String {
        var list: [(name: [UInt8], value: [UInt8])] = [(Array("host".utf8), Array(host.utf8))]
        fields.read { reader in
            while let (name, value) = reader.next() { list.append((Array(name), Array(value))) }
        }
        // Join the values of repeated names in order.
        let order = list.indices.sorted {
            list[$0].name == list[$1].name ? $0 < $1 : list[$0].name.lexicographicallyPrecedes(list[$1].name)
        }
        var names: [UInt8] = []
        var previous: [UInt8] = []
        for (position, index) in order.enumerated() {
            let field = list[index]
            if field.name == previous {
                bytes.append(UInt8(ascii: ","))
            } else {
                if position > 0 {
                    bytes.append(UInt8(ascii: "\n"))
                    names.append(UInt8(ascii: ";"))
                }
                names += field.name
                bytes += field.name
                bytes.append(UInt8(ascii: ":"))
                previous = field.name
            }
            append(trimmed: field.value)
        }
        bytes.append(UInt8(ascii: "\n"))
        bytes.append(UInt8(ascii: "\n"))
        bytes += names
        bytes.append(UInt8(ascii: "\n"))
        return String(decoding: names, as: UTF8.self)
    }

    /// Trims the value and collapses its white space to single spaces.
    private mutating func append(trimmed value: [UInt8]) {
        let words = value.split { $0 == 0x20 || $0 == 0x09 }
        for (index, word) in words.enumerated() {
            if index > 0 { bytes.append(0x20) }
            bytes += word
        }
    }
}

/// Signs the chunks of one body. Each signature covers the previous one.
package struct ChunkSigner {
    private let key: [UInt8]
    private let prefix: String
    private var previous: String
    private static let emptyHash = AWSSigner.hexDigest([UInt8]().span.bytes)

    init(key: [UInt8], stamp: String, scope: String, seed: String) {
        self.key = key
        prefix = "AWS4-HMAC-SHA256-PAYLOAD\n\(stamp)\n\(scope)\n"
        previous = seed
    }

    /// The header of a chunk. The last chunk of a body is empty.
    package mutating func head(of chunk: RawSpan) -> String {
        let hash = AWSSigner.hexDigest(chunk)
        previous = AWSSigner.signature(key, "\(prefix)\(previous)\n\(Self.emptyHash)\n\(hash)")
        return "\(String(chunk.byteCount, radix: 16));chunk-signature=\(previous)\r\n"
    }

    /// The encoded size of a body of `length` bytes in chunks of `chunk` bytes.
    package static func encodedLength(_ length: UInt64, chunk: UInt64) -> UInt64 {
        func framed(_ size: UInt64) -> UInt64 {
            // `;chunk-signature=` has 17 bytes before its 64 digits. CR LF follows both it and the chunk's bytes.
            UInt64(String(size, radix: 16).utf8.count) + 17 + 64 + 2 + size + 2
        }
        let rest = length % chunk
        return length / chunk * framed(chunk) + (rest > 0 ? framed(rest) : 0) + framed(0)
    }
}
