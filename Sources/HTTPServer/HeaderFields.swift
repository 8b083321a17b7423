/// Header fields in their order, in one block of bytes: names in lower case, values without white space around them.
///
/// One allocation holds all fields, so that parsing a request and encoding a response cost little; strings are made
/// only of what is asked for.
public struct HeaderFields: Sendable, Equatable {
    struct Entry: Sendable, Equatable {
        var start: UInt32
        var nameLength: UInt16
        var valueLength: UInt32
    }
    private(set) var bytes: [UInt8] = []
    private(set) var entries: [Entry] = []

    public init() {}

    /// Reserves room for a usual header.
    public init(reserving byteCount: Int, fields: Int) {
        bytes.reserveCapacity(byteCount)
        entries.reserveCapacity(fields)
    }

    /// How many fields there are; a name that stands twice counts twice.
    public var count: Int { entries.count }

    /// Adds a field. `name` is a token in lower case.
    public mutating func append(_ name: StaticString, _ value: String) {
        let start = bytes.count
        name.withUTF8Buffer { bytes.append(contentsOf: $0) }
        close(start, name.utf8CodeUnitCount) { $0.append(contentsOf: value.utf8) }
    }

    /// Adds a field with a decimal number.
    public mutating func append(_ name: StaticString, _ value: some BinaryInteger) {
        append(name, String(value))
    }

    /// Adds a field whose name is known only at run time: a token in lower case.
    public mutating func append(name: String, _ value: String) {
        let start = bytes.count
        bytes.append(contentsOf: name.utf8)
        close(start, bytes.count - start) { $0.append(contentsOf: value.utf8) }
    }

    /// Adds a field as it came; the name is already in lower case.
    mutating func append(_ name: UnsafeBufferPointer<UInt8>, _ value: UnsafeBufferPointer<UInt8>) {
        let start = bytes.count
        bytes.append(contentsOf: name)
        close(start, name.count) { $0.append(contentsOf: value) }
    }

    /// Adds a field from an HTTP/1.1 line, its name in lower case.
    mutating func append(lowercasing name: Span<UInt8>, _ value: Span<UInt8>) {
        let start = bytes.count
        for index in name.indices {
            let byte = name[index]
            bytes.append(byte >= 0x41 && byte <= 0x5a ? byte | 0x20 : byte)
        }
        close(start, name.count) { bytes in
            value.withUnsafeBufferPointer { bytes.append(contentsOf: $0) }
        }
    }

    private mutating func close(_ start: Int, _ nameLength: Int, _ value: (inout [UInt8]) -> Void) {
        let valueStart = bytes.count
        value(&bytes)
        entries.append(
            Entry(
                start: UInt32(start), nameLength: UInt16(nameLength),
                valueLength: UInt32(bytes.count - valueStart)))
    }

    /// The first value of a name in lower case.
    public subscript(_ name: StaticString) -> String? {
        for entry in entries where matches(entry, name) { return value(entry) }
        return nil
    }

    /// All values of a name in lower case, in order.
    public func values(_ name: StaticString) -> [String] {
        guard contains(name) else { return [] }
        return entries.filter { matches($0, name) }.map(value)
    }

    /// All values of a name joined as a list (RFC 9110, section 5.3); nil where the name does not occur.
    public func list(_ name: StaticString) -> String? {
        let all = values(name)
        return all.isEmpty ? nil : all.joined(separator: ", ")
    }

    /// Whether a name in lower case occurs.
    public func contains(_ name: StaticString) -> Bool {
        entries.contains { matches($0, name) }
    }

    /// The fields whose names begin with `prefix`: what follows it, and the value as bytes.
    public func all(withPrefix prefix: String) -> [(suffix: String, value: [UInt8])] {
        entries.compactMap { entry in
            let name = String(decoding: bytes[nameRange(entry)], as: UTF8.self)
            guard name.hasPrefix(prefix) else { return nil }
            return (String(name.dropFirst(prefix.count)), Array(bytes[valueRange(entry)]))
        }
    }

    /// Writes `name: value` lines as HTTP/1.1 wants them.
    func appendLines(to output: inout [UInt8]) {
        output.reserveCapacity(output.count + bytes.count + 4 * entries.count + 64)
        bytes.withUnsafeBufferPointer { bytes in
            for entry in entries {
                output.append(contentsOf: UnsafeBufferPointer(rebasing: bytes[nameRange(entry)]))
                output.append(contentsOf: ": " as StaticString)
                output.append(contentsOf: UnsafeBufferPointer(rebasing: bytes[valueRange(entry)]))
                output.append(contentsOf: "\r\n" as StaticString)
            }
        }
    }

    private func value(_ entry: Entry) -> String {
        String(decoding: bytes[valueRange(entry)], as: UTF8.self)
    }

    private func nameRange(_ entry: Entry) -> Range<Int> {
        Int(entry.start)..<Int(entry.start) + Int(entry.nameLength)
    }

    private func valueRange(_ entry: Entry) -> Range<Int> {
        let start = Int(entry.start) + Int(entry.nameLength)
        return start..<start + Int(entry.valueLength)
    }

    private func matches(_ entry: Entry, _ name: StaticString) -> Bool {
        guard Int(entry.nameLength) == name.utf8CodeUnitCount else { return false }
        return name.withUTF8Buffer { wanted in
            bytes.withUnsafeBufferPointer { own in
                for index in 0..<wanted.count where own[Int(entry.start) + index] != wanted[index] {
                    return false
                }
                return true
            }
        }
    }
}
