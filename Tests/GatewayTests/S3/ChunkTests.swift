import HTTPServer
import OpenSSL
import System
import Testing
import Wire

@testable import Gateway

/// The framing of aws-chunked bodies: traps 5, 6 and 7.
@Suite struct ChunkTests {
    /// What a body came to.
    struct Outcome: Equatable {
        var content: [UInt8] = []
        var trailers: [String] = []
        var code: String?
    }

    private func streaming(_ fields: [(String, String)], signed: ChunkVerifier? = nil) throws -> AWSChunkDecoder {
        var header = HeaderFields()
        for (name, value) in fields { header.append(name: name, value) }
        let hasTrailer = header.contains("x-amz-trailer")
        return try AWSChunkDecoder(S3Streaming(signed: signed, hasTrailer: hasTrailer), header)
    }

    /// - Parameters:
    ///   - chunk: Bytes that arrive at a time.
    ///   - room: Bytes of content that are taken at a time.
    private func decode(
        _ body: [UInt8], length: Int, trailer: String? = nil, signed: ChunkVerifier? = nil, chunk: Int = .max,
        room: Int = .max
    ) throws -> Outcome {
        var fields = [("x-amz-decoded-content-length", "\(length)")]
        if let trailer { fields.append(("x-amz-trailer", trailer)) }
        var decoder = try streaming(fields, signed: signed)
        var outcome = Outcome()
        outcome.code =
            Refusal.of {
                var offset = 0
                while offset < body.count {
                    let end = body.count - offset > chunk ? offset + chunk : body.count
                    offset += try decoder.write(Array(body[offset..<end]).span.bytes) { part in
                        let taken = min(room, part.byteCount)
                        part.extracting(0..<taken).withUnsafeBytes { outcome.content += $0 }
                        return taken
                    }
                }
                try decoder.end()
            }?.code
        outcome.trailers = decoder.trailers.map { "\($0.name)=\($0.value)" }
        return outcome
    }

