import OpenSSL
import Wire

/// Decodes an `aws-chunked` body while it arrives, and verifies the signatures of its chunks and its trailer.
///
/// A chunk is a line `HEX[;chunk-signature=HEX]`, its bytes, and CRLF. An empty chunk is the last one; trailers and an
/// empty line follow. Bytes are passed on before their chunk is verified: after an error, nothing of the body counts.
struct AWSChunkDecoder {
    /// The maximum length of a chunk's line in bytes.
    static let maximumLine = 1024
    /// The maximum length of all trailers in bytes, and their number.
    static let maximumTrailerBytes = 8 * 1024
    static let maximumTrailers = 16
    /// The minimum size of a chunk that another one follows, in bytes.
    static let minimumChunk: UInt64 = 8 * 1024

    private enum State {
        case size, data, dataEnd, trailer, done
    }

    /// The declared size of the decoded body in bytes.
    let decodedLength: UInt64
    private let announced: [String]
    private let hasTrailer: Bool
    private var verifier: ChunkVerifier?
    private var state = State.size
    /// The line being read, without its LF.
    private var line: [UInt8] = []
    /// The number of chunks so far, and the size of the last one.
    private var chunks = 0
    private var chunkSize: UInt64 = 0
    private var remaining: UInt64 = 0
    /// The sum of the sizes of all chunks so far.
    private var total: UInt64 = 0
    private var signature: [UInt8] = []
    private var digest: Digest?
    private var trailerBytes = 0
    /// What the trailer's signature covers.
    private var trailerText: [UInt8] = []
    private var isTrailerVerified = false
    /// Whether the previous trailer ended with LF alone. An empty line may follow it, as in the example of AWS.
    private var isBareLF = false
    /// The bytes of the line end that may follow the end.
    private var surplus = 0
    /// The trailers, in order: name in lower case, and value. Complete after ``end()``.
    private(set) var trailers: [(name: String, value: String)] = []

    /// - Parameter fields: Of the request.
    /// - Throws: ``Problem``: `MissingContentLength`, `InvalidRequest`.
    init(_ streaming: S3Streaming, _ fields: HeaderFields) throws(Problem) {
        guard let text = fields["x-amz-decoded-content-length"] else {
            throw .s3(
                .invalidArgument, 411, "MissingContentLength",
                "You must provide the Content-Length HTTP header.", cause: "no x-amz-decoded-content-length")
        }
        guard let length = Decimal.parse(text.utf8.span, maximumDigits: 19) else {
            throw S3Error.invalidRequest("x-amz-decoded-content-length is not a number.")
        }
        decodedLength = length
        hasTrailer = streaming.hasTrailer
        verifier = streaming.signed
        announced = streaming.hasTrailer ? try AWSChunkDecoder.announced(fields) : []
    }

    /// The names in `x-amz-trailer`.
    private static func announced(_ fields: HeaderFields) throws(Problem) -> [String] {
        let names = (fields.list("x-amz-trailer") ?? "").split(separator: ",").map {
            String(decoding: ASCII.trimmed(Array($0.utf8)[...]).map(ASCII.lowercased), as: UTF8.self)
        }.filter { !$0.isEmpty && $0 != "x-amz-trailer-signature" }
        guard names.count <= maximumTrailers else { throw S3Error.invalidRequest("x-amz-trailer has too many names.") }
        let checksums = names.filter { $0.hasPrefix("x-amz-checksum-") }
        guard checksums.count <= 1 else {
            throw S3Error.invalidRequest(
                "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.")
        }
        if let checksum = checksums.first, let algorithm = fields["x-amz-sdk-checksum-algorithm"],
            checksum != "x-amz-checksum-\(algorithm.asciiLowercased())"
        {
            throw S3Error.invalidRequest("The value of x-amz-sdk-checksum-algorithm is not that of x-amz-trailer.")
        }
        return names
    }

    /// Decodes the next bytes.
    /// - Parameter content: Takes a prefix of the content's next bytes and returns its length; less means: wait.
    /// - Returns: The number of bytes that were decoded: fewer than given only if not all content was taken.
    /// - Throws: ``Problem``, or what `content` throws. No more bytes may follow.
    mutating func write(_ bytes: RawSpan, _ content: (RawSpan) throws -> Int) throws -> Int {
        var offset = 0
        while offset < bytes.byteCount {
            if state == .data {
                let count = Int(min(remaining, UInt64(bytes.byteCount - offset)))
                let part = bytes.extracting(offset..<offset + count)
                let taken = try content(part)
                digest?.update(part.extracting(0..<taken))
                offset += taken
                remaining -= UInt64(taken)
                if taken < count { return offset }
                if remaining == 0 { try endData() }
                continue
            }
            try take(bytes.unsafeLoad(fromByteOffset: offset, as: UInt8.self))
            offset += 1
        }
        return offset
    }

    /// - Throws: ``Problem``: `IncompleteBody`, `MalformedTrailerError`.
    mutating func end() throws(Problem) {
        // The empty line after the trailer's signature is left out by some clients.
        if state == .trailer, isTrailerVerified, line.isEmpty { try endTrailers() }
        guard state == .done, surplus != 1 else { throw .incompleteBody }
    }

