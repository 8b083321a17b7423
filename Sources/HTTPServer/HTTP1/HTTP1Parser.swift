import Wire

/// Why bytes are not a valid HTTP/1.1 request, and the status of the response.
struct HTTP1Error: Error, Equatable {
    /// 400, 408, 414, 417, 431, 501 or 505.
    var status: Int
    var reason: String
    /// The exceeded limit, if any.
    var limit: LimitKind?

    init(_ status: Int, _ reason: String, _ limit: LimitKind? = nil) {
        self.status = status
        self.reason = reason
        self.limit = limit
    }

    init(_ error: HTTP1SyntaxError) {
        self.init(400, error.reason, error.isTooLong ? .headerBytes : nil)
    }
}

/// How a request's body is delimited (RFC 9112, section 6.3).
enum HTTP1Framing: Equatable {
    case none
    case length(UInt64)
    case chunked
}

/// A parsed request head.
struct HTTP1Head {
    var request: RequestHead
    var framing: HTTP1Framing
    var version: HTTPVersion
    var keepAlive: Bool
    /// The size of the head in bytes.
    var length: Int
}

extension HTTP1Error {
    /// The first bytes of other protocols, with the reason for the rejection.
    private static let others: [(start: [UInt8], detail: String)] = [
        ([0x16, 0x03], "TLS on a port without TLS: use http"),
        (Array("PROXY TCP".utf8), proxyHeader), (Array("PROXY UNKNOWN".utf8), proxyHeader),
        (ProxyHeader.signature, proxyHeader),
    ]
    private static let proxyHeader = "unexpected PROXY header: it must come first, from a peer in listen.trustedProxies"

    /// An error that names the connection's protocol; nil if it may be HTTP.
    init?(notHTTP input: Span<UInt8>) {
        // No common method begins like one of them, except for the first byte.
        guard input.count >= 2, [0x16, UInt8(ascii: "P"), cr].contains(input[0]) else { return nil }
        let found = HTTP1Error.others.first { start, _ in
            input.count >= start.count && start.indices.allSatisfy { input[$0] == start[$0] }
        }
        guard let found else { return nil }
        self.init(400, found.detail)
    }
}

/// Parses request heads strictly (RFC 9112): input that parsers could interpret differently is an error.
struct HTTP1Parser {
    var limits: ServerLimits

    /// Parses one head at the start of `input`; returns nil if it is incomplete.
    /// - Throws: ``HTTP1Error`` if the head is malformed or exceeds a limit.
    func parse(_ input: Span<UInt8>) throws(HTTP1Error) -> HTTP1Head? {
        var offset = 0
        if let error = HTTP1Error(notHTTP: input) { throw error }
        // One empty line before the request line is tolerated (RFC 9112, section 2.2).
        if input.count >= 2, input[0] == cr, input[1] == lf { offset = 2 }
        guard let lineEnd = try endOfLine(input, from: offset, most: limits.targetBytes + 64, 414) else { return nil }
        var (request, version) = try requestLine(input.extracting(offset..<lineEnd))
        offset = lineEnd + 2
        var budget = limits.headerBytes
        while true {
            guard let end = try endOfLine(input, from: offset, most: budget, 431) else {
                return nil
            }
            if end == offset { break }
            try field(input.extracting(offset..<end), into: &request.fields)
            budget -= end - offset + 32
            if budget < 0 { throw HTTP1Error(431, "header block too large", .headerBytes) }
            if request.fields.count > limits.headerFields {
                throw HTTP1Error(431, "too many header fields", .headerFields)
            }
            offset = end + 2
        }
        let framing = try framing(request.fields, version)
        var keepAlive = version == .http1_1
        for option in tokens(request.fields.list("connection")) {
            if option == "close" { keepAlive = false }
        }
        try host(&request, version)
        try expectation(&request, version)
        switch framing {
        case .none: break
        case .length(let length):
            request.contentLength = length
            request.hasBody = true
        case .chunked: request.hasBody = true
        }
        return HTTP1Head(
            request: request, framing: framing, version: version, keepAlive: keepAlive,
            length: offset + 2)
    }

