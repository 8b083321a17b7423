import Credentials
import Wire
import XML

@testable import Buckets

/// A response of S3 or STS. Malformed XML gives no response, and parsed values are within their bounds.
func fuzzS3Answer(_ bytes: [UInt8]) {
    var leaves = 0
    var size = 0
    let isRead =
        (try? XMLReader.read(bytes) { _, name, text in
            leaves += 1
            size += name.utf8.count + text.utf8.count
            precondition(!name.isEmpty)
        }) != nil
    // A leaf is at least `<a/>`, and an invalid UTF-8 byte becomes at most three bytes.
    precondition(leaves * 4 <= bytes.count && size <= bytes.count * 3)
    let code = S3ErrorResponse.code(in: bytes)
    precondition((code?.count ?? 0) <= 64)
    _ = XMLReader.first("UploadId", in: bytes)
    _ = XMLReader.first("ETag", in: bytes).map(S3Head.unquoted)
    guard let page = try? S3ListPage(bytes) else { return }
    precondition(isRead && (page.isLast || !page.inFolderOrder.isEmpty || page.next != nil))
    precondition(page.isLast ? page.next == nil : true)
    let entries = page.inFolderOrder
    precondition(entries.count == page.items.count + page.prefixes.count)
    for (first, second) in zip(entries, entries.dropFirst()) {
        precondition(!S3FolderWalk.precedes(second, first))
    }
    // The entries that a list shows: no duplicates, in order, and not more than requested.
    var list = CloudList(ListQuery(prefix: "", delimited: true, limit: 3), after: nil)
    list.add(items: page.items, prefixes: page.prefixes, isLast: page.isLast)
    let shown = list.page.items + list.page.prefixes
    precondition(shown.count <= 3 && Set(shown.map { BytewiseString($0) }).count == shown.count)
}

/// The canonical form of a target and fields, one per line. It does not depend on the order of queries and fields.
func fuzzSigner(_ bytes: [UInt8]) {
    let lines = bytes.split(separator: UInt8(ascii: "\n"), omittingEmptySubsequences: false)
    let target = String(
        decoding: (lines.first ?? []).filter { $0 > 0x20 && $0 < 0x7f }, as: UTF8.self)
    var pairs: [(name: String, value: String)] = []
    for line in lines.dropFirst() {
        let parts = line.split(separator: UInt8(ascii: ":"), maxSplits: 1)
        guard parts.count == 2 else { continue }
        // Keeps only lower-case letters, digits and hyphens of a field name, which no service interprets differently.
        let name = String(
            decoding: parts[0].filter {
                (0x61...0x7a).contains($0) || (0x30...0x39).contains($0) || $0 == 0x2d
            },
            as: UTF8.self)
        if name.isEmpty || pairs.contains(where: { $0.name == name }) { continue }
        pairs.append(
            (name, String(decoding: parts[1].filter { $0 >= 0x20 && $0 < 0x7f }, as: UTF8.self)))
    }
    let wanted = canonical(target, pairs)
    precondition(wanted == canonical(target, pairs.reversed()))
    if let question = target.firstIndex(of: "?") {
        let query = target[target.index(after: question)...].split(
            separator: "&", omittingEmptySubsequences: false
        ).reversed().joined(separator: "&")
        precondition(wanted == canonical(String(target[...question]) + query, pairs))
    }
    // Method, path, query, one line per field and one for the host, an empty line, and the names. The payload's hash
    // follows.
    let text = wanted.split(separator: UInt8(ascii: "\n"), omittingEmptySubsequences: false)
    precondition(text.count == 3 + pairs.count + (pairs.contains { $0.name == "host" } ? 0 : 1) + 3)
}

private func canonical(_ target: String, _ pairs: [(name: String, value: String)]) -> [UInt8] {
    var fields = HeaderFields()
    for (name, value) in pairs { fields.append(name: name, value) }
    var request = CanonicalRequest(method: "GET", target: target)
    let names = request.append(fields, host: "example.com")
    precondition(names.split(separator: ";").count == Set(pairs.map(\.name) + ["host"]).count)
    return request.bytes
}