    private mutating func take(_ byte: UInt8) throws(Problem) {
        switch state {
        case .data: break
        case .size:
            guard line.count < AWSChunkDecoder.maximumLine else { throw .malformedChunks("a line is too long") }
            guard byte == 0x0a else {
                line.append(byte)
                return
            }
            guard line.popLast() == 0x0d else { throw .malformedChunks("a line does not end with CRLF") }
            try beginChunk()
        case .dataEnd:
            line.append(byte)
            guard byte == (line.count == 1 ? 0x0d : 0x0a) else {
                throw .malformedChunks("a chunk is longer than its size")
            }
            if line.count == 2 {
                line.removeAll(keepingCapacity: true)
                state = .size
            }
        case .trailer:
            trailerBytes += 1
            guard trailerBytes <= AWSChunkDecoder.maximumTrailerBytes else {
                throw .malformedTrailer("the trailers are too long")
            }
            guard byte == 0x0a else {
                line.append(byte)
                return
            }
            try takeLine()
        case .done:
            guard isBareLF, surplus < 2, byte == (surplus == 0 ? 0x0d : 0x0a) else {
                throw .malformedChunks("bytes follow the end")
            }
            surplus += 1
        }
    }

    // MARK: Chunks

    private mutating func beginChunk() throws(Problem) {
        let digits = line.prefix { ASCII.hexadecimal($0) != nil }
        let rest = line[digits.endIndex...]
        guard (1...16).contains(digits.count), rest.isEmpty || rest.first == UInt8(ascii: ";") else {
            throw .malformedChunks("a size is malformed")
        }
        let size = digits.reduce(UInt64(0)) { $0 << 4 | UInt64(ASCII.hexadecimal($1) ?? 0) }
        if verifier != nil {
            let prefix: StaticString = ";chunk-signature="
            guard ASCII.hasPrefix(rest.span, prefix) else {
                throw .signatureMismatch(cause: "chunk \(chunks + 1) has no signature")
            }
            signature = Array(rest.dropFirst(prefix.utf8CodeUnitCount))
            digest = Digest(.sha256)
        }
        line.removeAll(keepingCapacity: true)
        guard size <= decodedLength - total else { throw .wrongDecodedLength(declared: decodedLength) }
        if size > 0, chunks > 0, chunkSize < AWSChunkDecoder.minimumChunk {
            throw .s3(
                .invalidArgument, 400, "InvalidChunkSizeError",
                "Only the last chunk is allowed to have a size less than 8192 bytes",
                members: [("Chunk", "\(chunks + 1)"), ("BadChunkSize", "\(chunkSize)")])
        }
        chunks += 1
        chunkSize = size
        total += size
        remaining = size
        state = .data
        if size > 0 { return }
        guard total == decodedLength else { throw .wrongDecodedLength(declared: decodedLength) }
        try verifyChunk()
        state = .trailer
    }

    private mutating func endData() throws(Problem) {
        try verifyChunk()
        state = .dataEnd
    }

    private mutating func verifyChunk() throws(Problem) {
        guard let digest else { return }
        self.digest = nil
        guard verifier?.verify(chunk: digest.finish(), signature) == true else {
            throw .signatureMismatch(cause: "the signature of chunk \(chunks) is another")
        }
    }

    // MARK: Trailers

    /// Takes the line of a trailer, or the empty line at the end.
    private mutating func takeLine() throws(Problem) {
        let isBare = line.last != 0x0d
        if !isBare { line.removeLast() }
        defer { line.removeAll(keepingCapacity: true) }
        if !line.isEmpty {
            try takeTrailer()
            isBareLF = isBare
            return
        }
        if isBare { throw .malformedTrailer("the last line does not end with CRLF") }
        if verifier != nil, hasTrailer, !isTrailerVerified, isBareLF {
            isBareLF = false
            return
        }
        try endTrailers()
    }

    private mutating func takeTrailer() throws(Problem) {
        guard let colon = line.firstIndex(of: UInt8(ascii: ":")), colon > 0, line[..<colon].allSatisfy(ASCII.isToken),
            case let value = ASCII.trimmed(line[(colon + 1)...]),
            !value.contains(where: { ASCII.isControl($0) && $0 != 0x09 }), !isTrailerVerified
        else { throw .malformedTrailer("a line is not a field, or follows the signature") }
        let name = String(decoding: line[..<colon].map(ASCII.lowercased), as: UTF8.self)
        if name == "x-amz-trailer-signature", verifier != nil, hasTrailer {
            let hash = Digest(.sha256)
            hash.update(trailerText.span.bytes)
            guard verifier?.verify(trailer: hash.finish(), Array(value)) == true else {
                throw .signatureMismatch(cause: "the signature of the trailer is another")
            }
            isTrailerVerified = true
            return
        }
        guard announced.contains(name), !trailers.contains(where: { $0.name == name }) else {
            throw .malformedTrailer("a trailer was not announced, or is there twice")
        }
        trailerText.append(name)
        trailerText.append(UInt8(ascii: ":"))
        trailerText += value
        trailerText.append(0x0a)
        trailers.append((name, String(decoding: value, as: UTF8.self)))
    }

    private mutating func endTrailers() throws(Problem) {
        guard trailers.count == announced.count else { throw .malformedTrailer("an announced trailer is missing") }
        guard verifier == nil || !hasTrailer || isTrailerVerified else {
            throw .malformedTrailer("the trailer's signature is missing")
        }
        state = .done
    }
}
