import Buckets
import Wire

@testable import Gateway
@testable import HTTPServer

private func fields(_ bytes: [UInt8], _ names: [StaticString]) -> HeaderFields {
    var fields = HeaderFields()
    for (name, line) in zip(names, bytes.split(separator: lf, omittingEmptySubsequences: false))
    where !line.isEmpty {
        fields.append(name, String(decoding: line, as: UTF8.self))
    }
    return fields
}

/// Parses a target into the route, its name and its query. An accepted name is within the limits, and parsing its
/// encoding gives the same name.
func fuzzName(_ bytes: [UInt8]) {
    let target = String(decoding: bytes, as: UTF8.self)
    guard let route = try? Route(target: target) else { return }
    _ = try? Query(route.query)
    guard case .named(let path) = route.path, let name = try? ObjectName(percentEncoded: path)
    else { return }
    let value = Array(name.value.utf8)
    precondition((1...ObjectName.maximumBytes).contains(value.count) && !value.contains(0))
    let segments = value.split(separator: UInt8(ascii: "/"), omittingEmptySubsequences: false)
    precondition(
        segments.allSatisfy {
            !$0.isEmpty && !$0.elementsEqual(".".utf8) && !$0.elementsEqual("..".utf8)
        })
    let again = try? ObjectName(
        percentEncoded: Array(PercentEncoding.encodePath(name.value).utf8)[...])
    precondition(again.map { $0.value.utf8.elementsEqual(value) } ?? false)
}

/// A `Range` field. Its selection lies within the object.
func fuzzRange(_ bytes: [UInt8]) {
    guard let range = ByteRange(bytes[...]) else { return }
    for size in [0, 1, 2, 10, 1000, 1 << 40, UInt64.max] {
        if case .part(let part) = range.select(size: size) {
            precondition(!part.isEmpty && part.upperBound <= size)
        }
    }
}

/// Conditional fields, one per line.
func fuzzPreconditions(_ bytes: [UInt8]) {
    let names: [StaticString] = [
        "if-match", "if-none-match", "if-modified-since", "if-unmodified-since",
        "x-object-generation-match", "x-object-metageneration-match",
    ]
    _ = try? Preconditions(fields(bytes, names), now: 1_700_000_000)
    for line in bytes.split(separator: lf) { _ = HTTPDate.parse(line, now: 1_700_000_000) }
}

/// Digest fields, one per line.
func fuzzDigest(_ bytes: [UInt8]) {
    _ = try? ExpectedDigests(fields(bytes, ["content-digest", "repr-digest", "content-md5"]))
}

/// A page token. One that the gateway has written is read back.
func fuzzPageToken(_ bytes: [UInt8]) {
    let text = String(decoding: bytes, as: UTF8.self)
    _ = PageToken.decode(text, bucket: "b", prefix: "p/", isDelimited: true)
    guard !text.isEmpty else { return }
    let token = PageToken.encode(after: text, bucket: "b", prefix: "p/", isDelimited: false)
    let end = PageToken.decode(token, bucket: "b", prefix: "p/", isDelimited: false)
    precondition(end.map { $0.utf8.elementsEqual(text.utf8) } ?? false)
    precondition(PageToken.decode(token, bucket: "b", prefix: "p/", isDelimited: true) == nil)
}

/// A merge patch.
func fuzzPatch(_ bytes: [UInt8]) { _ = try? AttributePatch(mergePatch: bytes) }

/// The token of an upload session. What opens is what its own sealing gives back, in no other spelling.
func fuzzUploadToken(_ bytes: [UInt8]) {
    let keys = uploadKeys
    if let token = keys.open(bytes[...]) {
        precondition(keys.open(Array(keys.seal(token).utf8)[...]) == token)
    }
    let token = UploadToken(
        dialect: .ietf, bucket: "b", id: UploadSessionID(expires: Int64(bytes.count)))
    var sealed = Array(keys.seal(token).utf8)
    precondition(keys.open(sealed[...]) == token)
    guard let first = bytes.first else { return }
    sealed[bytes.count % sealed.count] ^= first
    precondition(first == 0 || keys.open(sealed[...]) == nil)
}

private let uploadKeys = UploadKeys.random()

/// `Upload-Metadata` and `Upload-Checksum` of tus, one per line. What is accepted can be a response's field again.
func fuzzUploadMetadata(_ bytes: [UInt8]) {
    let fields = fields(bytes, ["upload-metadata", "upload-checksum"])
    _ = try? UploadChecksum(fields)
    guard let metadata = try? UploadMetadata(fields) else { return }
    precondition(metadata.text.utf8.allSatisfy { ASCII.isVisible($0) || ASCII.isSpace($0) })
    guard let name = try? ObjectName(metadata.required("objectName")),
        let attributes = try? metadata.attributes(name)
    else { return }
    for value in [attributes.contentType, attributes.cacheControl] {
        precondition(value?.utf8.contains { ASCII.isControl($0) && $0 != 0x09 } != true)
    }
}

/// What a client sends in `Forwarded` and `X-Forwarded-For`, to which a trusted proxy appends the client's address. No
/// other client is ever seen.
func fuzzForwarded(_ bytes: [UInt8]) {
    let proxies = TrustedProxies(["10.0.0.0/8", "::/0"])!
    for (name, appended) in [("forwarded", "for=192.0.2.1"), ("x-forwarded-for", "192.0.2.1")] {
        var sent = HeaderFields()
        sent.append(name: name, String(decoding: bytes, as: UTF8.self))
        sent.append(name: name, appended)
        let head = RequestHead(
            method: "GET", target: "/", authority: nil, fields: sent, contentLength: nil,
            hasBody: false, expectsContinue: false)
        let peer = ForwardedClient(head, proxies).peer
        precondition(peer == "192.0.2.1:0" || peer == nil && name == "forwarded")
    }
}

/// The first bytes of a connection from a trusted proxy. A header is within the bytes, and found at its last byte.
func fuzzProxyHeader(_ bytes: [UInt8]) {
    func read(_ bytes: some Collection<UInt8>) -> ProxyHeader {
        Array(bytes).withUnsafeBytes { ProxyHeader($0) }
    }
    let header = read(bytes)
    guard case .complete(let length, _, _) = header else { return }
    precondition(length <= bytes.count && length <= ProxyHeader.limit)
    precondition(read(bytes.prefix(length)) == header)
    precondition(read(bytes.prefix(length - 1)) == .incomplete)
}

/// `traceparent` on the first line, `tracestate` on the others. What is passed on is well-formed and means the same.
func fuzzTrace(_ bytes: [UInt8]) {
    let lines = bytes.split(separator: lf, omittingEmptySubsequences: false)
    if let context = lines[0].withUnsafeBufferPointer(TraceContext.init) {
        let again = Array(context.field.utf8).withUnsafeBufferPointer(TraceContext.init)
        precondition(again == context && context.field.utf8.count == 55)
    }
    if let state = TraceState.joined(lines.dropFirst().map { String(decoding: $0, as: UTF8.self) }) {
        precondition(TraceState.joined([state]) == state && state.utf8.count <= 512)
    }
}

/// A collector's response to spans.
func fuzzSpans(_ bytes: [UInt8]) { precondition(rejectedSpans(of: bytes) >= 0) }
