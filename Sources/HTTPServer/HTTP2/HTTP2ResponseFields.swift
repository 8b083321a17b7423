import CNghttp2
import Wire

extension nghttp2_nv {
    /// A field whose value nghttp2 copies.
    fileprivate init(
        _ name: StaticString, _ value: UnsafeBufferPointer<UInt8>, isIndexed: Bool = true
    ) {
        let indexing = isIndexed ? NGHTTP2_NV_FLAG_NONE : NGHTTP2_NV_FLAG_NO_INDEX
        self.init(
            UnsafeBufferPointer(start: name.utf8Start, count: name.utf8CodeUnitCount), value,
            NGHTTP2_NV_FLAG_NO_COPY_NAME.rawValue | indexing.rawValue)
    }

    /// A field of two constants.
    init(_ name: StaticString, _ value: StaticString) {
        self.init(
            UnsafeBufferPointer(start: name.utf8Start, count: name.utf8CodeUnitCount),
            UnsafeBufferPointer(start: value.utf8Start, count: value.utf8CodeUnitCount),
            NGHTTP2_NV_FLAG_NO_COPY_NAME.rawValue | NGHTTP2_NV_FLAG_NO_COPY_VALUE.rawValue)
    }

    fileprivate init(
        _ name: UnsafeBufferPointer<UInt8>, _ value: UnsafeBufferPointer<UInt8>, _ flags: UInt32
    ) {
        self.init(
            name: UnsafeMutablePointer(mutating: name.baseAddress),
            value: UnsafeMutablePointer(mutating: value.baseAddress), namelen: name.count,
            valuelen: value.count, flags: UInt8(flags))
    }
}

/// How nghttp2 treats a response's own fields.
struct FieldTreatment {
    /// Whether the head stays unchanged until nghttp2 has encoded it, so that nghttp2 need not copy its fields.
    var isKept = false
    /// Whether to index fields whose values never repeat.
    var indexesVolatile = false
}

extension ResponseHead {
    /// Lends the head to nghttp2: `:status`, `date`, the fields, then, if present, `x-request-id` and `content-length`.
    func withFields<Result>(
        date: [UInt8], length: UInt64?, _ treatment: FieldTreatment, _ body: (UnsafePointer<nghttp2_nv>, Int) -> Result
    ) -> Result {
        let count = 2 + fields.count + (requestID == nil ? 0 : 1) + (length == nil ? 0 : 1)
        return withUnsafeTemporaryAllocation(of: nghttp2_nv.self, capacity: count) { list in
            UInt64(status).withDigits { status in
                date.withUnsafeBufferPointer { date in
                    (length ?? 0).withDigits { digits in
                        list.initializeElement(at: 0, to: nghttp2_nv(":status", status))
                        list.initializeElement(at: 1, to: nghttp2_nv("date", date))
                        if length != nil {
                            let field = nghttp2_nv("content-length", digits)
                            list.initializeElement(at: count - 1, to: field)
                        }
                        var id = requestID ?? ""
                        return id.withUTF8 { id in
                            if requestID != nil {
                                let field = nghttp2_nv("x-request-id", id, isIndexed: treatment.indexesVolatile)
                                list.initializeElement(at: 2 + fields.count, to: field)
                            }
                            return fields.lend(to: list, from: 2, treatment) {
                                body(list.baseAddress!, count)
                            }
                        }
                    }
                }
            }
        }
    }
}

extension UInt64 {
    /// Lends the decimal digits, on the stack.
    fileprivate func withDigits<Result>(_ body: (UnsafeBufferPointer<UInt8>) -> Result) -> Result {
        withUnsafeTemporaryAllocation(of: UInt8.self, capacity: 20) { digits in
            var (rest, start) = (self, digits.endIndex)
            repeat {
                start -= 1
                digits.initializeElement(at: start, to: UInt8(rest % 10) + UInt8(ascii: "0"))
                rest /= 10
            } while rest > 0
            return body(UnsafeBufferPointer(rebasing: digits[start...]))
        }
    }
}

extension HeaderFields {
    /// Points the elements of `list`, starting at `first`, to these fields while `body` runs.
    fileprivate func lend<Result>(
        to list: UnsafeMutableBufferPointer<nghttp2_nv>, from first: Int,
        _ treatment: FieldTreatment, _ body: () -> Result
    ) -> Result {
        let kept =
            NGHTTP2_NV_FLAG_NO_COPY_NAME.rawValue | NGHTTP2_NV_FLAG_NO_COPY_VALUE.rawValue
        let usual = treatment.isKept ? kept : NGHTTP2_NV_FLAG_NONE.rawValue
        let unindexed = treatment.indexesVolatile ? usual : usual | NGHTTP2_NV_FLAG_NO_INDEX.rawValue
        return read { fields in
            var index = first
            while let (name, value) = fields.next() {
                let flags = HeaderFields.isVolatile(name) ? unindexed : usual
                list.initializeElement(at: index, to: nghttp2_nv(name, value, flags))
                index += 1
            }
            return body()
        }
    }

    /// Whether the values of a field never repeat: indexing them would only evict others from the peer's table.
    private static func isVolatile(_ name: UnsafeBufferPointer<UInt8>) -> Bool {
        switch name.count {
        case 11: name[0] == UInt8(ascii: "r")  // repr-digest
        case 12: name[0] == UInt8(ascii: "x")  // x-request-id
        case 19: name[0] == UInt8(ascii: "x")  // x-object-generation
        default: false
        }
    }
}
