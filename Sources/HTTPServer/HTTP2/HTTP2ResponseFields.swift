import CNghttp2
import Wire

extension nghttp2_nv {
    /// A field with a borrowed value.
    fileprivate init(_ name: StaticString, _ value: UnsafeBufferPointer<UInt8>) {
        self.init(name, "")
        self.value = UnsafeMutablePointer(mutating: value.baseAddress)
        valuelen = value.count
    }

    /// A field of two constants.
    init(_ name: StaticString, _ value: StaticString) {
        self.init(
            name: UnsafeMutablePointer(mutating: name.utf8Start),
            value: UnsafeMutablePointer(mutating: value.utf8Start),
            namelen: name.utf8CodeUnitCount, valuelen: value.utf8CodeUnitCount,
            flags: UInt8(NGHTTP2_NV_FLAG_NONE.rawValue))
    }
}

extension ResponseHead {
    /// Lends the head to nghttp2, which copies it: `:status`, `date`, the fields, then `content-length` if it is given.
    func withFields<Result>(
        date: [UInt8], length: UInt64?, _ body: (UnsafePointer<nghttp2_nv>, Int) -> Result
    ) -> Result {
        let count = fields.count + (length == nil ? 2 : 3)
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
                        return fields.lend(to: list, from: 2) { body(list.baseAddress!, count) }
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
    /// Points the elements of `list` from `first` on at these fields while `body` runs.
    fileprivate func lend<Result>(
        to list: UnsafeMutableBufferPointer<nghttp2_nv>, from first: Int, _ body: () -> Result
    ) -> Result {
        read { fields in
            var index = first
            while let (name, value) = fields.next() {
                let isVolatile = HeaderFields.isVolatile(name)
                let flags = isVolatile ? NGHTTP2_NV_FLAG_NO_INDEX : NGHTTP2_NV_FLAG_NONE
                let field = nghttp2_nv(
                    name: UnsafeMutablePointer(mutating: name.baseAddress),
                    value: UnsafeMutablePointer(mutating: value.baseAddress), namelen: name.count,
                    valuelen: value.count, flags: UInt8(flags.rawValue))
                list.initializeElement(at: index, to: field)
                index += 1
            }
            return body()
        }
    }

    /// Fields whose values are never repeated: indexing them would only push others out of the peer's table.
    private static func isVolatile(_ name: UnsafeBufferPointer<UInt8>) -> Bool {
        switch name.count {
        case 11: name[0] == UInt8(ascii: "r")  // repr-digest
        case 12: name[0] == UInt8(ascii: "x")  // x-request-id
        case 19: name[0] == UInt8(ascii: "x")  // x-object-generation
        default: false
        }
    }
}
