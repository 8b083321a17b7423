import Buckets
import HTTPServer
import Wire

@testable import Gateway

/// A multipart body: the first line of the input is its content type. The result must not depend
/// on where the body is cut, or on how much of its content is read at a time.
func fuzzMultipart(_ bytes: [UInt8]) {
    let line = bytes.prefix { $0 != 0x0a }
    let type = String(decoding: line, as: UTF8.self)
    let boundary = MultipartBoundary(type) ?? MultipartBoundary("multipart/related; boundary=B")!
    let body = Array(bytes.dropFirst(line.count + 1))
    let whole = parsed(body, boundary, chunk: body.count, room: .max)
    for (chunk, room) in [(1, Int.max), (3, 1), (body.count, 2)] {
        let other = parsed(body, boundary, chunk: chunk, room: room)
        precondition(other.isComplete == whole.isComplete && other.type == whole.type)
        precondition(!whole.isComplete || other.content == whole.content)
        precondition(other.description == whole.description || !whole.isComplete)
    }
    let delimiter = Array("\r\n--".utf8) + boundary.bytes
    precondition(!contains(whole.content, delimiter), "content has no boundary")
}

private func parsed(_ body: [UInt8], _ boundary: MultipartBoundary, chunk: Int, room: Int) -> (
    isComplete: Bool, type: String?, description: [UInt8], content: [UInt8]
) {
    var parser = MultipartParser(boundary, maximumDescription: 1024)
    var content: [UInt8] = []
    var isComplete = true
    do {
        var offset = 0
        while offset < body.count {
            let part = Array(body[offset..<min(body.count, offset + chunk)])
            let taken = try parser.write(part.span.bytes) { bytes in
                let taken = min(room, bytes.byteCount)
                bytes.extracting(0..<taken).withUnsafeBytes { content += $0 }
                return taken
            }
            precondition((0...part.count).contains(taken))
            offset += taken
        }
        try parser.end()
    } catch {
        isComplete = false
    }
    return (isComplete, parser.contentType, parser.description, content)
}

private func contains(_ text: [UInt8], _ part: [UInt8]) -> Bool {
    guard text.count >= part.count else { return false }
    return (0...text.count - part.count).contains { text[$0..<$0 + part.count].elementsEqual(part) }
}

/// A command, the JSON of an upload and of a patch, and a target.
func fuzzFirebase(_ bytes: [UInt8]) {
    let text = String(decoding: bytes, as: UTF8.self)
    if let command = UploadCommand(text) {
        precondition(UploadCommand(text.uppercased()) == command)
    }
    if let attributes = try? UploadDescription(json: bytes, type: "a/b").attributes() {
        precondition(!attributes.system.downloadTokens.isEmpty)
        precondition(
            attributes.system.downloadTokens.allSatisfy { !$0.isEmpty && !$0.contains(",") })
        precondition(
            !attributes.customMetadata.keys.contains { SystemMetadata.isReserved($0.text) })
    }
    if let patch = try? AttributePatch(firebase: bytes) {
        precondition(patch.downloadTokens == nil)
    }
    if let route = try? Route(firebase: RequestTarget(text)) {
        _ = try? ListRequest(firebase: route.bucket, route.query)
    }
}
