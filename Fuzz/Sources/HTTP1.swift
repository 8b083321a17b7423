import Wire

@testable import HTTPServer

/// Feeds a connection's bytes to the parser and the decoder. A complete head is parsed equally, however it is split. An
/// incomplete head can become complete. Nothing consumes more bytes than there are.
func fuzzHTTP1(_ bytes: [UInt8]) {
    let limits = ServerLimits()
    let parser = HTTP1Parser(limits: limits)
    var place = 0
    do throws(HTTP1Error) {
        while place < bytes.count {
            let rest = bytes.span.extracting(place...)
            guard let head = try parser.parse(rest) else { return }
            precondition(head.length > 0 && head.length <= rest.count)
            precondition(isTarget(head.request.target, of: head.request.method))
            precondition(head.request.authority.map(isHost) ?? true)
            let short = try parser.parse(rest.extracting(0..<head.length - 1))
            precondition(short == nil, "a head shorter than itself")
            place += head.length
            switch head.framing {
            case .none: break
            case .length(let length):
                guard length <= UInt64(bytes.count - place) else { return }
                place += Int(length)
            case .chunked:
                let start = place
                let whole = try chunks(bytes, &place, limits, by: bytes.count)
                var again = start
                let piecewise = try chunks(bytes, &again, limits, by: 1)
                precondition(piecewise == whole && again == place)
                if whole == nil { return }
            }
        }
    } catch {
        precondition([400, 414, 417, 431, 501, 505].contains(error.status))
    }
}

/// Decodes a chunked body in pieces of `size` bytes; nil if it does not end.
private func chunks(_ bytes: [UInt8], _ place: inout Int, _ limits: ServerLimits, by size: Int)
    throws(HTTP1Error) -> [UInt8]?
{
    do throws(HTTP1SyntaxError) {
        return try chunks(bytes, &place, ChunkedDecoder(lineLimit: limits.chunkLineBytes), size)
    } catch {
        throw HTTP1Error(error)
    }
}

private func chunks(
    _ bytes: [UInt8], _ place: inout Int, _ decoder: consuming ChunkedDecoder, _ size: Int
) throws(HTTP1SyntaxError) -> [UInt8]? {
    var body: [UInt8] = []
    while place < bytes.count {
        let piece = Array(bytes[place..<min(bytes.count, place + size)])
        var used = 0
        piece: while true {
            switch try decoder.next(piece.span, at: &used) {
            case .data(let count):
                precondition(count > 0 && used + count <= piece.count)
                body += piece[used..<used + count]
                used += count
            case .incomplete: break piece
            case .end:
                place += used
                return body
            }
        }
        precondition(used == piece.count)
        place += used
    }
    return nil
}
