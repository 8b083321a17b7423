import Buckets
import HTTPServer
import OpenSSL
import Wire
import XML

/// The query of a list of objects, in one of its three versions.
struct S3ListQuery {
    enum Version { case first, second, versions }
    let version: Version
    let prefix: String
    /// Empty for none.
    let delimiter: String
    /// As requested, at most 1,000.
    let limit: Int
    /// `marker`, `start-after` or `key-marker`; empty for none.
    let start: String
    let token: String?
    let isEncoded: Bool
    let showsOwner: Bool

    /// - Throws: ``Problem`` with `InvalidArgument`.
    init(_ version: Version, _ query: QueryParameters) throws(Problem) {
        self.version = version
        prefix = try query.single("prefix") ?? ""
        delimiter = try S3ListQuery.delimiter(query)
        let text = try query.single("max-keys")
        limit = try S3ListQuery.limit(text, "max-keys")
        let marker: String
        switch version {
        case .first: marker = "marker"
        case .second: marker = "start-after"
        case .versions: marker = "key-marker"
        }
        start = try query.single(marker) ?? ""
        token = version == .second ? try query.single("continuation-token") : nil
        if let token, token.isEmpty {
            throw S3Error.invalidArgument("The continuation token provided is incorrect", "continuation-token", "")
        }
        let encoding = try query.single("encoding-type")
        isEncoded = encoding != nil
        if let encoding, encoding != "url" {
            throw S3Error.invalidArgument("Invalid Encoding Method specified in Request", "encoding-type", encoding)
        }
        showsOwner = version == .second ? try query.single("fetch-owner") == "true" : true
    }

    /// - Throws: ``Problem`` with `InvalidArgument` if it is longer than any name.
    static func delimiter(_ query: QueryParameters) throws(Problem) -> String {
        guard let text = try query.single("delimiter") else { return "" }
        guard text.utf8.count <= ObjectName.maximumBytes else {
            throw S3Error.invalidArgument("The delimiter is longer than a key.", "delimiter", text)
        }
        return text
    }

    /// Parses a number of entries; 1,000 if it is absent.
    /// - Parameter most: The most that counts.
    static func limit(_ text: String?, _ name: String, most: UInt64 = 1000) throws(Problem) -> Int {
        guard let text, !text.isEmpty else { return 1000 }
        guard let number = Decimal.saturating(Array(text.utf8)[...]), number <= Int32.max else {
            throw S3Error.invalidArgument("Provided \(name) not an integer or within integer range", name, text)
        }
        return Int(min(number, most))
    }

    /// The list that a continuation token belongs to.
    private var bound: String { "\(prefix)\0\(delimiter)" }

    /// The name after which the page begins, given the bucket's name; nil for the first page.
    /// - Throws: ``Problem`` with `InvalidArgument` for a token of another list.
    func after(in bucket: String) throws(Problem) -> String? {
        guard let token else { return start.isEmpty ? nil : start }
        guard let end = PageToken.decode(token, bucket: bucket, prefix: bound, isDelimited: !delimiter.isEmpty) else {
            throw S3Error.invalidArgument("The continuation token provided is incorrect", "continuation-token", token)
        }
        return end
    }

    func token(after end: String, in bucket: String) -> String {
        PageToken.encode(after: end, bucket: bucket, prefix: bound, isDelimited: !delimiter.isEmpty)
    }

    /// Whether no name can have the prefix.
    var matchesNothing: Bool {
        prefix.utf8.count > ObjectName.maximumBytes || prefix.utf8.contains { $0 == 0 || $0 == 0x0a || $0 == 0x0d }
    }

    /// The folder before an empty segment of the prefix; nil if it has none. No rule allows a name with an empty segment.
    var folderBeforeEmptySegment: String? {
        if prefix.utf8.first == UInt8(ascii: "/") { return "" }
        guard let slashes = prefix.utf8.indices.first(where: { prefix.utf8[$0...].starts(with: "//".utf8) }) else {
            return nil
        }
        return String(prefix[..<slashes])
    }

