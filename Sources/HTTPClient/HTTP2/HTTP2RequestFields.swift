import CNghttp2
import Wire

extension nghttp2_nv {
    /// A field with a constant name and a borrowed value.
    fileprivate init(_ name: StaticString, _ value: UnsafeBufferPointer<UInt8>) {
        self.init(
            name: UnsafeMutablePointer(mutating: name.utf8Start),
            value: UnsafeMutablePointer(mutating: value.baseAddress), namelen: name.utf8CodeUnitCount,
            valuelen: value.count, flags: UInt8(NGHTTP2_NV_FLAG_NONE.rawValue))
    }

    /// A field of two constants.
    fileprivate init(_ name: StaticString, _ value: StaticString) {
        self.init(
            name, UnsafeBufferPointer(start: value.utf8Start, count: value.utf8CodeUnitCount))
    }
}

extension ClientRequest {
    /// Lends the head to nghttp2, which copies it: the pseudo-header fields (RFC 9113, section 8.3.1), then the same fields
    /// as over HTTP/1.1, without `host` and the connection's own.
    func withHTTP2Fields<Result>(
        authority: [UInt8], _ body: (UnsafePointer<nghttp2_nv>, Int) -> Result
    ) -> Result {
        var target = target
        var length = declaredLength ?? ""
        let method = UnsafeBufferPointer(
            start: method.utf8Start, count: self.method.utf8CodeUnitCount)
        return withUnsafeTemporaryAllocation(of: nghttp2_nv.self, capacity: fields.count + 6) {
            list in
            target.withUTF8 { target in
                length.withUTF8 { length in
                    authority.withUnsafeBufferPointer { authority in
                        var count = 0
                        func add(_ field: nghttp2_nv) {
                            list.initializeElement(at: count, to: field)
                            count += 1
                        }
                        add(nghttp2_nv(":method", method))
                        add(nghttp2_nv(":scheme", "https"))
                        add(nghttp2_nv(":authority", authority))
                        add(nghttp2_nv(":path", target))
                        if !fields.contains("user-agent") {
                            add(nghttp2_nv("user-agent", "sluice"))
                        }
                        if !length.isEmpty { add(nghttp2_nv("content-length", length)) }
                        return fields.lend(to: list, from: count) {
                            body(UnsafePointer(list.baseAddress!), count + fields.count)
                        }
                    }
                }
            }
        }
    }
}

extension HeaderFields {
    /// Points the elements of `list`, starting at `first`, to these fields while `body` runs.
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

    /// Whether the values of a field rarely repeat: indexing them would only evict others from the upstream's table.
    /// nghttp2 never indexes `authorization`.
    private static func isVolatile(_ name: UnsafeBufferPointer<UInt8>) -> Bool {
        switch name.count {
        case 10: name.elementsEqual("x-amz-date".utf8)
        case 11: name.elementsEqual("traceparent".utf8)
        default: false
        }
    }
}
