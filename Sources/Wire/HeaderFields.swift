import Glibc

/// Header fields in their order, in one block of bytes: names in lower case, values without white space around them.
///
/// One allocation holds all fields, so that parsing a request and encoding a response cost little; strings are made
/// only of what is asked for.
public struct HeaderFields: Sendable, Equatable {
    /// Field after field: the name's length and the value's (4 bytes each), the name, the value.
    private var bytes: [UInt8] = []
    /// How many fields there are; a name that stands twice counts twice.
    public private(set) var count = 0

    private static let prefixBytes = 8

    public init() {}

    /// Reserves room for a usual header.
    public init(reserving byteCount: Int) { bytes.reserveCapacity(byteCount) }

    /// Reserves capacity for more bytes: names, values, and 8 for each field.
    public mutating func reserve(_ byteCount: Int) {
        bytes.reserveCapacity(bytes.count + byteCount)
    }

    /// Adds a field. `name` is a token in lower case.
    public mutating func append(_ name: StaticString, _ value: String) {
        var value = value
        value.withUTF8 { value in
            name.withUTF8Buffer { append($0, value) }
        }
    }

    /// Adds a field with a decimal number.
    public mutating func append(_ name: StaticString, _ value: some BinaryInteger) {
        append(name, String(value))
    }

    /// Adds a field whose name is known only at run time: a token in lower case.
    public mutating func append(name: String, _ value: String) {
        var (name, value) = (name, value)
        name.withUTF8 { name in value.withUTF8 { append(name, $0) } }
    }

    /// Adds a field as it came; the name is already in lower case.
    package mutating func append(
        _ name: UnsafeBufferPointer<UInt8>, _ value: UnsafeBufferPointer<UInt8>
    ) {
        append(name, value) { _ in }
    }

    /// Adds a field from an HTTP/1.1 line, its name in lower case.
    package mutating func append(lowercasing name: Span<UInt8>, _ value: Span<UInt8>) {
        name.withUnsafeBufferPointer { name in
            value.withUnsafeBufferPointer { value in
                append(name, value) { name in
                    for index in name.indices {
                        let isUpper: UInt8 = name[index] &- 0x41 < 26 ? 1 : 0
                        name[index] |= isUpper << 5
                    }
                }
            }
        }
    }

    /// Adds a field, put together on the stack: to grow the block once is the cheapest.
    /// - Parameter change: What is done to the name there.
    @inline(__always)
    private mutating func append(
        _ name: UnsafeBufferPointer<UInt8>, _ value: UnsafeBufferPointer<UInt8>,
        _ change: (UnsafeMutableBufferPointer<UInt8>) -> Void
    ) {
        let valueStart = HeaderFields.prefixBytes + name.count
        let length = valueStart + value.count
        withUnsafeTemporaryAllocation(of: UInt8.self, capacity: length) { field in
            let lengths = UInt64(UInt32(name.count)) | UInt64(UInt32(value.count)) << 32
            UnsafeMutableRawBufferPointer(field).storeBytes(of: lengths, as: UInt64.self)
            let copy = UnsafeMutableBufferPointer(
                rebasing: field[HeaderFields.prefixBytes..<valueStart])
            _ = copy.initialize(fromContentsOf: name)
            change(copy)
            _ = field[valueStart...].initialize(fromContentsOf: value)
            bytes.append(contentsOf: UnsafeBufferPointer(field))
        }
        count += 1
    }

    /// The first value of a name in lower case.
    public subscript(_ name: StaticString) -> String? {
        var found: String?
        scan(name) { value in
            found = String(decoding: value, as: UTF8.self)
            return false
        }
        return found
    }

    /// All values of a name in lower case, in order.
    public func values(_ name: StaticString) -> [String] {
        var all: [String] = []
        scan(name) { value in
            all.append(String(decoding: value, as: UTF8.self))
            return true
        }
        return all
    }