    /// Whether the gateway folds the names, because the store only does so at slashes.
    var isFoldedHere: Bool { !delimiter.isEmpty && delimiter != "/" }

    /// Follows a prefix in the name after which its names are skipped.
    private static let beyond = "\u{10ffff}"

    /// Folds names at the delimiter, and keeps as many entries as the client asked for.
    /// - Parameter after: The name after which the page begins.
    fileprivate func folded(_ page: ListPage, after: String?, _ context: RequestContext) async throws(Problem)
        -> ListPage
    {
        let skipped = after.flatMap { after in
            after.hasSuffix(S3ListQuery.beyond) ? String(after.unicodeScalars.dropLast()) : nil
        }
        var kept: [String] = []
        var folded: [String] = []
        var last: String?
        var isCut = false
        for name in page.items {
            try await context.giveWay()
            let end = name.firstEnd(of: delimiter, from: prefix.utf8.count)
            let entry = end.map { String(decoding: Array(name.utf8)[..<$0], as: UTF8.self) } ?? name
            if let before = folded.last ?? skipped, BytewiseString.areEqual(before, entry) { continue }
            if kept.count + folded.count == limit {
                isCut = true
                break
            }
            if end == nil { kept.append(entry) } else { folded.append(entry) }
            last = entry
        }
        var result = page
        result.items = kept
        result.prefixes = folded
        result.end = page.end != nil || isCut ? last ?? page.end : nil
        return result
    }

    /// The list of the store.
    func request(in bucket: String, showsAll: Bool) throws(Problem) -> ListRequest {
        var after = try after(in: bucket)
        if isFoldedHere, let name = after, name.hasSuffix(delimiter), name.utf8.count > prefix.utf8.count {
            // The page before has ended in a folded prefix: continue after all names below it.
            after = name + S3ListQuery.beyond
        }
        var query = ListQuery(
            prefix: prefix, delimited: delimiter == "/", limit: isFoldedHere ? 1000 : limit, withProperties: true)
        query.markers = true
        query.withS3Tags = true
        return ListRequest(query, after: after, showsAll: showsAll)
    }
}

extension S3API {
    /// Parses a list of objects.
    func list(_ version: S3ListQuery.Version, _ route: Route, in bucket: Bucket, _ context: RequestContext)
        throws(Problem) -> ObjectOperation
    {
        let list = try S3ListQuery(version, route.query)
        context.s3.list = list
        let request = try list.request(in: bucket.name, showsAll: settings.listsAll)
        let unreachable = bucket.policy.current is OpenPolicy ? nil : list.folderBeforeEmptySegment
        if list.limit == 0 || list.matchesNothing || unreachable != nil {
            let folder = list.matchesNothing ? "" : unreachable ?? request.folder
            let response = S3ListWriter(list, ListPage(), bucket, context).response()
            return .fixed(
                FixedResponse(
                    response, RequestedAccess(.list, bucket: bucket.name, name: folder), isDecided: true))
        }
        return .list(request)
    }

    func render(_ page: ListPage, _ request: ListRequest, in bucket: Bucket, _ context: RequestContext) async
        -> Response
    {
        guard let list = context.s3.list else { preconditionFailure("the list is parsed first") }
        var page = page
        if !request.showsAll { page.items.removeAll { page.properties[BytewiseString($0)] == nil } }
        if list.isFoldedHere {
            do throws(Problem) {
                page = try await list.folded(page, after: request.after, context)
            } catch {
                return render(error, of: context)
            }
        }
        var writer = S3ListWriter(list, page, bucket, context)
        await writer.writeEntries()
        var response = writer.response()
        S3API.identify(&response.head.fields, context.record.requestId)
        return response
    }
}

extension String {
    /// The end of the first occurrence of `text` at or after a byte's index; nil without one.
    func firstEnd(of text: String, from start: Int) -> Int? {
        let (bytes, wanted) = (Array(utf8), Array(text.utf8))
        guard !wanted.isEmpty, bytes.count >= start + wanted.count else { return nil }
        for index in start...(bytes.count - wanted.count)
        where bytes[index..<index + wanted.count].elementsEqual(wanted) {
            return index + wanted.count
        }
        return nil
    }
}

