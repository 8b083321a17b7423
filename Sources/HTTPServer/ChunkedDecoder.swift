/// Decodes the chunked transfer coding (RFC 9112, section 7.1): extensions and trailers are read over, strictly.
struct ChunkedDecoder {
    enum Step: Equatable {
        /// So many of the bytes that follow are the body's.
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

    init(lineLimit: Int) { self.lineLimit = lineLimit }

    /// Reads framing from `place` on until body bytes, the end, or the end of the input.
    mutating func next(_ input: Span<UInt8>, at place: inout Int) throws(HTTP1Error) -> Step {
        while place < input.count {
            if state == .data {
                let count = Int(min(remaining, UInt64(input.count - place)))
                remaining -= UInt64(count)
                if remaining == 0 { state = .dataCR }
                return .data(count)
            }
            try take(input[place])
            place += 1
            if state == .done { return .end }
        }
        return .incomplete
    }

    private mutating func take(_ byte: UInt8) throws(HTTP1Error) {
        lineBytes += 1
        guard lineBytes <= lineLimit else {
            throw HTTP1Error(400, "chunk line or trailers too long", .headerBytes)
        }
        switch state {
        case .size: try takeSize(byte)
        case .extensions:
            if byte == cr { state = .sizeLF } else { try checkText(byte) }
        case .sizeLF:
            try expect(byte, lf)
            lineBytes = 0
            state = remaining > 0 ? .data : .trailerStart
        case .data: break
        case .dataCR:
            try expect(byte, cr)
            state = .dataLF
        case .dataLF:
            try expect(byte, lf)
            lineBytes = 0
            digits = 0
            state = .size
        case .trailerStart:
            if byte == cr {
                state = .lastLF
            } else {
                guard isToken(byte) else { throw HTTP1Error(400, "malformed trailer field") }
                state = .trailerName
            }
        case .trailerName:
            if byte == UInt8(ascii: ":") {
                state = .trailerValue
            } else if !isToken(byte) {
                throw HTTP1Error(400, "malformed trailer field")
            }
        case .trailerValue:
            if byte == cr { state = .trailerLF } else { try checkText(byte) }
        case .trailerLF:
            try expect(byte, lf)
            state = .trailerStart
        case .lastLF:
            try expect(byte, lf)
            state = .done
        case .done: break
        }
    }

    private mutating func takeSize(_ byte: UInt8) throws(HTTP1Error) {
        if let digit = hexadecimalDigit(byte) {
            digits += 1
            guard digits <= 15 else { throw HTTP1Error(400, "chunk size too large") }
            remaining = remaining << 4 | UInt64(digit)
            return
        }
        guard digits > 0 else { throw HTTP1Error(400, "malformed chunk size") }
        switch byte {
        case cr: state = .sizeLF
        case UInt8(ascii: ";"): state = .extensions
        default: throw HTTP1Error(400, "malformed chunk size")
        }
    }

    private func expect(_ byte: UInt8, _ wanted: UInt8) throws(HTTP1Error) {
        if byte != wanted { throw HTTP1Error(400, "malformed chunk") }
    }

    private func checkText(_ byte: UInt8) throws(HTTP1Error) {
        if (byte < space && byte != tab) || byte == 0x7f {
            throw HTTP1Error(400, "control character in a chunk extension or trailer")
        }
    }
}

/// The value of a hexadecimal digit.
func hexadecimalDigit(_ byte: UInt8) -> UInt8? {
    switch byte {
    case UInt8(ascii: "0")...UInt8(ascii: "9"): byte - UInt8(ascii: "0")
    case UInt8(ascii: "a")...UInt8(ascii: "f"): byte - UInt8(ascii: "a") + 10
    case UInt8(ascii: "A")...UInt8(ascii: "F"): byte - UInt8(ascii: "A") + 10
    default: nil
    }
}