    /// The offset of the CR LF that ends the line; nil if more bytes are needed.
    private func endOfLine(_ input: Span<UInt8>, from start: Int, most: Int, _ status: Int)
        throws(HTTP1Error) -> Int?
    {
        var offset = start
        while true {
            let found = ASCII.firstIndex(atMost: cr, in: input, from: offset)
            guard (found ?? input.count) - start <= most else {
                throw status == 414
                    ? HTTP1Error(414, "request line too long", .targetBytes)
                    : HTTP1Error(431, "header block too large", .headerBytes)
            }
            guard let found else { return nil }
            switch input[found] {
            case cr:
                if found + 1 == input.count { return nil }
                guard input[found + 1] == lf else { throw HTTP1Error(400, "CR without LF") }
                return found
            case lf: throw HTTP1Error(400, "LF without CR")
            case 0: throw HTTP1Error(400, "NUL in the header block")
            default: offset = found + 1
            }
        }
    }

    private func requestLine(_ line: Span<UInt8>) throws(HTTP1Error) -> (RequestHead, HTTPVersion) {
        var offset = 0
        while offset < line.count, ASCII.isToken(line[offset]) { offset += 1 }
        guard offset > 0, offset <= 32, offset < line.count, line[offset] == space else {
            throw HTTP1Error(400, "malformed request line")
        }
        let method = text(line.extracting(0..<offset))
        let targetStart = offset + 1
        guard let end = ASCII.firstIndex(atMost: space, in: line, from: targetStart), end > targetStart,
            line[end] == space, ASCII.firstIndex(of: "\u{7f}", in: line.extracting(..<end), from: targetStart) == nil
        else { throw HTTP1Error(400, "malformed request target") }
        offset = end
        if offset - targetStart > limits.targetBytes {
            throw HTTP1Error(414, "request target too long", .targetBytes)
        }
        let version = try httpVersion(line.extracting((offset + 1)..<line.count))
        var request = RequestHead(
            method: method, target: "", authority: nil,
            fields: HeaderFields(reserving: 512), contentLength: nil, hasBody: false,
            expectsContinue: false)
        let target = line.extracting(targetStart..<offset).withUnsafeBufferPointer {
            String(utf8: $0)
        }
        guard let target else { throw HTTP1Error(400, "request target is not UTF-8") }
        try setTarget(target, of: &request)
        return (request, version)
    }

    private func httpVersion(_ bytes: Span<UInt8>) throws(HTTP1Error) -> HTTPVersion {
        let name: StaticString = "HTTP/"
        let isNamed = name.withUTF8Buffer { name in bytes.count > 5 && name.indices.allSatisfy { name[$0] == bytes[$0] }
        }
        guard isNamed else { throw HTTP1Error(400, "malformed HTTP version") }
        let digits = UInt8(ascii: "0")...UInt8(ascii: "9")
        // A later minor version is served as the highest that is known (RFC 9110, section 2.5).
        guard bytes.count == 8, bytes[5] == UInt8(ascii: "1"), bytes[6] == UInt8(ascii: "."), digits.contains(bytes[7])
        else { throw HTTP1Error(505, "HTTP version not supported") }
        return bytes[7] == UInt8(ascii: "0") ? .http1_0 : .http1_1
    }

    /// Origin form, absolute form (RFC 9112, section 3.2.2) and the asterisk of OPTIONS.
    private func setTarget(_ target: String, of request: inout RequestHead) throws(HTTP1Error) {
        if isTarget(target, of: request.method) {
            request.target = target
            return
        }
        let lower = target.prefix(8).asciiLowercased()
        let schemeLength = lower.hasPrefix("http://") ? 7 : lower.hasPrefix("https://") ? 8 : 0
        guard schemeLength > 0 else { throw HTTP1Error(400, "malformed request target") }
        let rest = target.utf8.dropFirst(schemeLength)
        let slash = rest.firstIndex { $0 == UInt8(ascii: "/") || $0 == UInt8(ascii: "?") } ?? rest.endIndex
        guard slash > rest.startIndex else { throw HTTP1Error(400, "malformed request target") }
        let authority = String(rest[..<slash]) ?? ""
        let path = String(rest[slash...]) ?? ""
        let origin = path.utf8.first == UInt8(ascii: "/") ? path : "/" + path
        guard isHost(authority), isTarget(origin, of: request.method) else {
            throw HTTP1Error(400, "malformed request target")
        }
        request.authority = authority
        request.target = origin
    }

    private func field(_ line: Span<UInt8>, into fields: inout HeaderFields) throws(HTTP1Error) {
        do throws(HTTP1SyntaxError) {
            _ = try fields.append(line: line)
        } catch {
            throw HTTP1Error(error)
        }
    }