/// Writes a page of a list.
private struct S3ListWriter {
    private let list: S3ListQuery
    private let page: ListPage
    private let bucket: Bucket
    private let context: RequestContext
    private var xml: XMLWriter

    init(_ list: S3ListQuery, _ page: ListPage, _ bucket: Bucket, _ context: RequestContext) {
        self.list = list
        self.page = page
        self.bucket = bucket
        self.context = context
        xml = XMLWriter(reserving: 512 + 400 * page.items.count)
        xml.begin(list.version == .versions ? "ListVersionsResult" : "ListBucketResult", namespace: S3API.namespace)
        writeHead()
    }

    private func encoded(_ text: String) -> String { list.isEncoded ? PercentEncoding.encodePath(text) : text }

    private mutating func writeHead() {
        xml.element("Name", bucket.name)
        // boto3 does not decode the prefix of the first version.
        let isPlain = list.version == .first && list.matchesNothing
        xml.element("Prefix", isPlain ? list.prefix : encoded(list.prefix))
        switch list.version {
        case .first:
            xml.element("Marker", encoded(list.start))
            if let end = page.end, !list.delimiter.isEmpty { xml.element("NextMarker", encoded(end)) }
        case .versions:
            xml.element("KeyMarker", encoded(list.start))
            xml.element("VersionIdMarker", "")
            if let end = page.end {
                xml.element("NextKeyMarker", encoded(end))
                xml.element("NextVersionIdMarker", "null")
            }
        case .second:
            if let token = list.token { xml.element("ContinuationToken", token) }
            if let end = page.end { xml.element("NextContinuationToken", list.token(after: end, in: bucket.name)) }
            if !list.start.isEmpty { xml.element("StartAfter", encoded(list.start)) }
            xml.element("KeyCount", page.items.count + page.prefixes.count)
        }
        xml.element("MaxKeys", list.limit)
        if !list.delimiter.isEmpty { xml.element("Delimiter", encoded(list.delimiter)) }
        if list.isEncoded { xml.element("EncodingType", "url") }
        xml.element("IsTruncated", page.end == nil ? "false" : "true")
    }

    /// Writes the entries. It lets the loop do other work meanwhile, and stops early if the client has disconnected.
    mutating func writeEntries() async {
        for name in page.items {
            do { try await context.giveWay() } catch { return }
            write(name)
        }
        for prefix in page.prefixes {
            xml.begin("CommonPrefixes")
            xml.element("Prefix", encoded(prefix))
            xml.end("CommonPrefixes")
        }
    }

    private mutating func write(_ name: String) {
        let isVersion = list.version == .versions
        xml.begin(isVersion ? "Version" : "Contents")
        xml.element("Key", encoded(name))
        if isVersion {
            xml.element("VersionId", "null")
            xml.element("IsLatest", "true")
        }
        if let properties = page.properties[BytewiseString(name)] {
            xml.element("LastModified", S3API.time(properties.updated))
            xml.element("ETag", "\"\(properties.s3Tag)\"")
            xml.element("Size", properties.size)
        }
        if list.showsOwner { xml.writeOwner("Owner", context) }
        xml.element("StorageClass", "STANDARD")
        xml.end(isVersion ? "Version" : "Contents")
    }

    func response() -> Response {
        var xml = xml
        xml.end(list.version == .versions ? "ListVersionsResult" : "ListBucketResult")
        return Response(status: 200, xml: xml)
    }
}

extension S3API {
    /// The ID of an owner: the SHA-256 of its uid.
    static func ownerID(_ uid: String) -> String { Hexadecimal.encode(Digest.sha256(Array(uid.utf8))) }
}

extension XMLWriter {
    /// Writes the owner of everything that a caller sees: the caller, by a hash of its uid.
    mutating func writeOwner(_ name: StaticString, _ context: RequestContext) {
        let uid = context.caller.principal?.uid ?? ""
        begin(name)
        element("ID", S3API.ownerID(uid))
        element("DisplayName", uid)
        end(name)
    }
}
