import CHTTPParser
import System
import Wire

@testable import HTTPServer

/// What a parser understood of one request.
struct HTTP1Message: Equatable {
    var method = ""
    var target = ""
    /// Names in lower case and values without white space around them, in order; trailers are not among them.
    var fields: [[UInt8]] = []
    var body: [UInt8] = []
    var isChunked = false
}

/// Reads a connection's bytes as ``HTTP1Connection`` does.
/// - Returns: The complete requests, and the status of the error that ended the reading, if one did.
func readAsSluice(_ bytes: [UInt8], limits: ServerLimits = ServerLimits())
    -> (messages: [HTTP1Message], error: Int?)
{
    let parser = HTTP1Parser(limits: limits)
    var messages: [HTTP1Message] = []
    var place = 0
    do throws(HTTP1Error) {
        while place < bytes.count {
            guard let head = try parser.parse(bytes.span.extracting(place...)) else { break }
            place += head.length
            var message = HTTP1Message(method: head.request.method, target: head.request.target)
            for (name, value) in head.request.fields.all(withPrefix: "") {
                message.fields.append(Array(name.utf8))
                message.fields.append(value)
            }
            switch head.framing {
            case .none: break
            case .length(let length):
                guard length <= UInt64(bytes.count - place) else { return (messages, nil) }
                message.body = Array(bytes[place..<place + Int(length)])
                place += Int(length)
            case .chunked:
                message.isChunked = true
                guard let body = try readChunks(bytes, &place, limits) else {
                    return (messages, nil)
                }
                message.body = body
            }
            messages.append(message)
            if !head.keepAlive { break }
        }
    } catch {
        return (messages, error.status)
    }
    return (messages, nil)
}

/// The body that a chunked coding carries; nil where it is not complete.
func readChunks(_ bytes: [UInt8], _ place: inout Int, _ limits: ServerLimits) throws(HTTP1Error)
    -> [UInt8]?
{
    var decoder = ChunkedDecoder(lineLimit: limits.chunkLineBytes)
    var body: [UInt8] = []
    do throws(HTTP1SyntaxError) {
        while true {
            switch try decoder.next(bytes.span, at: &place) {
            case .data(let count):
                body += bytes[place..<place + count]
                place += count
            case .incomplete: return nil
            case .end: return body
            }
        }
    } catch {
        throw HTTP1Error(error)
    }
}

/// Reads a connection's bytes with libhttp-parser.
final class Oracle {
    private(set) var messages: [HTTP1Message] = []
    private(set) var error: String?
    /// The methods that libhttp-parser knows.
    static let methods = Set(
        (0...33).map { String(cString: http_method_str(http_method(rawValue: $0))) })
    private var current = HTTP1Message()
    private var inValue = false
    private var headIsComplete = false
    private var parser = http_parser()

    init(_ bytes: [UInt8]) {
        http_parser_init(&parser, HTTP_REQUEST)
        parser.data = Unmanaged.passUnretained(self).toOpaque()
        var settings = Oracle.settings
        let taken = bytes.withUnsafeBytes {
            http_parser_execute(
                &parser, &settings, $0.baseAddress?.assumingMemoryBound(to: CChar.self), $0.count)
        }
        if parser.http_errno != 0 || (taken < bytes.count && parser.upgrade == 0) {
            error = String(cString: http_errno_name(http_errno(rawValue: parser.http_errno)))
        }
    }

    private static let settings: http_parser_settings = {
        var settings = http_parser_settings()
        settings.on_message_begin = { parser in
            oracle(parser).begin()
            return 0
        }
        settings.on_url = { parser, start, count in
            oracle(parser).current.target += String(decoding: bytes(start, count), as: UTF8.self)
            return 0
        }
        settings.on_header_field = { parser, start, count in
            oracle(parser).name(bytes(start, count))
            return 0
        }
        settings.on_header_value = { parser, start, count in
            oracle(parser).value(bytes(start, count))
            return 0
        }
        settings.on_headers_complete = { parser in
            oracle(parser).headComplete(parser!.pointee)
            return 0
        }
        settings.on_body = { parser, start, count in
            oracle(parser).current.body += bytes(start, count)
            return 0
        }
        settings.on_message_complete = { parser in
            oracle(parser).complete()
            return 0
        }
        return settings
    }()

    private func begin() {
        current = HTTP1Message()
        inValue = true
        headIsComplete = false
    }

    private func name(_ part: [UInt8]) {
        guard !headIsComplete else { return }
        if inValue { current.fields.append([]) }
        inValue = false
        current.fields[current.fields.count - 1] += part.map {
            $0 >= 0x41 && $0 <= 0x5a ? $0 | 0x20 : $0
        }
    }

    private func value(_ part: [UInt8]) {
        guard !headIsComplete else { return }
        if !inValue { current.fields.append([]) }
        inValue = true
        current.fields[current.fields.count - 1] += part
    }

    private func headComplete(_ parser: http_parser) {
        headIsComplete = true
        current.method = String(cString: http_method_str(http_method(rawValue: parser.method)))
        current.isChunked = parser.flags & UInt32(F_CHUNKED.rawValue) != 0
        for place in current.fields.indices where place % 2 == 1 {
            while let last = current.fields[place].last, last == space || last == tab {
                current.fields[place].removeLast()
            }
        }
    }

    private func complete() { messages.append(current) }
}

private func oracle(_ parser: UnsafeMutablePointer<http_parser>?) -> Oracle {
    Unmanaged<Oracle>.fromOpaque(parser!.pointee.data).takeUnretainedValue()
}

private func bytes(_ start: UnsafePointer<CChar>?, _ count: Int) -> [UInt8] {
    UnsafeRawBufferPointer(start: start, count: count).map { $0 }
}
