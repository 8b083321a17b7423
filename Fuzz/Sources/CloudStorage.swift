import Wire

@testable import Buckets

/// A response of Cloud Storage, by its first byte: an object, a page of a list, or a header field of a session. A
/// parsed object is written and parsed again as the same object. A list page has the right entries in order. A number
/// consists of digits only.
func fuzzCloudStorage(_ bytes: [UInt8]) {
    let rest = Array(bytes.dropFirst())
    switch bytes.first {
    case UInt8(ascii: "o"): fuzzObject(rest)
    case UInt8(ascii: "l"): fuzzPage(rest)
    default: fuzzSession(String(decoding: rest, as: UTF8.self))
    }
}

private func fuzzObject(_ bytes: [UInt8]) {
    guard let json = try? JSONReader.parse(bytes), let object = GCSObject.metadata(json) else {
        return
    }
    precondition(object.generation > 0 && object.metageneration > 0)
    precondition(object.etag == String(object.generation) && object.md5?.count ?? 16 == 16)
    precondition(
        object.attributes.customMetadata.keys.allSatisfy { !SystemMetadata.isReserved($0.text) })
    let facts = object.crc32c.map {
        ContentFacts(size: object.size, md5: object.md5, crc32c: $0)
    }
    let written = GCSObject.resource(object.name, object.attributes, facts)
    guard let again = try? JSONReader.parse(written) else { preconditionFailure("not JSON") }
    precondition(again["name"]?.text?.utf8.elementsEqual(object.name.utf8) == true)
    for (key, value) in object.attributes.storedPairs {
        precondition(again["metadata"]?[key.text]?.text?.utf8.elementsEqual(value.utf8) == true)
    }
    if let facts {
        precondition(GCSObject.crc32c(hashField: GCSObject.hashField(facts)) == facts.crc32c)
    }
}

/// Adds a service page to a list, folded and limited depending on its length.
private func fuzzPage(_ bytes: [UInt8]) {
    guard let page = GCSListPage(bytes) else { return }
    precondition(page.next?.isEmpty != true)
    for prefix in ["", "a", "a/"] {
        let query = ListQuery(
            prefix: prefix, delimited: bytes.count % 2 == 0, limit: 1 + bytes.count % 5)
        var list = CloudList(query, after: nil)
        list.add(items: page.items, prefixes: page.prefixes, isLast: page.next == nil)
        let entries = list.page.items + list.page.prefixes
        precondition(entries.count <= query.limit)
        precondition(entries.allSatisfy { $0.utf8.starts(with: prefix.utf8) })
        for names in [list.page.items, list.page.prefixes] {
            for (first, second) in zip(names, names.dropFirst()) {
                precondition(first.utf8.lexicographicallyPrecedes(second.utf8))
            }
        }
        guard let after = list.page.end else { continue }
        var next = CloudList(query, after: after)
        next.add(items: page.items, prefixes: page.prefixes, isLast: true)
        precondition(
            (next.page.items + next.page.prefixes).allSatisfy {
                after.utf8.lexicographicallyPrecedes($0.utf8)
            }, "shown twice")
    }
}

private func fuzzSession(_ text: String) {
    if let count = try? GCSSession.kept(text) {
        precondition(count > 0 && Decimal.parse(Array(text.utf8)[8...]) == count - 1)
    }
    if let range = ContentRange(text) {
        precondition(!range.range.isEmpty && range.range.upperBound <= range.size)
    }
    if let target = GCSSession.target(text) {
        precondition(target.hasPrefix("/") && text.hasSuffix(target))
        precondition(target.utf8.allSatisfy(ASCII.isVisible))
    }
    _ = GCSObject.crc32c(hashField: text)
}
