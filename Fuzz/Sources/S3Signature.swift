import Identity
import OpenSSL
import Wire

@testable import Gateway

private let verifier: S3Verifier = {
    guard let keys = try? AccessKeys(text: "AKIAIOSFODNN7EXAMPLE wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY alice") else {
        fatalError("the key is malformed")
    }
    return S3Verifier(region: nil, keys: keys, sessionKeys: .random()) { _ in true }
}()

private let now: Int64 = 1_369_353_600

/// The error of a request; nil if it is accepted. An error never has the signature that would be right.
private func check(_ request: S3SignedRequest) -> Problem? {
    do throws(Problem) {
        let found = try verifier.verify(request, now: now)
        if !found.isPresigned { precondition(found.hoisted.isEmpty) }
        precondition(found.hoisted.allSatisfy { $0.name.utf8.starts(with: "x-amz-".utf8) })
        return nil
    } catch {
        precondition(error.dialect.map { (400..<600).contains($0.status) } ?? true)
        for member in error.dialect?.members ?? [] { precondition(member.value.utf8.count <= 64 * 1024) }
        return error
    }
}

/// An `Authorization` field, a request of whose other lines are `name:value`. Only the known examples are accepted, or
/// what is equal to them in canonical form.
func fuzzS3Authorization(_ bytes: [UInt8]) {
    let lines = bytes.split(separator: UInt8(ascii: "\n"), omittingEmptySubsequences: false)
    var fields = HeaderFields()
    fields.append("authorization", String(decoding: lines.first ?? [], as: UTF8.self))
    for line in lines.dropFirst() {
        let parts = line.split(separator: UInt8(ascii: ":"), maxSplits: 1)
        guard parts.count == 2, parts[0].allSatisfy({ ASCII.isToken($0) && !ASCII.isUppercase($0) }) else { continue }
        fields.append(name: String(decoding: parts[0], as: UTF8.self), String(decoding: parts[1], as: UTF8.self))
    }
    let request = S3SignedRequest(
        method: "GET", target: RequestTarget("/test.txt"), authority: "examplebucket.s3.amazonaws.com", fields: fields,
        query: S3Query(nil))
    // The result is the same a second time, with the kept key.
    let (first, second) = (check(request), check(request))
    precondition(first?.detail == second?.detail && first?.code == second?.code)
}

/// A target. Its canonical query does not depend on the order of its parameters, and encoding it again changes nothing.
func fuzzS3Query(_ bytes: [UInt8]) {
    let target = String(decoding: bytes.filter { $0 > 0x20 && $0 < 0x7f }, as: UTF8.self)
    let whole = RequestTarget(target)
    let query = S3Query(whole.query)
    _ = check(
        S3SignedRequest(method: "GET", target: whole, authority: "localhost", fields: HeaderFields(), query: query))
    var canonical: [UInt8] = []
    query.append(to: &canonical)
    var again: [UInt8] = []
    S3Query(canonical[...]).append(to: &again)
    precondition(again == canonical)
    if let text = whole.query {
        let reversed = text.split(separator: UInt8(ascii: "&")).reversed().joined(separator: [UInt8(ascii: "&")])
        var other: [UInt8] = []
        S3Query(Array(reversed)[...]).append(to: &other)
        precondition(other == canonical)
    }
    var path: [UInt8] = []
    path.append(canonical: whole.path.span, slash: true, plus: false)
    var twice: [UInt8] = []
    twice.append(canonical: path.span, slash: true, plus: false)
    precondition(twice == path)
}

