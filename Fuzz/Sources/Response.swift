import Wire

@testable import HTTPClient

/// Feeds an upstream's bytes to the response parser. A head is parsed equally, however it is split. It is complete with
/// its last byte and not before, and no other reader could interpret it differently.
func fuzzResponse(_ bytes: [UInt8]) {
    let whole = read(bytes, step: bytes.count)
    let piecewise = read(bytes, step: 1)
    guard let whole else {
        precondition(piecewise == nil)
        return
    }
    guard let piecewise else { preconditionFailure("a head only in one piece") }
    precondition(whole.fields == piecewise.fields && whole.framing == piecewise.framing)
    precondition(whole.length == piecewise.length && whole.keepAlive == piecewise.keepAlive)
    precondition((100...599).contains(whole.status) && whole.length <= bytes.count)
    precondition(bytes[..<whole.length].suffix(4).elementsEqual([13, 10, 13, 10]))
    precondition(whole.fields.count <= HTTP1ResponseParser.maximumFields)
    precondition(whole.fields.areWellFormed)
    precondition(whole.fields.values("content-length").count <= 1)
    if case .chunked = whole.framing { precondition(whole.contentLength == nil) }
    if whole.framing == .untilClose { precondition(!whole.keepAlive) }
}

/// Parses a head in pieces of `step` bytes; nil if there is none.
private func read(_ bytes: [UInt8], step: Int) -> HTTP1ResponseHead? {
    var parser = HTTP1ResponseParser(respondsToHead: false)
    var end = 0
    while end < bytes.count {
        end = min(bytes.count, end + max(1, step))
        do throws(HTTP1SyntaxError) {
            if let head = try parser.parse(bytes.span.extracting(first: end)) { return head }
        } catch {
            return nil
        }
    }
    return nil
}