    private func framing(_ fields: HeaderFields, _ version: HTTPVersion) throws(HTTP1Error)
        -> HTTP1Framing
    {
        let lengths = fields.values("content-length")
        if fields.contains("transfer-encoding") {
            guard lengths.isEmpty else {
                throw HTTP1Error(400, "both Content-Length and Transfer-Encoding")
            }
            guard version == .http1_1 else {
                throw HTTP1Error(400, "Transfer-Encoding in HTTP/1.0")
            }
            let codings = fields.values("transfer-encoding")
            guard codings.count == 1, ASCII.isEqual(codings[0].utf8.span, ignoringCase: "chunked") else {
                throw HTTP1Error(501, "transfer coding other than chunked")
            }
            return .chunked
        }
        guard let first = lengths.first else { return .none }
        guard lengths.count == 1 else { throw HTTP1Error(400, "several Content-Length fields") }
        guard let length = Decimal.parse(first.utf8.span, maximumDigits: 19) else {
            throw HTTP1Error(400, "malformed Content-Length")
        }
        return .length(length)
    }

    private func host(_ request: inout RequestHead, _ version: HTTPVersion) throws(HTTP1Error) {
        let hosts = request.fields.values("host")
        if hosts.count > 1 { throw HTTP1Error(400, "several Host fields") }
        if hosts.isEmpty && version == .http1_1 { throw HTTP1Error(400, "no Host field") }
        if let host = hosts.first {
            guard isHost(host) else { throw HTTP1Error(400, "malformed Host field") }
            if request.authority == nil { request.authority = host }
        }
    }

    private func expectation(_ request: inout RequestHead, _ version: HTTPVersion)
        throws(HTTP1Error)
    {
        guard let expect = request.fields.list("expect"), version == .http1_1 else { return }
        guard ASCII.isEqual(expect.utf8.span, ignoringCase: "100-continue") else {
            throw HTTP1Error(417, "unknown expectation")
        }
        request.expectsContinue = true
    }
}

// MARK: Characters

let cr = UInt8(ascii: "\r")
let lf = UInt8(ascii: "\n")
let space = UInt8(ascii: " ")
let tab = UInt8(ascii: "\t")

/// Whether a target is a path with or without a query, or `*`; never a fragment (RFC 9110, section 7.1).
func isTarget(_ target: String, of method: String) -> Bool {
    let bytes = target.utf8.span
    guard !bytes.isEmpty, bytes[0] == UInt8(ascii: "/") else {
        return target == "*" && method == "OPTIONS"
    }
    return ASCII.firstIndex(of: "#", in: bytes, from: 0) == nil
}

/// Whether the text is a host with an optional port, in the characters of RFC 3986, section 3.2.2, except the comma:
/// two joined fields are not a host.
func isHost(_ text: String) -> Bool {
    let bytes = text.utf8.span
    guard bytes.count <= 255 else { return false }
    for index in bytes.indices {
        switch bytes[index] {
        case UInt8(ascii: "["), UInt8(ascii: "]"), UInt8(ascii: ":"), UInt8(ascii: "%"): continue
        case UInt8(ascii: "("), UInt8(ascii: ")"), UInt8(ascii: ";"), UInt8(ascii: "="): continue
        // These token characters are not allowed in a host.
        case UInt8(ascii: "#"), UInt8(ascii: "^"), UInt8(ascii: "`"), UInt8(ascii: "|"): return false
        case let byte: if !ASCII.isToken(byte) { return false }
        }
    }
    return true
}

extension String {
    /// Decodes UTF-8; nil if it is malformed. The standard library's validating initializer is not specialized and
    /// takes a microsecond more.
    init?(utf8 bytes: UnsafeBufferPointer<UInt8>) {
        if bytes.allSatisfy({ $0 < 0x80 }) {
            self.init(decoding: bytes, as: UTF8.self)
        } else {
            self.init(validating: bytes, as: UTF8.self)
        }
    }
}

private func tokens(_ list: String?) -> [String] {
    guard let list else { return [] }
    return list.split(separator: ",").map { part in
        var part = part
        while part.first == " " || part.first == "\t" { part.removeFirst() }
        while part.last == " " || part.last == "\t" { part.removeLast() }
        return part.asciiLowercased()
    }
}

private func text(_ span: Span<UInt8>) -> String {
    span.withUnsafeBufferPointer { String(decoding: $0, as: UTF8.self) }
}