/// A body of `aws-chunked`: the first byte selects a trailer and signatures, the second the length. The result does not
/// depend on where the body is cut, or on how much of its content is taken at a time.
func fuzzAWSChunked(_ bytes: [UInt8]) {
    guard bytes.count >= 2 else { return }
    var fields = HeaderFields()
    fields.append("x-amz-decoded-content-length", Int(bytes[1]))
    if bytes[0] & 1 != 0 { fields.append("x-amz-trailer", "x-amz-checksum-crc32") }
    var streaming = S3Streaming(hasTrailer: bytes[0] & 1 != 0)
    if bytes[0] & 2 != 0, let credential = S3Credential(Array("A/20130524/r/s3/aws4_request".utf8)),
        let names = SignedNames(Array("host".utf8))
    {
        streaming.signed = ChunkVerifier(
            SignatureClaim(credential, names, signature: [], stamp: [], payloadHash: [], token: nil),
            HMAC(key: [1]))
    }
    let body = Array(bytes.dropFirst(2))
    let whole = decoded(body, streaming, fields, chunk: body.count, room: .max)
    precondition(!whole.isComplete || whole.content.count == Int(bytes[1]))
    precondition(whole.content.count <= Int(bytes[1]))
    precondition(!whole.isComplete || whole.trailers.count == Int(bytes[0] & 1))
    for (chunk, room) in [(1, Int.max), (3, 1), (body.count, 2)] {
        let other = decoded(body, streaming, fields, chunk: chunk, room: room)
        precondition(other.isComplete == whole.isComplete)
        if whole.isComplete { precondition(other.content == whole.content && other.trailers == whole.trailers) }
    }
}

private func decoded(
    _ body: [UInt8], _ streaming: S3Streaming, _ fields: HeaderFields, chunk: Int, room: Int
) -> (isComplete: Bool, content: [UInt8], trailers: [String]) {
    guard var decoder = try? AWSChunkDecoder(streaming, fields) else { return (false, [], []) }
    var content: [UInt8] = []
    var isComplete = true
    do {
        var offset = 0
        while offset < body.count {
            let part = Array(body[offset..<min(body.count, offset + max(chunk, 1))])
            let taken = try decoder.write(part.span.bytes) { bytes in
                let taken = min(room, bytes.byteCount)
                bytes.extracting(0..<taken).withUnsafeBytes { content += $0 }
                return taken
            }
            precondition((0...part.count).contains(taken))
            offset += taken
        }
        try decoder.end()
    } catch {
        isComplete = false
    }
    return (isComplete, content, decoder.trailers.map { "\($0.name):\($0.value)" })
}

/// A form with the boundary `B`, or the JSON of a policy if the input begins with `{`. An accepted policy covers each
/// field.
func fuzzPostForm(_ bytes: [UInt8]) {
    if bytes.first == UInt8(ascii: "{") {
        guard let policy = try? PostPolicy(json: bytes) else { return }
        var form = PostForm()
        form.fields = [PostForm.Field(name: "key", value: "user/a"), PostForm.Field(name: "acl", value: "private")]
        if (try? policy.check(form, bucket: "b", now: now)) != nil {
            let covered = policy.conditions.filter { condition in
                switch condition {
                case .equal("key", "user/a"), .equal("acl", "private"): true
                case .startsWith("key", let prefix): "user/a".hasPrefix(prefix)
                case .startsWith("acl", let prefix): "private".hasPrefix(prefix)
                default: false
                }
            }
            precondition(covered.count >= 2 && policy.expiration > now * 1000)
        }
        return
    }
    let whole = form(bytes, chunk: bytes.count, room: .max)
    for (chunk, room) in [(1, Int.max), (3, 1), (bytes.count, 2)] {
        let other = form(bytes, chunk: chunk, room: room)
        precondition(other.isComplete == whole.isComplete)
        if whole.isComplete { precondition(other.form == whole.form && other.content == whole.content) }
    }
    let names = whole.form.fields.map { BytewiseString($0.name) }
    precondition(Set(names).count == names.count)
    _ = try? verifier.verify(whole.form, bucket: "b", now: now)
}

private func form(_ body: [UInt8], chunk: Int, room: Int) -> (isComplete: Bool, form: PostForm, content: [UInt8]) {
    guard let boundary = MultipartBoundary("multipart/form-data; boundary=B", type: "multipart/form-data") else {
        fatalError("the boundary is malformed")
    }
    var parser = PostFormParser(boundary)
    var content: [UInt8] = []
    var isComplete = true
    do {
        var offset = 0
        while offset < body.count {
            let part = Array(body[offset..<min(body.count, offset + max(chunk, 1))])
            let taken = try parser.write(part.span.bytes) { bytes in
                let taken = min(room, bytes.byteCount)
                bytes.extracting(0..<taken).withUnsafeBytes { content += $0 }
                return taken
            }
            precondition((0...part.count).contains(taken))
            offset += taken
        }
        try parser.end()
    } catch {
        isComplete = false
    }
    return (isComplete, parser.form, content)
}
