import Glibc
import Wire

/// A response's head and the framing of its body (RFC 9112, section 6.3).
struct HTTP1ResponseHead {
    enum Framing: Equatable {
        case none
        case length(UInt64)
        case chunked
        case untilClose
    }
    /// 100 to 599.
    var status: Int
    var fields: HeaderFields
    var framing: Framing
    /// The declared length, even if no body follows (responses to HEAD, and 304).
    var contentLength: UInt64?
    /// Whether the connection can carry another request.
    var keepAlive: Bool
    /// The number of bytes of the head.
    var length: Int
}

/// Parses one response head strictly (RFC 9112) and incrementally. Each byte is examined once.
struct HTTP1ResponseParser {
    /// The maximum size of a head in bytes.
    static let maximumBytes = 64 * 1024
    static let maximumFields = 1024

    /// Whether the request was HEAD, so that no body follows.
    private let respondsToHead: Bool
    private var lineStart = 0
    private var scanned = 0
    private var status = 0
    private var isHTTP10 = false
    private var fields = HeaderFields()
    private var contentLength: UInt64?
    private var isChunked = false
    private var saysClose = false
    private var saysKeepAlive = false

    init(respondsToHead: Bool) { self.respondsToHead = respondsToHead }

    /// Continues with `input`, which begins with the head and has grown since the last call; nil for more bytes.
    /// - Throws: ``HTTP1SyntaxError`` if the head is malformed or too long.
    mutating func parse(_ input: Span<UInt8>) throws(HTTP1SyntaxError) -> HTTP1ResponseHead? {
        while let end = endOfLine(input) {
            guard end > lineStart, input[end - 1] == UInt8(ascii: "\r") else {
                throw HTTP1SyntaxError("LF without CR")
            }
            guard end < HTTP1ResponseParser.maximumBytes else { throw .tooLarge }
            let line = input.extracting(lineStart..<end - 1)
            lineStart = end + 1
            scanned = lineStart
            if status == 0 {
                try statusLine(line)
            } else if line.isEmpty {
                return try finish()
            } else {
                try field(line)
            }
        }
        scanned = input.count
        if input.count >= HTTP1ResponseParser.maximumBytes { throw .tooLarge }
        if status == 0 { try checkStart(input) }
        return nil
    }

    private func endOfLine(_ input: Span<UInt8>) -> Int? {
        input.withUnsafeBufferPointer { bytes in
            guard let start = bytes.baseAddress, scanned < bytes.count,
                let found = memchr(start + scanned, 10, bytes.count - scanned)
            else { return nil }
            return UnsafeRawPointer(found) - UnsafeRawPointer(start)
        }
    }

    private static let version: StaticString = "HTTP/1."

    /// Throws if the bytes so far can't begin a status line, so that a peer with another protocol fails at once.
    private func checkStart(_ input: Span<UInt8>) throws(HTTP1SyntaxError) {
        let version = HTTP1ResponseParser.version
        // A TLS alert (RFC 8446, section 5.1).
        if input.count > 0, input[0] == 0x15 {
            throw HTTP1SyntaxError("the port speaks TLS: the endpoint needs https")
        }
        for index in 0..<min(input.count, version.utf8CodeUnitCount)
        where input[index] != version.utf8Start[index] {
            throw HTTP1SyntaxError("no HTTP/1.1 status line")
        }
    }

    /// `HTTP/1.1 200 OK`. The reason may be empty, and then the space before it may be missing.
    private mutating func statusLine(_ line: Span<UInt8>) throws(HTTP1SyntaxError) {
        try checkStart(line)
        guard line.count >= 12, line[7] == UInt8(ascii: "1") || line[7] == UInt8(ascii: "0"),
            line[8] == 0x20
        else { throw HTTP1SyntaxError("no HTTP/1.1 status line") }
        isHTTP10 = line[7] == UInt8(ascii: "0")
        var code = 0
        for index in 9..<12 {
            guard ASCII.isDigit(line[index]) else { throw HTTP1SyntaxError("malformed status") }
            code = code * 10 + Int(line[index] - 0x30)
        }
        guard code >= 100, code <= 599, line.count == 12 || line[12] == 0x20 else {
            throw HTTP1SyntaxError("malformed status")
        }
        guard !HTTP1FieldLine.hasControl(line) else {
            throw HTTP1SyntaxError("control character in the status line")
        }
        status = code
        fields = HeaderFields(reserving: 512)
    }

    private mutating func field(_ line: Span<UInt8>) throws(HTTP1SyntaxError) {
        let parts = try fields.append(line: line)
        let name = line.extracting(0..<parts.nameLength)
        let value = line.extracting(parts.value)
        if fields.count > HTTP1ResponseParser.maximumFields {
            throw HTTP1SyntaxError("too many header fields", isTooLong: true)
        }
        switch parts.nameLength {
        case 10 where ASCII.isEqual(name, ignoringCase: "connection"): takeOptions(value)
        case 14 where ASCII.isEqual(name, ignoringCase: "content-length"):
            guard contentLength == nil else {
                throw HTTP1SyntaxError("several Content-Length fields")
            }
            // No object is longer, and callers may convert the length to a signed integer.
            contentLength = Decimal.parse(
                value, maximumDigits: 19, maximum: UInt64(Int64.max))
            guard contentLength != nil else {
                throw HTTP1SyntaxError("malformed Content-Length")
            }
        case 17 where ASCII.isEqual(name, ignoringCase: "transfer-encoding"):
            guard !isChunked, ASCII.isEqual(value, ignoringCase: "chunked") else {
                throw HTTP1SyntaxError("transfer coding other than chunked")
            }
            isChunked = true
        default: break
        }
    }

    /// Parses the options of a `Connection` field (RFC 9110, section 7.6.1).
    private mutating func takeOptions(_ value: Span<UInt8>) {
        var start = 0
        while start < value.count {
            var end = start
            while end < value.count, value[end] != UInt8(ascii: ",") { end += 1 }
            var (first, last) = (start, end)
            while first < last, ASCII.isSpace(value[first]) { first += 1 }
            while last > first, ASCII.isSpace(value[last - 1]) { last -= 1 }
            let option = value.extracting(first..<last)
            if ASCII.isEqual(option, ignoringCase: "close") { saysClose = true }
            if ASCII.isEqual(option, ignoringCase: "keep-alive") { saysKeepAlive = true }
            start = end + 1
        }
    }

    private func finish() throws(HTTP1SyntaxError) -> HTTP1ResponseHead {
        if isChunked && contentLength != nil {
            throw HTTP1SyntaxError("both Content-Length and Transfer-Encoding")
        }
        if isChunked && isHTTP10 { throw HTTP1SyntaxError("Transfer-Encoding in HTTP/1.0") }
        if status == 101 { throw HTTP1SyntaxError("a protocol that was not asked for") }
        let framing: HTTP1ResponseHead.Framing =
            if respondsToHead || status < 200 || status == 204 || status == 304 {
                .none
            } else if isChunked {
                .chunked
            } else if let contentLength {
                contentLength == 0 ? .none : .length(contentLength)
            } else {
                .untilClose
            }
        return HTTP1ResponseHead(
            status: status, fields: fields, framing: framing, contentLength: contentLength,
            keepAlive: !saysClose && (!isHTTP10 || saysKeepAlive) && framing != .untilClose, length: lineStart)
    }
}

extension HTTP1SyntaxError {
    fileprivate static var tooLarge: HTTP1SyntaxError {
        HTTP1SyntaxError("the response's head is too large", isTooLong: true)
    }
}
