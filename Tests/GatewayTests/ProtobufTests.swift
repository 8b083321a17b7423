import Testing

@testable import Gateway

@Suite struct ProtobufTests {
    @Test func fieldsAreEncodedAsTheSpecificationShows() {
        var writer = ProtobufWriter()
        // The examples of protobuf.dev/programming-guides/encoding.
        writer.number(1, 150)
        writer.bytes(2, "testing".utf8)
        writer.message(3) { $0.number(1, 150) }
        #expect(
            writer.bytes == [0x08, 0x96, 0x01, 0x12, 0x07] + Array("testing".utf8)
                + [0x1a, 0x03, 0x08, 0x96, 0x01])
        writer = ProtobufWriter()
        writer.number(1, -2)
        #expect(writer.bytes == [0x08, 0xfe] + [UInt8](repeating: 0xff, count: 8) + [0x01])
        writer = ProtobufWriter()
        writer.fixed(16, UInt32(1))
        writer.fixed(7, UInt64(1) << 56)
        #expect(writer.bytes == [0x85, 0x01, 1, 0, 0, 0, 0x39, 0, 0, 0, 0, 0, 0, 0, 1])
    }

    @Test func whatWasWrittenIsRead() {
        var writer = ProtobufWriter()
        writer.fixed(9, UInt64.max)
        writer.message(1) { partial in
            partial.number(1, 3)
            partial.bytes(2, "no".utf8)
        }
        writer.fixed(8, UInt32.max)
        #expect(rejectedSpans(of: writer.bytes) == 3)
        #expect(rejectedSpans(of: []) == 0)
    }

    @Test(arguments: [
        [0x0a], [0x0a, 0x05, 0x08], [0x0a, 0x80], [0x0b], [0x0f], [0x0a, 0x02, 0x08, 0x80],
        [0x0a, 0x0b, 0x08] + [UInt8](repeating: 0xff, count: 10),
        [0x0a] + [UInt8](repeating: 0xff, count: 9) + [0x01], [0x0a, 0x01, 0x0d], [0x09, 1, 2],
        Array("{}".utf8), Array("<html>".utf8),
    ]) func aMalformedResponseRejectsNothing(_ response: [UInt8]) {
        #expect(rejectedSpans(of: response) == 0)
    }
}
