import Wire
import XML

extension CloudPartsPage {
    /// The members of a part, in any order.
    private struct Members {
        var number: String?
        var size: String?
        var etag: String?
        var updated: String?

        var part: Part? {
            guard let number = number.flatMap({ Int($0) }), let size = size.flatMap({ UInt64($0) }),
                size <= UInt64(Int64.max), let etag
            else { return nil }
            let updated = updated.flatMap { HTTPDate.parse(rfc3339: $0) }
            return Part(number: number, size: size, etag: S3Head.unquoted(etag), crc32c: nil, updated: updated ?? 0)
        }
    }

    /// Parses a `ListPartsResult` of S3, or of Cloud Storage's XML API; nil if it is malformed.
    init?(_ body: [UInt8]) {
        var members: [Members] = []
        var isList = false
        var isTruncated = false
        func put(_ member: WritableKeyPath<Members, String?>, _ text: String) {
            if members.last.map({ $0[keyPath: member] != nil }) ?? true { members.append(Members()) }
            members[members.count - 1][keyPath: member] = text
        }
        do throws(XMLReader.Malformed) {
            try XMLReader.read(body) { owner, name, text in
                switch (owner, name) {
                // moto uses another name.
                case ("ListPartsResult", "IsTruncated"), ("ListPartsResponse", "IsTruncated"):
                    (isList, isTruncated) = (true, text == "true")
                case ("Part", "PartNumber"): put(\.number, text)
                case ("Part", "Size"): put(\.size, text)
                case ("Part", "ETag"): put(\.etag, text)
                case ("Part", "LastModified"): put(\.updated, text)
                default: break
                }
            }
        } catch {
            return nil
        }
        let parts = members.compactMap(\.part)
        guard isList, parts.count == members.count else { return nil }
        self.init(parts: parts, isLast: !isTruncated)
    }
}