    /// All values of a name joined as a list (RFC 9110, section 5.3); nil where the name does not occur.
    public func list(_ name: StaticString) -> String? {
        let all = values(name)
        return all.isEmpty ? nil : all.joined(separator: ", ")
    }

    /// Whether a name in lower case occurs.
    public func contains(_ name: StaticString) -> Bool {
        var found = false
        scan(name) { _ in
            found = true
            return false
        }
        return found
    }

    /// The fields whose names begin with `prefix`: what follows it, and the value as bytes.
    public func all(withPrefix prefix: String) -> [(suffix: String, value: [UInt8])] {
        var all: [(suffix: String, value: [UInt8])] = []
        read { fields in
            while let (name, value) = fields.next() {
                guard name.starts(with: prefix.utf8) else { continue }
                let suffix = String(decoding: name[prefix.utf8.count...], as: UTF8.self)
                all.append((suffix, Array(value)))
            }
        }
        return all
    }

    /// Whether names are tokens and no value has a control character but the tab (RFC 9110, section 5.5).
    package var areWellFormed: Bool {
        read { fields in
            while let (name, value) = fields.next() {
                guard !name.isEmpty, name.allSatisfy(ASCII.isToken),
                    value.allSatisfy({ !ASCII.isControl($0) || $0 == 0x09 })
                else { return false }
            }
            return true
        }
    }

    /// Bytes of the lines that ``writeLines(to:)`` writes.
    package var lineBytes: Int { bytes.count - count * (HeaderFields.prefixBytes - 4) }

    /// Writes `name: value` lines as HTTP/1.1 wants them; there is room for ``lineBytes``.
    package func writeLines(to start: UnsafeMutableRawPointer) {
        read { fields in
            var output = start
            func put(_ bytes: UnsafeBufferPointer<UInt8>) {
                guard let base = bytes.baseAddress else { return }
                output.copyMemory(from: base, byteCount: bytes.count)
                output += bytes.count
            }
            while let (name, value) = fields.next() {
                put(name)
                output.storeBytes(of: 0x203a, as: UInt16.self)  // ": "
                output += 2
                put(value)
                output.storeBytes(of: 0x0a0d, as: UInt16.self)  // CR LF
                output += 2
            }
        }
    }

    /// Reads field after field in the block that it was lent.
    package struct Reader {
        private var rest: Slice<UnsafeBufferPointer<UInt8>>

        init(_ block: UnsafeBufferPointer<UInt8>) { rest = block[...] }

        /// The next field's name and value.
        @inline(__always)
        package mutating func next() -> (
            name: UnsafeBufferPointer<UInt8>, value: UnsafeBufferPointer<UInt8>
        )? {
            if rest.isEmpty { return nil }
            let raw = UnsafeRawBufferPointer(UnsafeBufferPointer(rebasing: rest))
            let lengths = raw.loadUnaligned(as: UInt64.self)
            let name = rest.startIndex + HeaderFields.prefixBytes
            let value = name + Int(lengths & 0xffff_ffff)
            let end = value + Int(lengths >> 32)
            defer { rest = rest[end...] }
            return (
                UnsafeBufferPointer(rebasing: rest[name..<value]),
                UnsafeBufferPointer(rebasing: rest[value..<end])
            )
        }
    }

    /// Lends a reader, and the bytes that it shows, while `body` runs.
    @inline(__always)
    package func read<Result>(_ body: (inout Reader) -> Result) -> Result {
        bytes.withUnsafeBufferPointer { block in
            var reader = Reader(block)
            return body(&reader)
        }
    }

    /// Lends the values of a name until `body` says false.
    @inline(__always)
    private func scan(_ name: StaticString, _ body: (UnsafeBufferPointer<UInt8>) -> Bool) {
        read { fields in
            while let field = fields.next() {
                guard field.name.count == name.utf8CodeUnitCount,
                    memcmp(field.name.baseAddress!, name.utf8Start, field.name.count) == 0
                else { continue }
                if !body(field.value) { return }
            }
        }
    }
}