    private func text(_ body: String, length: Int, trailer: String? = nil) throws -> Outcome {
        let whole = try decode(Array(body.utf8), length: length, trailer: trailer)
        for (chunk, room) in [(1, Int.max), (3, 1), (2, 5), (.max, 3)] {
            let other = try decode(Array(body.utf8), length: length, trailer: trailer, chunk: chunk, room: room)
            #expect(other.code == whole.code && other.trailers == whole.trailers)
            if whole.code == nil { #expect(other.content == whole.content) }
        }
        return whole
    }

    private let large = String(repeating: "x", count: 8192)

    @Test func unsignedChunks() throws {
        for (body, content) in [
            ("3\r\nabc\r\n0\r\n\r\n", "abc"), ("0\r\n\r\n", ""), ("0003\r\na\r\n\r\n0\r\n\r\n", "a\r\n"),
            ("2000\r\n\(large)\r\n1;chunk-signature=x\r\ny\r\n000;a\r\n\r\n", large + "y"),
            ("2000\r\n\(large)\r\n2000\r\n\(large)\r\n0\r\n\r\n", large + large),
            ("A\r\n0123456789\r\n0\r\n\r\n", "0123456789"),
        ] {
            let found = try text(body, length: content.utf8.count)
            #expect(found == Outcome(content: Array(content.utf8)))
        }
    }

    @Test func trailers() throws {
        let crc = "x-amz-checksum-crc32"
        for (end, announced, wanted) in [
            ("\(crc):AAAA==\r\n\r\n", crc, ["\(crc)=AAAA=="]), ("X-Amz-Checksum-CRC32 :x\r\n\r\n", crc, nil),
            ("X-Amz-Checksum-CRC32:\t x \r\n\r\n", " X-amz-checksum-crc32 ,", ["\(crc)=x"]),
            ("\(crc):AAAA==\n\r\n", crc, ["\(crc)=AAAA=="]), ("\(crc):AAAA==\n\r\n\r\n", crc, ["\(crc)=AAAA=="]),
            ("a:1\r\n\(crc):x\r\n\r\n", "\(crc), a", ["a=1", "\(crc)=x"]), ("\r\n", "", []),
            ("\r\n", crc, nil), ("\(crc)c:x\r\n\r\n", crc, nil), ("\(crc):x\r\nb:1\r\n\r\n", crc, nil),
            ("\(crc):x\r\n\(crc):x\r\n\r\n", crc, nil), (":x\r\n\r\n", crc, nil), ("x\r\n\r\n", crc, nil),
            ("\(crc):a\u{1}\r\n\r\n", crc, nil), ("\(crc):x\r\n\n", crc, nil),
            ("\(crc):\(String(repeating: "a", count: 8192))\r\n\r\n", crc, nil),
            ("x-amz-trailer-signature:x\r\n\r\n", "", nil),
        ] as [(String, String, [String]?)] {
            let found = try text("3\r\nabc\r\n0\r\n" + end, length: 3, trailer: announced)
            #expect(found.code == (wanted == nil ? "MalformedTrailerError" : nil), "\(end.prefix(40))")
            if let wanted { #expect(found.trailers == wanted) }
        }
        // Without an announcement there is none.
        #expect(try text("0\r\n\(crc):x\r\n\r\n", length: 0).code == "MalformedTrailerError")
    }

    @Test("The announced algorithm: trap 7") func announcements() throws {
        let length = ("x-amz-decoded-content-length", "1")
        for (fields, code) in [
            ([], "MissingContentLength"), ([("x-amz-decoded-content-length", "x")], "InvalidRequest"),
            ([("x-amz-decoded-content-length", "-1")], "InvalidRequest"),
            ([length, ("x-amz-trailer", "x-amz-checksum-crc32,x-amz-checksum-sha1")], "InvalidRequest"),
            (
                [length, ("x-amz-trailer", "x-amz-checksum-crc32"), ("x-amz-sdk-checksum-algorithm", "SHA1")],
                "InvalidRequest"
            ),
            ([length, ("x-amz-trailer", "x-amz-checksum-crc32"), ("x-amz-sdk-checksum-algorithm", "CRC32")], nil),
            (
                [length, ("x-amz-trailer", "x-amz-checksum-crc64nvme"), ("x-amz-sdk-checksum-algorithm", "Crc64NVMe")],
                nil
            ),
            ([length, ("x-amz-trailer", (0..<17).map { "a\($0)" }.joined(separator: ","))], "InvalidRequest"),
        ] as [([(String, String)], String?)] {
            let found = Refusal.of { try streaming(fields) }
            #expect(
                found?.code == code
                    && (found?.status ?? 411) == (code == "MissingContentLength" || code == nil ? 411 : 400))
        }
    }

    @Test func wrongFraming() throws {
        let line = String(repeating: "a", count: 1024)
        for (body, length, code) in [
            ("3\r\nabc\r\n0\r\n\r\n", 4, "IncompleteBody"), ("3\r\nabc\r\n0\r\n\r\n", 2, "IncompleteBody"),
            ("3\r\nabc\r\n0\r\n", 3, "IncompleteBody"), ("3\r\nabc\r\n0\r\n\r", 3, "IncompleteBody"),
            ("3\r\nabc", 3, "IncompleteBody"), ("3\r\nab", 3, "IncompleteBody"), ("", 3, "IncompleteBody"),
            ("", 0, "IncompleteBody"),
            ("3\r\nabcd\r\n0\r\n\r\n", 3, "IncompleteBody"), ("3\nabc\r\n0\r\n\r\n", 3, "IncompleteBody"),
            ("3\r\nabc\n0\r\n\r\n", 3, "IncompleteBody"), ("3\r\nabc\r\n0\r\n\r\nx", 3, "IncompleteBody"),
            ("3\r\nabc\r\n0\r\n\r\n\r\n", 3, "IncompleteBody"), ("\r\n", 0, "IncompleteBody"),
            ("x\r\n", 0, "IncompleteBody"),
            ("-1\r\n", 0, "IncompleteBody"), ("3 \r\nabc\r\n0\r\n\r\n", 3, "IncompleteBody"),
            ("3;\(line)\r\nabc\r\n0\r\n\r\n", 3, "IncompleteBody"), ("ffffffffffffffff\r\n", 3, "IncompleteBody"),
            ("00000000000000003\r\nabc\r\n0\r\n\r\n", 3, "IncompleteBody"),
            ("3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n", 4, "InvalidChunkSizeError"),
            ("2000\r\n\(large)\r\n1\r\nd\r\n1\r\nd\r\n0\r\n\r\n", 8194, "InvalidChunkSizeError"),
        ] { #expect(try text(body, length: length).code == code, "\(body.prefix(30)) \(length)") }
        let size = Refusal.of {
            var decoder = try streaming([("x-amz-decoded-content-length", "4")])
            _ = try decoder.write(Array("3\r\nabc\r\n1\r\nd".utf8).span.bytes) { $0.byteCount }
        }
        #expect(size?.status == 400 && size?.members == ["Chunk": "2", "BadChunkSize": "3"])
    }

    // MARK: Signed chunks

    /// A signed body of `sizes`, and its verifier.
    private func signed(_ sizes: [Int], trailer: String? = nil) throws -> (body: [UInt8], verifier: ChunkVerifier) {
        let mode = trailer == nil ? "" : "-TRAILER"
        let signer = RequestSigner()
        var request = signer.request(
            "PUT", "/k",
            fields: [("x-amz-decoded-content-length", "\(sizes.reduce(0, +))")]
                + (trailer == nil ? [] : [("x-amz-trailer", "x-amz-checksum-crc32")]),
            hash: "STREAMING-AWS4-HMAC-SHA256-PAYLOAD\(mode)")
        // Digits of signatures may be in upper case.
        request = request.changing { name, value in
            name != "authorization"
                ? value : value.replacing(String(value.suffix(64)), with: String(value.suffix(64)).asciiUppercased())
        }
        let found = try Example.verifier().verify(request, now: Example.time)
        guard case .streaming(let streaming) = found.payload, let verifier = streaming.signed else {
            throw Problem(.internal, "another payload")
        }
        var previous = String(try #require(request.fields["authorization"]).suffix(64)).asciiLowercased()
        var body: [UInt8] = []
        for size in sizes + [0] {
            let chunk = String(repeating: "z", count: size)
            previous = signer.signature(
                of: "AWS4-HMAC-SHA256-PAYLOAD\n\(signer.stamp)\n\(signer.scope)\n\(previous)\n\(Example.emptyHash)\n"
                    + RequestSigner.sha256(chunk))
            body += "\(String(size, radix: 16));chunk-signature=\(previous)\r\n\(chunk)".utf8
            if size > 0 || trailer == nil { body += "\r\n".utf8 }
        }
        if let trailer {
            previous = signer.signature(
                of: "AWS4-HMAC-SHA256-TRAILER\n\(signer.stamp)\n\(signer.scope)\n\(previous)\n"
                    + RequestSigner.sha256("\(trailer)\n"))
            body += "\(trailer)\r\nx-amz-trailer-signature:\(previous)\r\n\r\n".utf8
        }
        return (body, verifier)
    }

    @Test(arguments: [[], [1], [8192], [8192, 5], [65_536, 65_536, 100]]) func signedChunks(sizes: [Int]) throws {
        let content = [UInt8](repeating: UInt8(ascii: "z"), count: sizes.reduce(0, +))
        for trailer in [nil, "x-amz-checksum-crc32:AAAAAA=="] {
            let (body, verifier) = try signed(sizes, trailer: trailer)
            for (chunk, room) in [(Int.max, Int.max), (1, .max), (7, 3), (16_384, 1000)] {
                let found = try decode(
                    body, length: content.count, trailer: trailer.map { _ in "x-amz-checksum-crc32" }, signed: verifier,
                    chunk: chunk, room: room)
                #expect(found.code == nil && found.content == content)
                #expect(found.trailers == (trailer == nil ? [] : ["x-amz-checksum-crc32=AAAAAA=="]))
            }
        }
    }

    @Test func everyChangedByteIsFound() throws {
        let trailer = "x-amz-checksum-crc32:AAAAAA=="
        let (body, verifier) = try signed([8192, 3], trailer: trailer)
        for index in Array(body.indices.prefix(120)) + Array(body.indices.suffix(420)) {
            for bit in [UInt8(1), 0x20, 0x80] {
                var changed = body
                changed[index] ^= bit
                let found = try decode(changed, length: 8195, trailer: "x-amz-checksum-crc32", signed: verifier)
                if found.code == nil {
                    // The case of a digit or of a name means nothing, nor does CR for the line end of a trailer.
                    #expect(found.content == Array(repeating: UInt8(ascii: "z"), count: 8195))
                    #expect(found.trailers == ["x-amz-checksum-crc32=AAAAAA=="])
                }
            }
        }
        for cut in [1, 2, 3, 70, 100, 150] {
            let found = try decode(
                Array(body.dropLast(cut)), length: 8195, trailer: "x-amz-checksum-crc32", signed: verifier)
            // The last empty line may be missing.
            #expect((found.code == nil) == (cut == 2), "\(cut)")
        }
    }

    @Test func signaturesAreRequired() throws {
        let (_, verifier) = try signed([3])
        for body in ["3\r\nabc\r\n0\r\n\r\n", "3;chunk-signature=\r\nabc\r\n", "0\r\n\r\n", "3;x=y\r\nabc\r\n"] {
            let length = body.hasPrefix("0") ? 0 : 3
            #expect(try decode(Array(body.utf8), length: length, signed: verifier).code == "SignatureDoesNotMatch")
        }
        // A chunk of another upload, or in another order, does not fit.
        let (body, other) = try signed([8192, 8192])
        let first = Array(body[..<(body.count / 2)])
        #expect(try decode(first + first, length: 16_384, signed: other).code == "SignatureDoesNotMatch")
        // The trailer of the signed mode requires its signature.
        let (whole, last) = try signed([3], trailer: "x-amz-checksum-crc32:AAAAAA==")
        let text = String(decoding: whole, as: UTF8.self)
        let unsigned = text.split(separator: "\n").filter { !$0.hasPrefix("x-amz-trailer-signature") }
        let code = try decode(
            Array((unsigned.joined(separator: "\n") + "\n").utf8), length: 3, trailer: "x-amz-checksum-crc32",
            signed: last
        ).code
        #expect(code == "MalformedTrailerError")
    }

    // MARK: Modes

    @Test("Framing is decoded only if it is declared: trap 5") func modes() throws {
        func mode(_ hash: String?, _ fields: [(String, String)]) throws -> String {
            var header = HeaderFields()
            for (name, value) in fields { header.append(name: name, value) }
            let hash = hash.map { Array($0.utf8) }
            let payload =
                try hash == nil ? S3Payload(nil, header, verifier: nil) : S3Payload(hash!.span, header, verifier: nil)
            switch payload {
            case .none: return "none"
            case .unsigned: return "unsigned"
            case .sha256: return "sha256"
            case .streaming(let streaming): return "streaming\(streaming.hasTrailer ? " trailer" : "")"
            }
        }
        let encoding = ("content-encoding", "gzip, AWS-chunked")
        let length = ("x-amz-decoded-content-length", "3")
        #expect(try mode(nil, []) == "none" && mode(nil, [encoding]) == "none" && mode(nil, [length]) == "none")
        #expect(try mode("UNSIGNED-PAYLOAD", [encoding]) == "unsigned")
        #expect(try mode("UNSIGNED-PAYLOAD", [encoding, length]) == "streaming")
        #expect(try mode(nil, [encoding, length, ("x-amz-trailer", "a")]) == "streaming trailer")
        #expect(try mode(Example.emptyHash, [encoding]) == "sha256")
        #expect(try mode(Example.emptyHash, [encoding, length]) == "streaming")
        #expect(try mode("STREAMING-UNSIGNED-PAYLOAD-TRAILER", []) == "streaming trailer")
        #expect(try mode("UNSIGNED-PAYLOAD", [("content-encoding", "aws-chunkedx"), length]) == "unsigned")
    }

    @Test func theHashOfAFramedBody() throws {
        final class Sink: ByteSink {
            var bytes: [UInt8] = []
            func write(_ span: RawSpan) -> Int {
                let count = min(2, span.byteCount)
                span.extracting(0..<count).withUnsafeBytes { bytes += $0 }
                return count
            }
            func whenWritable(_ resume: @escaping () -> Void) { resume() }
        }
        let body = "3\r\nabc\r\n0\r\n\r\n"
        for hash in [RequestSigner.sha256(body), Example.emptyHash] {
            let sink = ChunkDecodingSink(
                try streaming([("x-amz-decoded-content-length", "3")]), sha256: Hexadecimal.decode(hash.utf8))
            // Without a sink, no content is taken.
            #expect(try sink.write(Array(body.utf8).span.bytes) == 3)
            let content = Sink()
            sink.content = content
            var rest = Array(body.utf8.dropFirst(3))
            while !rest.isEmpty { rest.removeFirst(try sink.write(rest.span.bytes)) }
            #expect(content.bytes == Array("abc".utf8))
            let refusal = Refusal.of { try sink.end() }
            #expect(refusal?.code == (hash == Example.emptyHash ? "XAmzContentSHA256Mismatch" : nil))
        }
    }
}
