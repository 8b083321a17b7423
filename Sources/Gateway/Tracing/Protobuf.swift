/// Writes a Protocol Buffers message (proto3), fields in the order of the calls. The caller omits defaults.
struct ProtobufWriter {
    private(set) var bytes: [UInt8] = []

    private mutating func varint(_ value: UInt64) {
        var value = value
        while value >= 0x80 {
            bytes.append(UInt8(truncatingIfNeeded: value) | 0x80)
            value >>= 7
        }
        bytes.append(UInt8(value))
    }

    private mutating func tag(_ field: Int, _ kind: ProtobufKind) {
        varint(UInt64(field) << 3 | kind.rawValue)
    }

    /// Writes a field of the type `int32`, `int64`, `uint32`, `uint64` or of an enumeration.
    mutating func number(_ field: Int, _ value: Int64) {
        tag(field, .varint)
        varint(UInt64(bitPattern: value))
    }

    /// Writes a field of the type `fixed32` or `fixed64`.
    mutating func fixed(_ field: Int, _ value: some FixedWidthInteger & UnsignedInteger) {
        tag(field, value.bitWidth == 32 ? .fixed32 : .fixed64)
        for shift in stride(from: 0, to: value.bitWidth, by: 8) {
            bytes.append(UInt8(truncatingIfNeeded: value >> shift))
        }
    }

    /// Writes a field of the type `bytes`, or `string` if the bytes are UTF-8.
    mutating func bytes(_ field: Int, _ value: some Collection<UInt8>) {
        tag(field, .length)
        varint(UInt64(value.count))
        bytes.append(contentsOf: value)
    }

    /// Writes a field whose type is a message.
    mutating func message(_ field: Int, _ write: (inout ProtobufWriter) -> Void) {
        tag(field, .length)
        var inner = ProtobufWriter()
        write(&inner)
        varint(UInt64(inner.bytes.count))
        bytes.append(contentsOf: inner.bytes)
    }
}

/// How a field's value is encoded.
private enum ProtobufKind: UInt64 {
    case varint = 0
    case fixed64 = 1
    case length = 2
    case fixed32 = 5
}

/// Reads single fields of a message of Protocol Buffers.
struct ProtobufReader {
    private var rest: ArraySlice<UInt8>

    init(_ message: ArraySlice<UInt8>) { rest = message }

    /// The last value of a field of a variable-length integer; nil without one, or if the message is malformed.
    static func number(_ field: UInt64, of message: ArraySlice<UInt8>) -> Int64? {
        var found: Int64?
        let isComplete = ProtobufReader(message).read { number, value, _ in
            if number == field, let value { found = Int64(bitPattern: value) }
        }
        return isComplete ? found : nil
    }

    /// The last value of a field of bytes, text or a message; nil without one, or if the message is malformed.
    static func bytes(_ field: UInt64, of message: ArraySlice<UInt8>) -> ArraySlice<UInt8>? {
        var found: ArraySlice<UInt8>?
        let isComplete = ProtobufReader(message).read { number, _, bytes in
            if number == field, let bytes { found = bytes }
        }
        return isComplete ? found : nil
    }

    /// Calls `body` with each field's number and its value. Returns false if the message is malformed.
    private consuming func read(_ body: (UInt64, UInt64?, ArraySlice<UInt8>?) -> Void) -> Bool {
        while !rest.isEmpty {
            guard let tag = varint(), let kind = ProtobufKind(rawValue: tag & 7) else {
                return false
            }
            switch kind {
            case .varint:
                guard let value = varint() else { return false }
                body(tag >> 3, value, nil)
            case .length:
                guard let length = varint(), let value = take(length) else { return false }
                body(tag >> 3, nil, value)
            case .fixed32: if take(4) == nil { return false }
            case .fixed64: if take(8) == nil { return false }
            }
        }
        return true
    }

    private mutating func varint() -> UInt64? {
        var value: UInt64 = 0
        for shift in stride(from: 0, to: 64, by: 7) {
            guard let byte = rest.popFirst() else { return nil }
            value |= UInt64(byte & 0x7f) << UInt64(shift)
            if byte < 0x80 { return value }
        }
        return nil
    }

    private mutating func take(_ count: UInt64) -> ArraySlice<UInt8>? {
        guard count <= UInt64(rest.count) else { return nil }
        defer { rest = rest.dropFirst(Int(count)) }
        return rest.prefix(Int(count))
    }
}
