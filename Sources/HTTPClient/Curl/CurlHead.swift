import Wire

/// Parses a response's head from the lines that libcurl delivers.
struct CurlHead {
    /// The maximum size of a head in bytes.
    static let maximumBytes = 64 * 1024
    static let maximumFields = 1024
    /// The maximum number of interim responses before the final one.
    static let maximumInterim = 16

    private(set) var status = 0
    private(set) var fields = HeaderFields()
    /// Whether the final response's head is complete.
    private(set) var isComplete = false
    private var bytes = 0
    private var interim = 0

    /// libcurl ignores a `Content-Length` that is too large for it, and reads until the connection ends.
    private static func isPossible(contentLength: String?) -> Bool {
        guard let contentLength else { return true }
        return Int64(contentLength).map { $0 >= 0 } ?? false
    }

    /// Parses a line with its line end, ignoring trailers. Returns false if the head is malformed or exceeds a limit.
    mutating func take(_ line: UnsafeBufferPointer<UInt8>) -> Bool {
        if isComplete { return true }
        bytes += line.count
        if bytes > CurlHead.maximumBytes { return false }
        var text = line[...]
        while let last = text.last, last == 0x0a || last == 0x0d { text.removeLast() }
        if text.isEmpty {
            if status >= 200 {
                isComplete = true
            } else {
                interim += 1
                status = 0
            }
            return interim <= CurlHead.maximumInterim
        }
        if status == 0 {
            fields = HeaderFields(reserving: 512)
            let words = text.split(separator: 0x20, maxSplits: 2)
            guard words.count >= 2, let code = Int(String(decoding: words[1], as: UTF8.self)),
                (100...599).contains(code)
            else { return false }
            status = code
            return true
        }
        guard let colon = text.firstIndex(of: UInt8(ascii: ":")),
            fields.count < CurlHead.maximumFields
        else { return false }
        var value = text[(colon + 1)...]
        while let first = value.first, ASCII.isSpace(first) { value.removeFirst() }
        while let last = value.last, ASCII.isSpace(last) { value.removeLast() }
        let name = UnsafeBufferPointer(rebasing: text[..<colon])
        fields.append(lowercasing: name.span, UnsafeBufferPointer(rebasing: value).span)
        return name.count != 14 || CurlHead.isPossible(contentLength: fields["content-length"])
    }
}
