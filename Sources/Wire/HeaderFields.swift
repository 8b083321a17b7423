#if canImport(Darwin)
    import Darwin
#else
    import Glibc
#endif

/// Header fields in order, in one block of bytes. Names are in lower case; values have no surrounding white space. One
/// allocation holds all fields, which makes parsing and encoding cheap. Strings are made only for fields that are read.
public struct HeaderFields: Sendable, Equatable {
    /// For each field: the lengths of name and value (4 bytes each), the name, the value.
    private var bytes: [UInt8] = []
    /// The number of fields; each occurrence of a name counts.
    public private(set) var count = 0

    private static let prefixBytes = 8

    public init() {}

    /// Reserves capacity for a typical header.
    public init(reserving byteCount: Int) { bytes.reserveCapacity(byteCount) }

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

    /// Adds a field as received; the name is already in lower case.
    package mutating func append(
        _ name: UnsafeBufferPointer<UInt8>, _ value: UnsafeBufferPointer<UInt8>
    ) {
        append(name, value) { _ in }
    }

    /// Adds a field from an HTTP/1.1 line and converts its name to lower case.
    package mutating func append(lowercasing name: Span<UInt8>, _ value: Span<UInt8>) {
        name.withUnsafeBufferPointer { name in
            value.withUnsafeBufferPointer { value in
                append(name, value) { ASCII.lowercase(UnsafeMutableRawBufferPointer($0)) }
            }
        }
    }

    /// Adds a field at the end of the block, which grows only once. `change` modifies the name in the block.
    @inline(__always)
    private mutating func append(
        _ name: UnsafeBufferPointer<UInt8>, _ value: UnsafeBufferPointer<UInt8>,
        _ change: (UnsafeMutableBufferPointer<UInt8>) -> Void
    ) {
        append(capacity: name.count + value.count) { field in
            _ = field.initialize(fromContentsOf: name)
            change(UnsafeMutableBufferPointer(rebasing: field[..<name.count]))
            _ = field[name.count...].initialize(fromContentsOf: value)
            return (name.count, value.count)
        }
    }

    /// Adds a field that `write` puts at the end of the block.
    /// - Parameter write: Fills `capacity` bytes. Returns the lengths of name and value; nil to add no field.
    @inline(__always)
    mutating func append(
        capacity: Int, _ write: (UnsafeMutableBufferPointer<UInt8>) -> (name: Int, value: Int)?
    ) {
        let before = bytes.count
        bytes.append(addingCapacity: HeaderFields.prefixBytes + capacity) { output in
            output.withUnsafeMutableBufferPointer { field, count in
                let text = UnsafeMutableBufferPointer(
                    rebasing: field[HeaderFields.prefixBytes..<HeaderFields.prefixBytes + capacity])
                guard let (name, value) = write(text) else { return }
                let lengths = UInt64(UInt32(name)) | UInt64(UInt32(value)) << 32
                UnsafeMutableRawBufferPointer(field).storeBytes(of: lengths, as: UInt64.self)
                count = HeaderFields.prefixBytes + name + value
            }
        }
        if bytes.count > before { count += 1 }
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

    /// All values of a name joined as a list (RFC 9110, section 5.3); nil if the name does not occur.
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

    /// Whether a name satisfies `isWanted`.
    @inline(__always)
    package func contains(where isWanted: (UnsafeBufferPointer<UInt8>) -> Bool) -> Bool {
        read { fields in
            while let field = fields.next() { if isWanted(field.name) { return true } }
            return false
        }
    }

    /// Whether both blocks have the same fields in the same order, considering only names that `isCompared` selects.
    @inline(__always)
    package func agrees(
        with other: HeaderFields, on isCompared: (UnsafeBufferPointer<UInt8>) -> Bool
    ) -> Bool {
        read { fields in
            other.read { others in
                while true {
                    var (left, right) = (fields.next(), others.next())
                    while let field = left, !isCompared(field.name) { left = fields.next() }
                    while let field = right, !isCompared(field.name) { right = others.next() }
                    guard let left, let right else { return left == nil && right == nil }
                    // The value follows its name.
                    let bytes = left.name.count + left.value.count
                    guard left.name.count == right.name.count, left.value.count == right.value.count,
                        memcmp(left.name.baseAddress!, right.name.baseAddress!, bytes) == 0
                    else { return false }
                }
            }
        }
    }

    /// Replaces all fields with the names of `other` by those of `other`.
    package mutating func replace(with other: HeaderFields) {
        var all = HeaderFields(reserving: bytes.count + other.bytes.count)
        read { fields in
            while let (name, value) = fields.next() {
                let isReplaced = other.contains { $0.count == name.count && $0.elementsEqual(name) }
                if !isReplaced { all.append(name, value) }
            }
        }
        other.read { fields in
            while let (name, value) = fields.next() { all.append(name, value) }
        }
        self = all
    }

    /// The fields whose names begin with `prefix`: the rest of the name, and the value as bytes.
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

    /// Whether all names are tokens and no value has a control character other than the tab (RFC 9110, section 5.5).
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

    /// The number of bytes that ``writeLines(to:)`` writes.
    package var lineBytes: Int { bytes.count - count * (HeaderFields.prefixBytes - 4) }

    /// Writes the fields as HTTP/1.1 lines, `name: value`. `output` has a capacity of at least ``lineBytes``.
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

    /// Iterates over the fields of a block. Valid only while the block is lent.
    package struct Reader {
        /// nil after the last field.
        private var position: UnsafePointer<UInt8>?
        private var count: Int

        init(_ block: UnsafeBufferPointer<UInt8>) {
            count = block.count
            position = count > 0 ? block.baseAddress : nil
        }

        /// The next field's name and value.
        @inline(__always)
        package mutating func next() -> (
            name: UnsafeBufferPointer<UInt8>, value: UnsafeBufferPointer<UInt8>
        )? {
            guard let field = position else { return nil }
            // Only ``append(capacity:_:)`` writes the block, so the lengths are valid.
            let lengths = UnsafeRawPointer(field).loadUnaligned(as: UInt64.self)
            let name = UnsafeBufferPointer(start: field + HeaderFields.prefixBytes, count: Int(lengths & 0xffff_ffff))
            let value = UnsafeBufferPointer(start: name.baseAddress! + name.count, count: Int(lengths >> 32))
            count -= HeaderFields.prefixBytes + name.count + value.count
            precondition(count >= 0)
            position = count > 0 ? value.baseAddress! + value.count : nil
            return (name, value)
        }
    }

    /// Calls `body` with a reader. The reader and its bytes are valid only during the call.
    @inline(__always)
    package func read<Result>(_ body: (inout Reader) -> Result) -> Result {
        bytes.withUnsafeBufferPointer { block in
            var reader = Reader(block)
            return body(&reader)
        }
    }

    /// Calls `body` with each value of a name until it returns false. The bytes are valid only during the call.
    @inline(__always)
    private func scan(_ name: StaticString, _ body: (UnsafeBufferPointer<UInt8>) -> Bool) {
        read { fields in
            while let field = fields.next() {
                if field.name.matches(name), !body(field.value) { return }
            }
        }
    }
}

extension UnsafeBufferPointer<UInt8> {
    /// Whether the bytes equal `text`.
    @inline(__always)
    package func matches(_ text: StaticString) -> Bool {
        // An empty buffer may have no address.
        count == text.utf8CodeUnitCount && count > 0 && memcmp(baseAddress!, text.utf8Start, count) == 0
    }
}
