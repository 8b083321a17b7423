/// Decodes the chunked transfer coding (RFC 9112, section 7.1). Extensions and trailers are validated and ignored.
package struct ChunkedDecoder {
    /// The result of a step.
    package enum Step: Equatable {
        /// This many of the following bytes belong to the body.
        case data(Int)
        /// More bytes are needed.
        case incomplete
        /// The body and its trailers are complete.
        case end
    }
    private enum State {
        case size, extensions, sizeLF, data, dataCR, dataLF
        case trailerStart, trailerName, trailerValue, trailerLF, lastLF, done
    }
    private var state = State.size
    private var digits = 0
    private var remaining: UInt64 = 0
    private var lineBytes = 0
    private let lineLimit: Int

    /// - Parameter lineLimit: The maximum size of a chunk line, and of all trailers, in bytes.
    package init(lineLimit: Int) { self.lineLimit = lineLimit }

    /// Parses the framing from `offset` up to body bytes, the end of the body, or the end of the input.
    /// - Throws: ``HTTP1SyntaxError`` if the framing is malformed or a line is too long.
    package mutating func next(_ input: Span<UInt8>, at offset: inout Int) throws(HTTP1SyntaxError)
        -> Step
    {
        while offset < input.count {
            if state == .data {
                let count = Int(min(remaining, UInt64(input.count - offset)))
                remaining -= UInt64(count)
                if remaining == 0 { state = .dataCR }
                return .data(count)
            }
            try take(input[offset])
            offset += 1
            if state == .done { return .end }
        }
        return .incomplete
    }

    private mutating func take(_ byte: UInt8) throws(HTTP1SyntaxError) {
        lineBytes += 1
        guard lineBytes <= lineLimit else {
            throw HTTP1SyntaxError("chunk line or trailers too long", isTooLong: true)
        }
        switch state {
        case .size: try takeSize(byte)
        case .extensions: if byte == UInt8(ascii: "\r") { state = .sizeLF } else { try checkText(byte) }
        case .sizeLF:
            try expect(byte, UInt8(ascii: "\n"))
            lineBytes = 0
            state = remaining > 0 ? .data : .trailerStart
        case .data: break
        case .dataCR:
            try expect(byte, UInt8(ascii: "\r"))
            state = .dataLF
        case .dataLF:
            try expect(byte, UInt8(ascii: "\n"))
            lineBytes = 0
            digits = 0
            state = .size
        case .trailerStart:
            if byte == UInt8(ascii: "\r") {
                state = .lastLF
            } else {
                guard ASCII.isToken(byte) else { throw HTTP1SyntaxError("malformed trailer field") }
                state = .trailerName
            }
        case .trailerName:
            if byte == UInt8(ascii: ":") {
                state = .trailerValue
            } else if !ASCII.isToken(byte) {
                throw HTTP1SyntaxError("malformed trailer field")
            }
        case .trailerValue: if byte == UInt8(ascii: "\r") { state = .trailerLF } else { try checkText(byte) }
        case .trailerLF:
            try expect(byte, UInt8(ascii: "\n"))
            state = .trailerStart
        case .lastLF:
            try expect(byte, UInt8(ascii: "\n"))
            state = .done
        case .done: break
        }
    }

    private mutating func takeSize(_ byte: UInt8) throws(HTTP1SyntaxError) {
        if let digit = ASCII.hexadecimal(byte) {
            digits += 1
            guard digits <= 15 else { throw HTTP1SyntaxError("chunk size too large") }
            remaining = remaining << 4 | UInt64(digit)
            return
        }
        guard digits > 0 else { throw HTTP1SyntaxError("malformed chunk size") }
        switch byte {
        case UInt8(ascii: "\r"): state = .sizeLF
        case UInt8(ascii: ";"): state = .extensions
        default: throw HTTP1SyntaxError("malformed chunk size")
        }
    }

    private func expect(_ byte: UInt8, _ wanted: UInt8) throws(HTTP1SyntaxError) {
        if byte != wanted { throw HTTP1SyntaxError("malformed chunk") }
    }

    private func checkText(_ byte: UInt8) throws(HTTP1SyntaxError) {
        if ASCII.isControl(byte) && !ASCII.isSpace(byte) {
            throw HTTP1SyntaxError("control character in a chunk extension or trailer")
        }
    }
}
