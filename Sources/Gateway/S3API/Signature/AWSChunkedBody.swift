import HTTPServer
import OpenSSL
import System

/// Receives an `aws-chunked` body: the object's bytes go to the sink as they arrive, with back-pressure. The body may
/// come with any framing of HTTP. Confined to the request's loop.
final class AWSChunkedBody: UploadBody {
    private let exchange: Exchange
    private let sink: ChunkDecodingSink

    /// - Throws: ``Problem``: `MissingContentLength`, `InvalidRequest`; `IncompleteBody` if there is no body.
    init(_ streaming: S3Streaming, _ exchange: Exchange) throws(Problem) {
        self.exchange = exchange
        sink = ChunkDecodingSink(try AWSChunkDecoder(streaming, exchange.head.fields), sha256: streaming.bodySHA256)
        guard exchange.head.hasBody else { throw .incompleteBody }
    }

    /// The declared size of the object in bytes. The body has exactly this size, or fails.
    var decodedLength: UInt64 { sink.decoder.decodedLength }

    /// The trailers, in order: name in lower case, and value. Complete after ``receive(into:limit:)``.
    var trailers: [(name: String, value: String)] { sink.decoder.trailers }

    func receive(into content: any ByteSink, limit: UInt64) async throws(BodyError) {
        guard decodedLength <= limit else { throw .tooLarge }
        sink.content = content
        // What surrounds the object's bytes is limited by the decoder.
        _ = try await exchange.receive(into: sink)
        do throws(Problem) {
            try sink.end()
        } catch {
            throw .sink(error)
        }
    }

    func stop() {}
}

/// Decodes a body and passes its content on. Confined to its loop.
final class ChunkDecodingSink: ByteSink {
    private(set) var decoder: AWSChunkDecoder
    var content: (any ByteSink)?
    private let wanted: [UInt8]?
    private let digest: Digest?

    /// - Parameter sha256: The expected hash of the body before its decoding, if any.
    init(_ decoder: AWSChunkDecoder, sha256: [UInt8]? = nil) {
        self.decoder = decoder
        wanted = sha256
        digest = sha256.map { _ in Digest(.sha256) }
    }

    func write(_ bytes: RawSpan) throws -> Int {
        let taken = try decoder.write(bytes) { [content] part in try content?.write(part) ?? 0 }
        digest?.update(bytes.extracting(0..<taken))
        return taken
    }

    func whenWritable(_ resume: @escaping () -> Void) { content?.whenWritable(resume) }

    /// - Throws: ``Problem`` if the body is incomplete, or has another hash.
    func end() throws(Problem) {
        try decoder.end()
        if let wanted, let digest, digest.finish() != wanted {
            throw .s3(
                .checksumMismatch, 400, "XAmzContentSHA256Mismatch",
                "The provided 'x-amz-content-sha256' header does not match what was computed.")
        }
    }
}
