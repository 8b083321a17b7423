import Wire

/// A header block of a response: an interim or final head, or trailers. nghttp2 has checked its syntax and order.
struct HTTP2ResponseHead {
    /// 100 to 999; 0 in trailers.
    private(set) var status = 0
    private(set) var fields: HeaderFields
    private(set) var contentLength: UInt64?
    private var bytes = 0
    private var count = 0
    private let isTrailer: Bool

    init(isTrailer: Bool) {
        self.isTrailer = isTrailer
        fields = isTrailer ? HeaderFields() : HeaderFields(reserving: 512)
    }

    /// Releases the delivered fields.
    mutating func dropFields() { fields = HeaderFields() }

    /// Adds a field. Trailers are only counted, under the same limits as a head.
    /// - Returns: Why it is malformed; nil if it is well-formed.
    mutating func add(
        _ name: UnsafeBufferPointer<UInt8>, _ value: UnsafeBufferPointer<UInt8>
    ) -> String? {
        bytes += name.count + value.count + 32
        count += 1
        if bytes > HTTP1ResponseParser.maximumBytes { return "the response's head is too large" }
        if count > HTTP1ResponseParser.maximumFields { return "too many header fields" }
        if isTrailer { return nil }
        if name.first == UInt8(ascii: ":") {
            // The only pseudo-header field that nghttp2 accepts is :status, with three digits.
            status = value.reduce(0) { $0 * 10 + Int($1 &- 0x30) }
            return nil
        }
        if name.count == 14, name.elementsEqual("content-length".utf8) {
            contentLength = Decimal.parse(
                value.span, maximumDigits: 19, maximum: UInt64(Int64.max))
            if contentLength == nil { return "malformed Content-Length" }
        }
        fields.append(name, value)
        return nil
    }
}
